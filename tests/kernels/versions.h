/* The versions of the kernels that this machine can run. */
#ifndef ATH_TESTS_KERNELS_VERSIONS_H
#define ATH_TESTS_KERNELS_VERSIONS_H

#include <stdio.h>

#include "kernels/cpu_flags.h"

/* Masks of CPU flags, one for each version that this architecture has besides plain C. */
#if defined(__aarch64__)
static const uint32_t masks[] = {ATH_CPU_NEON, ATH_CPU_NEON | ATH_CPU_DOTPROD, ~0u};
#else
static const uint32_t masks[] = {ATH_CPU_AVX2, ~0u};
#endif
enum { N_MASKS = sizeof masks / sizeof masks[0] };

/* The same for products, where x86 has one version more. */
#if defined(__aarch64__)
#define product_masks masks
#else
static const uint32_t product_masks[] = {ATH_CPU_AVX2, ~(uint32_t)ATH_CPU_AMX, ~0u};
#endif
enum { N_PRODUCT_MASKS = sizeof product_masks / sizeof product_masks[0] };

static inline void print_seed_and_cpu(int seed) {
    char flags[64];
    ath_cpu_flags_describe(ath_cpu_flags(~0u), flags, sizeof flags);
    printf("seed %d, CPU: %s\n", seed, flags);
}

#endif
