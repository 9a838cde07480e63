/* What the AVX-512 kernels on cache pages share. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_ATTENTION_AVX512_H
#define ATH_KERNELS_ATTENTION_AVX512_H

#include <immintrin.h>

#include "kernels/attention_x86.h"

/* Halves first, as ath_sum_lanes. */
ATH_INLINE float ath_sum_lanes_avx512(__m512 x) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

ATH_INLINE __m512 ath_load_f16_avx512(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

ATH_INLINE __m512 ath_load_bf16_avx512(const void *p) {
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

/* Lanes of the page's 16-token group g that lie in [lo, hi). */
ATH_INLINE __mmask16 ath_visible_avx512(int g, int lo, int hi) {
    __m512i token = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                     _mm512_set1_epi32(16 * g));
    __mmask16 above = _mm512_cmpge_epi32_mask(token, _mm512_set1_epi32(lo));
    return _mm512_mask_cmplt_epi32_mask(above, token, _mm512_set1_epi32(hi));
}

/* ath_eq_scale of 16 bytes: 2^(i/4) with i = e - 128 clamped to +-16 is a root of 2 and an exponent. */
ATH_INLINE __m512 ath_eq_scales_avx512(const uint8_t *e) {
    __m512i i = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)e));
    i = _mm512_sub_epi32(i, _mm512_set1_epi32(128));
    i = _mm512_max_epi32(_mm512_min_epi32(i, _mm512_set1_epi32(16)), _mm512_set1_epi32(-16));
    __m128 roots = _mm_setr_ps(1.0f, ath_eq_scale(129), ath_eq_scale(130), ath_eq_scale(131));
    __m512 root =
        _mm512_permutevar_ps(_mm512_broadcast_f32x4(roots), _mm512_and_epi32(i, _mm512_set1_epi32(3)));
    __m512i exponent = _mm512_slli_epi32(_mm512_srai_epi32(i, 2), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(root), exponent));
}

/* Butterflies between registers `half` apart; n and half are constants where it is called, so that x stays in
 * registers. */
ATH_INLINE void ath_butterflies_avx512(__m512 *x, const int n, const int half) {
    for (int i = 0; i < n; i++) {
        if (i & half) continue;
        __m512 a = x[i], b = x[i + half];
        x[i] = _mm512_add_ps(a, b);
        x[i + half] = _mm512_sub_ps(a, b);
    }
}

/* Unnormalised Walsh-Hadamard transform of 16 * n_regs values in registers, butterflies ascending. */
ATH_INLINE void ath_hadamard_avx512(__m512 *x, const int n_regs) {
    for (int i = 0; i < n_regs; i++) {
        __m512 y = _mm512_permute_ps(x[i], 0xb1);
        x[i] = _mm512_mask_sub_ps(_mm512_add_ps(x[i], y), 0xaaaa, y, x[i]);
        y = _mm512_permute_ps(x[i], 0x4e);
        x[i] = _mm512_mask_sub_ps(_mm512_add_ps(x[i], y), 0xcccc, y, x[i]);
        y = _mm512_shuffle_f32x4(x[i], x[i], 0xb1);
        x[i] = _mm512_mask_sub_ps(_mm512_add_ps(x[i], y), 0xf0f0, y, x[i]);
        y = _mm512_shuffle_f32x4(x[i], x[i], 0x4e);
        x[i] = _mm512_mask_sub_ps(_mm512_add_ps(x[i], y), 0xff00, y, x[i]);
    }
    if (n_regs > 1) ath_butterflies_avx512(x, n_regs, 1);
    if (n_regs > 2) ath_butterflies_avx512(x, n_regs, 2);
    if (n_regs > 4) ath_butterflies_avx512(x, n_regs, 4);
}

/* How 64 codes become 64 table values: every quadword gets the bytes of its 8 codes, then a byte at each
 * code's bit, then the look-up, which ignores the bits above the code because the table is repeated. */
typedef struct ath_unpack_avx512 {
    __m512i gather, shift, table;
    int64_t bytes; /* of a unit */
} ath_unpack_avx512;

/* values: table values plus offset, modulo 256. */
ATH_INLINE ath_unpack_avx512 ath_unpack_init_avx512(ath_kv_type type, int8_t offset) {
    int bits = ath_kv_turbo_bits(type);
    const int64_t iota = 0x0706050403020100;
    __m512i quad = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    ath_unpack_avx512 u = {.bytes = 8 * bits};
    u.gather = _mm512_add_epi8(_mm512_mullo_epi64(quad, _mm512_set1_epi64(bits * 0x0101010101010101)),
                               _mm512_set1_epi64(iota));
    u.shift = _mm512_set1_epi64(iota * bits);
    const void *table = ath_turbo_table(type);
    if (bits == 4)
        u.table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    else if (bits == 3)
        u.table = _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)table));
    else
        u.table = _mm512_broadcastd_epi32(_mm_loadu_si32(table));
    u.table = _mm512_add_epi8(u.table, _mm512_set1_epi8(offset));
    return u;
}

/* Reads 32 bytes. */
ATH_INLINE __m512i ath_unpack_avx512_unit(const ath_unpack_avx512 *u, const uint8_t *unit) {
    __m512i x = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)unit));
    x = _mm512_multishift_epi64_epi8(u->shift, _mm512_permutexvar_epi8(u->gather, x));
    return _mm512_permutexvar_epi8(x, u->table);
}

#endif
