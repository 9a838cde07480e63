/* What the AVX2 kernels on cache pages share. Only files compiled for AVX2 include it. */
#ifndef ATH_KERNELS_ATTENTION_AVX2_H
#define ATH_KERNELS_ATTENTION_AVX2_H

#include <immintrin.h>

#include "codec/turbo_tables.h"
#include "kernels/attention_x86.h"
#include "kernels/lanes.h"
#include "kernels/unpack_kind.h"

/* Operations of lanes.h for kernels that are written for AVX2 alone. */
#define ath_load_f16_avx2  vf_load_f16
#define ath_load_bf16_avx2 vf_load_bf16
#define ath_visible_avx2   vf_between
#define ath_max_lanes_avx2 vf_top
ATH_INLINE float ath_sum_lanes_avx2(__m256 low, __m256 high) {
    return vf_sum_16((const vf[]){low, high});
}

/* ath_eq_scale of 8 bytes: 2^(i/4) with i = e - 128 clamped to +-16 is a root of 2 and an exponent. */
ATH_INLINE __m256 ath_eq_scales_avx2(const uint8_t *e) {
    __m256i i = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)e));
    i = _mm256_sub_epi32(i, _mm256_set1_epi32(128));
    i = _mm256_max_epi32(_mm256_min_epi32(i, _mm256_set1_epi32(16)), _mm256_set1_epi32(-16));
    __m128 four = _mm_loadu_ps(ath_eq_scales + ATH_EQ_STEPS); /* 2^(0/4) to 2^(3/4) */
    __m256 roots = _mm256_set_m128(four, four);
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

/* How symbols become table values: 16-bit words that hold the states of two neighbouring channels of a token
 * become two bytes each, then the look-up. */
typedef struct ath_unpack_avx2 {
    __m256i table[4]; /* of 16 entries each: one, but for w = 6 */
    __m256i order;    /* V: the words of two pairs of channels and 4 tokens, from 16 bytes of planes */
    __m256i align;    /* V: powers of two that bring every word's first state to the same bit */
} ath_unpack_avx2;

ATH_INLINE void ath_unpack_table_avx2(ath_unpack_avx2 *u, const ath_turbo_code *code) {
    int8_t table[64];
    for (int i = 0; i < 64; i++) table[i] = code->table[i & ((1 << code->w) - 1)];
    for (int i = 0; i < 4; i++)
        u->table[i] =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(table + 16 * i)));
}

/* Byte (of a part's stream) and bit in it where channel c's state begins. */
ATH_INLINE int ath_unpack_byte(const ath_unpack_kind kind, int c) {
    return kind.k * c / 8;
}
ATH_INLINE int ath_unpack_bit(const ath_unpack_kind kind, int c) {
    return kind.k * c % 8;
}
/* The bit that V's words are aligned to: the largest of those. */
ATH_INLINE int ath_unpack_aligned(const ath_unpack_kind kind) {
    return kind.k == 3 ? 6 : kind.k == 2 ? 4 : 0;
}

ATH_INLINE ath_unpack_avx2 ath_unpack_keys_avx2(const ath_turbo_code *code) {
    ath_unpack_avx2 u = {.order = _mm256_setzero_si256()};
    ath_unpack_table_avx2(&u, code);
    return u;
}

ATH_INLINE ath_unpack_avx2 ath_unpack_values_avx2(const ath_turbo_code *code, const ath_unpack_kind kind) {
    ath_unpack_avx2 u;
    uint8_t order[32];
    uint16_t align[16];
    for (int i = 0; i < 16;
         i++) { /* word: token i % 4, channels 2 * (i / 4) and the next; a lane begins at its first */
        int c = i / 4 * 2, byte = ath_unpack_byte(kind, c) - ath_unpack_byte(kind, i / 8 * 4);
        order[2 * i] = (uint8_t)(4 * byte + i % 4);
        order[2 * i + 1] = (uint8_t)(4 * byte + 4 + i % 4);
        align[i] = (uint16_t)(1 << (ath_unpack_aligned(kind) - ath_unpack_bit(kind, c)));
    }
    u.order = _mm256_loadu_si256((const __m256i *)(const void *)order);
    u.align = _mm256_loadu_si256((const __m256i *)(const void *)align);
    ath_unpack_table_avx2(&u, code);
    return u;
}

