/* How AVX2 kernels read blocks: as signed bytes, 8 tokens with a dword each (K), or a token with its channels
 * in order (V). Only files compiled for AVX2 include it. */
#ifndef ATH_KERNELS_ATTENTION_BLOCKS_AVX2_H
#define ATH_KERNELS_ATTENTION_BLOCKS_AVX2_H

#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx2.h"
#include "kernels/attention_blocks_x86.h"

ATH_INLINE __m256i ath_block_table_avx2(void) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)ath_block_table()));
}

/* Codes of 4 or 5 bits to integers: nibbles, and the bytes of the mask `fifth` whose fifth bit is set. */
ATH_INLINE __m256i ath_block_integers_avx2(const ath_block_kind kind, __m256i nibbles, __m256i fifth) {
    if (kind.has_table) return _mm256_shuffle_epi8(ath_block_table_avx2(), nibbles);
    if (kind.bits == 5) nibbles = _mm256_or_si256(nibbles, _mm256_and_si256(fifth, _mm256_set1_epi8(16)));
    return kind.offset ? _mm256_sub_epi8(nibbles, _mm256_set1_epi8((char)kind.offset)) : nibbles;
}

/* Offsets of 8 tokens. */
ATH_INLINE __m256i ath_block_tokens_avx2(int64_t row_bytes) {
    return _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)row_bytes));
}

/* Scales and minima of 8 tokens. */
ATH_INLINE void ath_block_scales_avx2(__m256i tokens, const uint8_t *at, __m256 *d, __m256 *m) {
    __m256i x = _mm256_i32gather_epi32((const int *)(const void *)at, tokens, 1);
    __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff)), high = _mm256_srli_epi32(x, 16);
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
}

/* Minima of the integers of a type that has minima, from those of its codes. */
ATH_INLINE __m256 ath_block_centred_avx2(const ath_block_kind kind, __m256 d, __m256 m) {
    return _mm256_fmadd_ps(_mm256_set1_ps((float)kind.offset), d, m);
}

/* Dword j of row 4k + i becomes dword i of lane k of x[j], where r[i] has rows i and 4 + i in its lanes; and
 * back. */
ATH_INLINE void ath_transpose_dwords_avx2(const __m256i *r, __m256i *x) {
    __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    x[0] = _mm256_unpacklo_epi64(a, c), x[1] = _mm256_unpackhi_epi64(a, c);
    x[2] = _mm256_unpacklo_epi64(b, d), x[3] = _mm256_unpackhi_epi64(b, d);
}

/* Bytes 4j ... 4j + 3 of 16 bytes of 8 tokens become the dwords of x[j]. */
ATH_INLINE void ath_transpose_tokens_avx2(const uint8_t *at, int64_t stride, __m256i *x) {
    __m256i r[4];
    ATH_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m128i *first = (const __m128i *)(const void *)(at + i * stride);
        const __m128i *second = (const __m128i *)(const void *)(at + (4 + i) * stride);
        __m128i low = _mm_loadu_si128(first), high = _mm_loadu_si128(second);
        r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    ath_transpose_dwords_avx2(r, x);
}

/* One block of 8 tokens: dwords of x[j] are channels 4j ... 4j + 3 of a token. */
ATH_INLINE void ath_block_tile_avx2(const ath_block_kind kind, __m256i tokens, const uint8_t *at,
                                    int64_t row_bytes, __m256i *x) {
    ath_transpose_tokens_avx2(at + kind.codes_at, row_bytes, x);
    if (kind.bits == 8) {
        ath_transpose_tokens_avx2(at + kind.codes_at + 16, row_bytes, x + 4);
        return;
    }
    __m256i bits = tokens;
    if (kind.bits == 5)
        bits = _mm256_i32gather_epi32((const int *)(const void *)(at + kind.high_at), tokens, 1);
    ATH_UNROLL
    for (int j = 0; j < 4; j++) {
        x[j + 4] = _mm256_and_si256(_mm256_srli_epi16(x[j], 4), _mm256_set1_epi8(15));
        x[j] = _mm256_and_si256(x[j], _mm256_set1_epi8(15));
    }
    ATH_UNROLL
    for (int j = 0; j < 8; j++) {
        /* byte j / 2 of every token's bits, four times; of it the bits of 4 channels */
        __m256i same =
            _mm256_add_epi32(_mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12), _mm256_set1_epi32(j / 2));
        same = _mm256_mullo_epi32(same, _mm256_set1_epi32(0x01010101));
        __m256i one = _mm256_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
        __m256i fifth = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, same), one), one);
        x[j] = ath_block_integers_avx2(kind, x[j], fifth);
    }
}

/* One block of a token, channels in order. */
ATH_INLINE __m256i ath_block_row_avx2(const ath_block_kind kind, const uint8_t *at) {
    const __m128i *codes = (const __m128i *)(const void *)(at + kind.codes_at);
    if (kind.bits == 8) return _mm256_loadu_si256((const __m256i *)(const void *)codes);
    __m128i packed = _mm_loadu_si128(codes);
    __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
    __m256i fifth = x;
    if (kind.bits == 5) {
        int32_t bits;
        memcpy(&bits, at + kind.high_at, sizeof bits);
        __m256i eights = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        __m256i one = _mm256_set1_epi64x((int64_t)0x8040201008040201);
        fifth = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), eights);
        fifth = _mm256_cmpeq_epi8(_mm256_and_si256(fifth, one), one);
    }
    return ath_block_integers_avx2(kind, _mm256_and_si256(x, _mm256_set1_epi8(15)), fifth);
}

#endif
