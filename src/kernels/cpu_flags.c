/* CPU detection. The compiler's builtin also asks the operating system whether it saves the wide registers.
 */
#include "kernels/cpu_flags.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler's builtin knows the name. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static uint32_t detect(void) {
    uint32_t flags = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
        __builtin_cpu_supports("bmi2")) {
        flags |= ATH_CPU_AVX2;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        flags |= ATH_CPU_AVX512;
    }
    if (__builtin_cpu_supports("avx512vnni")) flags |= ATH_CPU_AVX512_VNNI;
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2"))
        flags |= ATH_CPU_AVX512_VBMI;
#endif
    return flags;
}

uint32_t ath_cpu_flags(uint32_t mask) {
    uint32_t flags = detect() & mask;
    if (!(flags & ATH_CPU_AVX2)) flags = 0;
    if (!(flags & ATH_CPU_AVX512)) flags &= ~(uint32_t)(ATH_CPU_AVX512_VNNI | ATH_CPU_AVX512_VBMI);
    return flags;
}

void ath_cpu_flags_describe(uint32_t flags, char *text, size_t size) {
    static const char *const names[] = {"avx2", "avx512", "vnni", "vbmi"};
    if (!size) return;
    text[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!(flags & 1u << i)) continue;
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", used ? " " : "", names[i]);
    }
    if (!text[0]) snprintf(text, size, "plain C");
}