ATH_INLINE __m256i ath_unpack_table_look_up(const ath_unpack_avx2 *u, const ath_unpack_kind kind,
                                            __m256i index) {
    __m256i x = _mm256_shuffle_epi8(u->table[0], index);
    if (kind.w < 6) return x;
    __m256i low = _mm256_and_si256(index, _mm256_set1_epi8(15)); /* bits 4 and 5 choose the table */
    __m256i bit4 = _mm256_slli_epi16(index, 3), bit5 = _mm256_slli_epi16(index, 2);
    x = _mm256_blendv_epi8(_mm256_shuffle_epi8(u->table[0], low), _mm256_shuffle_epi8(u->table[1], low),
                           bit4);
    __m256i y = _mm256_blendv_epi8(_mm256_shuffle_epi8(u->table[2], low),
                                   _mm256_shuffle_epi8(u->table[3], low), bit4);
    return _mm256_blendv_epi8(x, y, bit5);
}

/* Values of two states, at bits `bit` and bit + k of every word, in the word's bytes. */
ATH_INLINE __m256i ath_unpack_words(const ath_unpack_avx2 *u, const ath_unpack_kind kind, __m256i words,
                                    const int bit) {
    const int second = bit + kind.k - 8; /* how far right it must go */
    const short mask = (short)((1 << kind.L) - 1);
    __m256i low = _mm256_and_si256(_mm256_srli_epi16(words, bit), _mm256_set1_epi16(mask));
    __m256i high = second >= 0 ? _mm256_srli_epi16(words, second) : _mm256_slli_epi16(words, -second);
    __m256i x = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi16((short)(mask << 8))));
    if (kind.L > kind.w) {
        const char folded = (char)((1 << (kind.L - kind.w)) - 1), index = (char)((1 << kind.w) - 1);
        x = _mm256_xor_si256(x, _mm256_and_si256(_mm256_srli_epi16(x, kind.w), _mm256_set1_epi8(folded)));
        x = _mm256_and_si256(x, _mm256_set1_epi8(index));
    }
    return ath_unpack_table_look_up(u, kind, x);
}

/* K: values of channels c and c + 1 (of a part whose planes begin at start, c even) of 16 tokens, two bytes
 * per token. The part's stream has `size` bytes. */
ATH_INLINE __m256i ath_unpack_key_pair(const ath_unpack_avx2 *u, const ath_unpack_kind kind,
                                       const uint8_t *start, int size, int c, const int bit) {
    const uint8_t *at = start + 16 * ath_unpack_byte(kind, c);
    const uint8_t *next = at + 16 == start + 16 * size ? start : at + 16;
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)at),
            b = _mm_loadu_si128((const __m128i *)(const void *)next);
    __m256i words =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(a, b)), _mm_unpackhi_epi8(a, b), 1);
    return ath_unpack_words(u, kind, words, bit);
}

/* V: values of channels c ... c + 7 of a part and of 4 tokens whose planes of the part begin at start:
 * quadword j has channels c + 2j and c + 2j + 1, two bytes per token. */
ATH_INLINE __m256i ath_unpack_value_eight(const ath_unpack_avx2 *u, const ath_unpack_kind kind,
                                          const uint8_t *start, int size, int c) {
    const uint8_t *at = start + 4 * ath_unpack_byte(kind, c), *middle = at + 4 * ath_unpack_byte(kind, 4);
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)at), high;
    if (kind.L > kind.k && at + 4 * kind.k == start + 4 * size) { /* the last state goes on at the start */
        int32_t first;
        __builtin_memcpy(&first, start, sizeof first);
        if (kind.k == 2)
            high = _mm_insert_epi32(_mm_loadu_si32(middle), first, 1);
        else
            high = _mm_insert_epi32(_mm_loadl_epi64((const __m128i *)(const void *)middle), first, 2);
    } else {
        high = _mm_loadu_si128((const __m128i *)(const void *)middle);
    }
    __m256i words =
        _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), u->order);
    if (kind.k < 4) words = _mm256_mullo_epi16(words, u->align);
    return ath_unpack_words(u, kind, words, ath_unpack_aligned(kind));
}

/* The low, the high byte of every word, signed. */
ATH_INLINE __m256i ath_low_bytes_avx2(__m256i x) {
    return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
}
ATH_INLINE __m256i ath_high_bytes_avx2(__m256i x) {
    return _mm256_srai_epi16(x, 8);
}

#endif
