/* For loops whose body must become straight code, so that arrays of vectors live in registers: compilers differ in how
 * they are told. Counts are at most 16. */
#ifndef ATH_KERNELS_UNROLL_H
#define ATH_KERNELS_UNROLL_H

#define ATH_INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#define ATH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATH_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
