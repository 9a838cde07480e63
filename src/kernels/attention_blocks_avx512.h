/* How AVX-512 kernels read blocks. A tile is one block of 16 tokens: 8 registers of unsigned bytes, which are
 * the block's integers plus a bias. Their dwords hold four channels of a token (K) or a channel of four
 * tokens (V), so that vpdpbusd sums what belongs together. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_ATTENTION_BLOCKS_AVX512_H
#define ATH_KERNELS_ATTENTION_BLOCKS_AVX512_H

#include "kernels/attention_avx512.h"
#include "kernels/attention_blocks_x86.h"

/* What is added to a block's integers to make unsigned bytes of them. */
ATH_INLINE int ath_block_bias(const ath_block_kind kind) {
    return kind.bits == 8 || kind.has_table ? 128 : kind.offset;
}

typedef struct ath_block_unpack {
    __m512i table;    /* of iq4_nl, plus the bias */
    __m512i shift[8]; /* multishift brings the fifth bits of register j's bytes to their places */
    __m512i tokens;   /* 16 of them, in bytes */
} ath_block_unpack;

ATH_INLINE ath_block_unpack ath_block_unpack_avx512(const ath_block_kind kind, bool is_key,
                                                    int64_t row_bytes) {
    ath_block_unpack u;
    __m512i token = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    u.tokens = _mm512_mullo_epi32(token, _mm512_set1_epi32((int)row_bytes));
    u.table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)ath_block_table()));
    u.table = _mm512_xor_si512(u.table, _mm512_set1_epi8(-128));
    if (kind.bits != 5) return u;
    for (int j = 0; j < 8; j++) {
        if (is_key) { /* of 4 channels in each of two tokens' 32 bits, all less 4 */
            __m512i first = _mm512_set1_epi64(0x1f1e1d1cfffefdfc);
            u.shift[j] = _mm512_add_epi8(first, _mm512_set1_epi8((char)(4 * j)));
        } else { /* channels 4j % 8 and on of bytes that hold 8 channels of a token, all less 4 */
            int64_t first = 0x352d251d140c04fc, twos = 0x0202020202020202;
            __m512i pairs = _mm512_set_epi64(twos, 0, twos, 0, twos, 0, twos, 0);
            u.shift[j] = _mm512_add_epi8(_mm512_add_epi8(_mm512_set1_epi64(first), pairs),
                                         _mm512_set1_epi8((char)(4 * (j & 1))));
        }
    }
    return u;
}

/* 16 bytes of rows 0, 4, 8 and 12 in the four lanes. */
ATH_INLINE __m512i ath_rows_of_lanes(const uint8_t *at, int64_t stride) {
    const __m128i *second = (const __m128i *)(const void *)(at + 4 * stride);
    const __m128i *third = (const __m128i *)(const void *)(at + 8 * stride);
    const __m128i *fourth = (const __m128i *)(const void *)(at + 12 * stride);
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)at));
    x = _mm512_inserti32x4(x, _mm_loadu_si128(second), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128(third), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128(fourth), 3);
}

/* Dword j of row 4k + i becomes dword i of lane k of x[j], where r[i] has rows i, 4 + i, 8 + i and 12 + i in
 * its lanes; and back. */
ATH_INLINE void ath_transpose_dwords_avx512(const __m512i *r, __m512i *x) {
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    x[0] = _mm512_unpacklo_epi64(a, c), x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d), x[3] = _mm512_unpackhi_epi64(b, d);
}

/* 16 bytes of 16 tokens. K: bytes 4j ... 4j + 3 of the tokens become the dwords of x[j]. V: byte 4j + e of
 * tokens 4i ... 4i + 3 becomes dword e of lane i of x[j]. */
ATH_INLINE void ath_transpose_rows(bool is_key, const uint8_t *at, int64_t stride, __m512i *x) {
    __m512i r[4];
    ATH_UNROLL
    for (int i = 0; i < 4; i++) r[i] = ath_rows_of_lanes(at + i * stride, stride);
    if (is_key) {
        ath_transpose_dwords_avx512(r, x);
        return;
    }
    __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
    __m512i c = _mm512_unpacklo_epi8(r[2], r[3]), d = _mm512_unpackhi_epi8(r[2], r[3]);
    x[0] = _mm512_unpacklo_epi16(a, c), x[1] = _mm512_unpackhi_epi16(a, c);
    x[2] = _mm512_unpacklo_epi16(b, d), x[3] = _mm512_unpackhi_epi16(b, d);
}

/* The codes of a tile. at: of the first token's block. */
ATH_INLINE void ath_block_tile_avx512(const ath_block_kind kind, bool is_key, const ath_block_unpack *u,
                                      const uint8_t *at, int64_t row_bytes, __m512i *x) {
    const __m512i nibble = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
    ath_transpose_rows(is_key, at + kind.codes_at, row_bytes, x);
    if (kind.bits == 8) {
        ath_transpose_rows(is_key, at + kind.codes_at + 16, row_bytes, x + 4);
        ATH_UNROLL
        for (int j = 0; j < 8; j++) x[j] = _mm512_xor_si512(x[j], _mm512_set1_epi8(-128));
        return;
    }
    ATH_UNROLL
    for (int j = 0; j < 4; j++) {
        x[j + 4] = _mm512_and_si512(_mm512_srli_epi16(x[j], 4), nibble);
        x[j] = _mm512_and_si512(x[j], nibble);
    }
    if (kind.has_table) {
        ATH_UNROLL
        for (int j = 0; j < 8; j++) x[j] = _mm512_shuffle_epi8(u->table, x[j]);
    }
    if (kind.bits == 5) {
        __m512i bits = _mm512_i32gather_epi32(u->tokens, (const void *)(at + kind.high_at), 1);
        ATH_UNROLL
        for (int j = 0; j < 8; j++) {
            __m512i of_tokens = bits;
            if (!is_key)
                of_tokens = _mm512_shuffle_epi8(bits, _mm512_set1_epi32(0x0c080400 + 0x01010101 * (j / 2)));
            __m512i shifted = _mm512_multishift_epi64_epi8(u->shift[j], of_tokens);
            x[j] = _mm512_ternarylogic_epi32(x[j], shifted, fifth, 0xf8); /* x | (shifted & fifth) */
        }
    }
}

/* Scales and minima of 16 tokens. */
ATH_INLINE void ath_block_scales_avx512(const ath_block_unpack *u, const uint8_t *at, __m512 *d, __m512 *m) {
    __m512i x = _mm512_i32gather_epi32(u->tokens, (const void *)at, 1);
    *d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
    *m = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
}

/* Minima of the integers of a type that has minima, from those of its codes. */
ATH_INLINE __m512 ath_block_centred_avx512(const ath_block_kind kind, __m512 d, __m512 m) {
    return _mm512_fmadd_ps(_mm512_set1_ps((float)kind.offset), d, m);
}

#endif
