/* CPU detection. On x86 the compiler's builtin also asks the operating system whether it saves the wide
 * registers; on ARM the kernel says what there is. */
#include "kernels/cpu_flags.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not every compiler's builtin knows the name. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* The state of the tiles is large: Linux makes room for it where a process has asked (Documentation/arch/x86/xstate.rst). */
static int may_use_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18, BF16 = 1 << 22, TILES = 1 << 24, INT8 = 1 << 25 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (BF16 | TILES | INT8)) != (BF16 | TILES | INT8)) return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

static uint32_t detect(uint32_t mask) {
    uint32_t flags = 0;
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
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
        __builtin_cpu_supports("gfni"))
        flags |= ATH_CPU_AVX512_VBMI;
    if ((mask & ATH_CPU_AMX) && may_use_amx()) flags |= ATH_CPU_AMX;
    return flags;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* The bits of asm/hwcap.h, which older headers don't have all of. */
enum { AUX_ASIMDDP = 1 << 20, AUX2_I8MM = 1 << 13 };

static uint32_t detect(uint32_t mask) {
    (void)mask;
    uint32_t flags = ATH_CPU_NEON;
    if (getauxval(AT_HWCAP) & AUX_ASIMDDP) flags |= ATH_CPU_DOTPROD;
    if (getauxval(AT_HWCAP2) & AUX2_I8MM) flags |= ATH_CPU_I8MM;
    return flags;
}
#elif defined(__aarch64__)
static uint32_t detect(uint32_t mask) {
    (void)mask;
    return ATH_CPU_NEON;
}
#else
static uint32_t detect(uint32_t mask) {
    (void)mask;
    return 0;
}
#endif

uint32_t ath_cpu_flags(uint32_t mask) {
    static const struct {
        uint32_t flag, needs;
    } rules[] = {/* in this order */
                 {ATH_CPU_AVX512, ATH_CPU_AVX2},
                 {ATH_CPU_AVX512_VNNI, ATH_CPU_AVX512},
                 {ATH_CPU_AVX512_VBMI, ATH_CPU_AVX512},
                 {ATH_CPU_AMX, ATH_CPU_AVX512_ALL},
                 {ATH_CPU_DOTPROD, ATH_CPU_NEON},
                 {ATH_CPU_I8MM, ATH_CPU_DOTPROD}};
    uint32_t flags = detect(mask) & mask;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if ((flags & rules[i].needs) != rules[i].needs) flags &= ~rules[i].flag;
    }
    return flags;
}

void ath_cpu_flags_describe(uint32_t flags, char *text, size_t size) {
    static const char *const names[] = {"avx2", "avx512", "vnni", "vbmi", "amx", [8] = "neon", "dotprod", "i8mm"};
    if (!size) return;
    text[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!(flags & 1u << i) || !names[i]) continue;
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", used ? " " : "", names[i]);
    }
    if (!text[0]) snprintf(text, size, "plain C");
}
