/* For loops whose body must become straight code, so that arrays of vectors live in registers: compilers
 * differ in how they are told. Counts are at most 16. Under a sanitizer straight code takes minutes to
 * compile and tests nothing more, so there functions stay functions and loops stay loops. */
#ifndef ATH_KERNELS_UNROLL_H
#define ATH_KERNELS_UNROLL_H

#if defined(__SANITIZE_ADDRESS__)
#define ATH_INLINE static __attribute__((noinline, unused))
#define ATH_UNROLL
#elif defined(__clang__)
#define ATH_INLINE static inline __attribute__((always_inline))
#define ATH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATH_INLINE static inline __attribute__((always_inline))
#define ATH_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
