/* What the CPU can do, as one word of flags. The caller's mask may take flags away, never add one. */
#ifndef ATH_KERNELS_CPU_FLAGS_H
#define ATH_KERNELS_CPU_FLAGS_H

#include <stddef.h>
#include <stdint.h>

enum {
    ATH_CPU_AVX2 = 1 << 0,        /* with FMA, F16C and BMI2 */
    ATH_CPU_AVX512 = 1 << 1,      /* F, BW, DQ, VL; implies AVX2 */
    ATH_CPU_AVX512_VNNI = 1 << 2, /* implies AVX512 */
    ATH_CPU_AVX512_VBMI = 1 << 3, /* VBMI, VBMI2 and GFNI; implies AVX512 */
    ATH_CPU_AMX = 1 << 4,         /* tiles, with products of bf16 and of int8; implies all of AVX-512 above */
    /* What files named *_avx512.c are compiled for: they may run only if all of these are there. */
    ATH_CPU_AVX512_ALL = ATH_CPU_AVX2 | ATH_CPU_AVX512 | ATH_CPU_AVX512_VNNI | ATH_CPU_AVX512_VBMI,
    ATH_CPU_NEON = 1 << 8,    /* every 64-bit ARM */
    ATH_CPU_DOTPROD = 1 << 9, /* SDOT; implies NEON */
    ATH_CPU_I8MM = 1 << 10,   /* SMMLA, USDOT; implies DOTPROD */
};

/* Flags of this CPU and operating system, limited to mask (~0u: all). Dropping a flag drops those that imply
 * it. Where AMX is wanted, asks the kernel for leave to use it, which holds for the whole process. */
uint32_t ath_cpu_flags(uint32_t mask);

/* Writes "avx2 avx512 vnni vbmi amx" or "neon dotprod i8mm", or "plain C" without any flag, cut at size. */
void ath_cpu_flags_describe(uint32_t flags, char *text, size_t size);

#endif
