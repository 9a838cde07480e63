/* What the AVX2 kernels on cache pages share. Only files compiled for AVX2 include it. */
#ifndef ATH_KERNELS_ATTENTION_AVX2_H
#define ATH_KERNELS_ATTENTION_AVX2_H

#include <immintrin.h>

#include "kernels/attention_x86.h"

/* Lanes 0..7 and 8..15, halves first, as ath_sum_lanes. */
ATH_INLINE float ath_sum_lanes_avx2(__m256 low, __m256 high) {
    __m256 y = _mm256_add_ps(low, high);
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

ATH_INLINE float ath_max_lanes_avx2(__m256 x) {
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

ATH_INLINE __m256 ath_load_f16_avx2(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

ATH_INLINE __m256 ath_load_bf16_avx2(const void *p) {
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

/* All ones in the lanes t .. t + 7 of a page that lie in [lo, hi). */
ATH_INLINE __m256 ath_visible_avx2(int t, int lo, int hi) {
    __m256i token = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(t));
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), token);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), token)));
}

/* ath_eq_scale of 8 bytes: 2^(i/4) with i = e - 128 clamped to +-16 is a root of 2 and an exponent. */
ATH_INLINE __m256 ath_eq_scales_avx2(const uint8_t *e) {
    __m256i i = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)e));
    i = _mm256_sub_epi32(i, _mm256_set1_epi32(128));
    i = _mm256_max_epi32(_mm256_min_epi32(i, _mm256_set1_epi32(16)), _mm256_set1_epi32(-16));
    __m256 roots =
        _mm256_broadcast_ps(&(__m128){1.0f, ath_eq_scale(129), ath_eq_scale(130), ath_eq_scale(131)});
    __m256 root = _mm256_permutevar_ps(roots, _mm256_and_si256(i, _mm256_set1_epi32(3)));
    __m256i exponent = _mm256_slli_epi32(_mm256_srai_epi32(i, 2), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(root), exponent));
}

/* Butterflies of rows of 8 lanes, x[n][8], ascending from rows `half` apart. */
ATH_INLINE void ath_butterfly_rows_avx2(float *x, int n) {
    for (int half = 1; half < n; half *= 2)
        for (int i = 0; i < n; i++) {
            if (i & half) continue;
            __m256 a = _mm256_loadu_ps(x + 8 * i), b = _mm256_loadu_ps(x + 8 * (i + half));
            _mm256_storeu_ps(x + 8 * i, _mm256_add_ps(a, b));
            _mm256_storeu_ps(x + 8 * (i + half), _mm256_sub_ps(a, b));
        }
}

/* Unnormalised Walsh-Hadamard transform of n contiguous values, butterflies ascending. */
ATH_INLINE void ath_hadamard_avx2(float *x, int n) {
    const __m256 odd = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 pairs = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 fours = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    for (int i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        v = _mm256_add_ps(_mm256_permute_ps(v, 0xb1), _mm256_xor_ps(v, odd));
        v = _mm256_add_ps(_mm256_permute_ps(v, 0x4e), _mm256_xor_ps(v, pairs));
        v = _mm256_add_ps(_mm256_permute2f128_ps(v, v, 0x01), _mm256_xor_ps(v, fours));
        _mm256_storeu_ps(x + i, v);
    }
    ath_butterfly_rows_avx2(x, n / 8);
}

/* How 32 codes become 32 bytes: every dword gets the bytes of its 4 codes, shifted down, then spread in two
 * steps. */
typedef struct ath_unpack_avx2 {
    __m256i gather, shift, pair_mask, code_mask, table;
    int bits;
    int64_t bytes; /* of a unit of 64 codes */
} ath_unpack_avx2;

ATH_INLINE ath_unpack_avx2 ath_unpack_init_avx2(ath_kv_type type) {
    int bits = ath_kv_turbo_bits(type), code = (1 << bits) - 1, pair = (1 << 2 * bits) - 1;
    uint8_t gather[32], table[16];
    int32_t shift[8];
    for (int lane = 0; lane < 8; lane++) {
        int bit = 4 * bits * lane;
        shift[lane] = bit % 8;
        for (int i = 0; i < 4; i++) gather[4 * lane + i] = (uint8_t)(i < 2 ? bit / 8 + i : 0x80);
    }
    for (int i = 0; i < 16; i++) table[i] = (uint8_t)ath_turbo_table(type)[i & code];
    return (ath_unpack_avx2){
        .gather = _mm256_loadu_si256((const __m256i *)(const void *)gather),
        .shift = _mm256_loadu_si256((const __m256i *)(const void *)shift),
        .pair_mask = _mm256_set1_epi32(pair | pair << 16),
        .code_mask = _mm256_set1_epi8((char)code),
        .table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table)),
        .bits = bits,
        .bytes = 8 * bits};
}

/* Table values of codes 32 * half ... of a unit. Reads 16 bytes from there. */
ATH_INLINE __m256i ath_unpack_avx2_half(const ath_unpack_avx2 *u, const uint8_t *unit, int half) {
    __m128i raw = _mm_loadu_si128((const __m128i *)(const void *)(unit + half * 4 * u->bits));
    __m256i x = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(raw), u->gather);
    x = _mm256_srlv_epi32(x, u->shift);
    x = _mm256_or_si256(x, _mm256_slli_epi32(x, 16 - 2 * u->bits));
    x = _mm256_and_si256(x, u->pair_mask);
    x = _mm256_or_si256(x, _mm256_slli_epi32(x, 8 - u->bits));
    x = _mm256_and_si256(x, u->code_mask);
    return _mm256_shuffle_epi8(u->table, x);
}

#endif
