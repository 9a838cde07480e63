/* Masks of CPU flags, one for each version of the kernels that this architecture has besides plain C. */
#ifndef ATH_TESTS_KERNELS_VERSIONS_H
#define ATH_TESTS_KERNELS_VERSIONS_H

#include "kernels/cpu_flags.h"

#if defined(__aarch64__)
static const uint32_t masks[] = {ATH_CPU_NEON, ATH_CPU_NEON | ATH_CPU_DOTPROD, ~0u};
#else
static const uint32_t masks[] = {ATH_CPU_AVX2, ~0u};
#endif
enum { N_MASKS = sizeof masks / sizeof masks[0] };

#endif
