/* What a thread of this machine can do at most: products in registers, and reading of memory. For the
 * harness's figures. */
#ifndef ATH_TESTS_KERNELS_PEAK_H
#define ATH_TESTS_KERNELS_PEAK_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu_flags.h"

static inline double peak_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { PEAK_ROUNDS = 20000, PEAK_SUMS = 12 };

#if defined(__x86_64__)
#include <immintrin.h>

/* Each does PEAK_ROUNDS times twelve independent steps, in registers that a compiler has no say in. */
#define PEAK_LOOP(name, step)                                                                                \
    __attribute__((target("avx2"))) static void name(void) {                                                 \
        __asm__ volatile("vzeroall" ::: PEAK_CLOBBERS);                                                      \
        for (int i = 0; i < PEAK_ROUNDS; i++)                                                                \
            __asm__ volatile(step("0") step("1") step("2") step("3") step("4") step("5") step("6") step("7") \
                                 step("8") step("9") step("10") step("11")::                                 \
                                     : PEAK_CLOBBERS);                                                       \
    }
#define PEAK_CLOBBERS                                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",        \
        "xmm12", "xmm13", "xmm14"
#define PEAK_VNNI(n)   "vpdpbusd %%zmm12, %%zmm13, %%zmm" n "\n"
#define PEAK_AVX2(n)   "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n vpaddw %%ymm14, %%ymm" n ", %%ymm" n "\n"
#define PEAK_FMA512(n) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" n "\n"
#define PEAK_FMA256(n) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" n "\n"
PEAK_LOOP(peak_vnni, PEAK_VNNI)
PEAK_LOOP(peak_avx2, PEAK_AVX2)
PEAK_LOOP(peak_fma512, PEAK_FMA512)
PEAK_LOOP(peak_fma256, PEAK_FMA256)

/* Four sums of 16 x 16, over 64 inputs each. */
__attribute__((target("amx-tile,amx-int8"))) static void peak_amx(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
    for (int i = 0; i < PEAK_ROUNDS / 16; i++) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_release();
}

/* The loop that does what the kernels for these flags do, and the products of a call; NULL: nothing to
 * compare with. */
typedef void (*peak_fn)(void);
static inline peak_fn peak_loop(uint32_t flags, int floats, double *products) {
    double steps = (double)PEAK_ROUNDS * PEAK_SUMS;
    int wide = (flags & ATH_CPU_AVX512_ALL) == ATH_CPU_AVX512_ALL;
    *products = steps * (wide ? 16 : 8) * (floats ? 1 : 4);
    if (!(flags & ATH_CPU_AVX2)) return NULL;
    if (floats) return wide ? peak_fma512 : peak_fma256;
    if (flags & ATH_CPU_AMX) {
        *products = PEAK_ROUNDS / 16 * 4.0 * 16 * 16 * 64;
        return peak_amx;
    }
    return wide ? peak_vnni : peak_avx2;
}
#else
typedef void (*peak_fn)(void);
static inline peak_fn peak_loop(uint32_t flags, int floats, double *products) {
    (void)flags, (void)floats;
    *products = 0;
    return NULL;
}
#endif

/* GMAC/s of the best of several calls, 0 if there is no loop. */
static inline double peak_rate(uint32_t flags, int floats) {
    double products, best = 1e9;
    peak_fn loop = peak_loop(flags, floats, &products);
    for (int i = 0; loop && i < 50; i++) {
        double start = peak_now();
        loop();
        best = fmin(best, peak_now() - start);
    }
    return loop ? products / best * 1e-9 : 0;
}
static inline double peak_int8(uint32_t flags) {
    return peak_rate(flags, 0);
}
static inline double peak_f32(uint32_t flags) {
    return peak_rate(flags, 1);
}

/* GB/s of the fastest piece of n bytes, each read once, with what comes 4 KB later fetched ahead. */
static inline double peak_read(const uint8_t *bytes, int64_t n, int64_t piece) {
    static volatile uint64_t keep;
    double best = 1e9;
    for (int64_t at = 0; at + piece <= n; at += piece) {
        const uint64_t *words = (const uint64_t *)(const void *)(bytes + at);
        uint64_t sums[16] = {0};
        double start = peak_now();
        for (int64_t i = 0; i < piece / 8; i += 16) {
            for (int line = 0; line < 16; line += 8) __builtin_prefetch(words + i + 512 + line);
            for (int lane = 0; lane < 16; lane++) sums[lane] += words[i + lane];
        }
        for (int lane = 0; lane < 16; lane++) keep += sums[lane];
        best = fmin(best, peak_now() - start);
    }
    return (double)piece / best * 1e-9;
}

#endif
