/* Encoding of pages with AVX-512: the bytes of ath_kv_encode_page, 16 tokens at a time. */
#include "kernels/attention_blocks_avx512.h"
#include "kernels/kv_column_avx512.h"
#include "kernels/lanes.h"
#include "kernels/trellis_x86.h"

enum { TOKENS = ATH_PAGE_TOKENS, COLUMN = 16, STRIP = ATH_TRELLIS_LANES_AVX512 };

/* 16 rows of 16 f16 values, `stride` apart, to the columns x[16][TOKENS]. */
static void transpose(const uint16_t *rows, int64_t stride, float *x) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = vf_load_f16(rows + i * stride);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* r[i + j]: columns j, 4 + j, 8 + j, 12 + j of rows i to i + 3 */
        for (int j = 0; j < 4; j++) {
            __m512d low = _mm512_castps_pd(t[i + j / 2]), high = _mm512_castps_pd(t[i + j / 2 + 2]);
            r[i + j] =
                _mm512_castpd_ps(j % 2 ? _mm512_unpackhi_pd(low, high) : _mm512_unpacklo_pd(low, high));
        }
    for (int j = 0; j < 4; j++) {
        __m512 even[2], odd[2]; /* columns j and 8 + j, 4 + j and 12 + j, of rows 0 to 7 and 8 to 15 */
        for (int i = 0; i < 2; i++) {
            even[i] = _mm512_shuffle_f32x4(r[8 * i + j], r[8 * i + 4 + j], 0x88);
            odd[i] = _mm512_shuffle_f32x4(r[8 * i + j], r[8 * i + 4 + j], 0xdd);
        }
        vf_store(x + j * TOKENS, _mm512_shuffle_f32x4(even[0], even[1], 0x88));
        vf_store(x + (4 + j) * TOKENS, _mm512_shuffle_f32x4(odd[0], odd[1], 0x88));
        vf_store(x + (8 + j) * TOKENS, _mm512_shuffle_f32x4(even[0], even[1], 0xdd));
        vf_store(x + (12 + j) * TOKENS, _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd));
    }
}

ATH_INLINE void hadamard_between(const int n, float *x) {
    for (int c = 0; c < 16; c++) {
        __m512 v[8];
        ath_join_blocks(n, x, c, v);
        for (int i = 0; i < n; i++) _mm512_store_ps(x + (c + 16 * i) * 16, v[i]);
    }
}

static void hadamard_column(float *x, int dim) {
    ath_hadamard_blocks(x, dim);
#define BETWEEN(n) hadamard_between(n, x)
    ATH_BLOCKS_DISPATCH(dim, BETWEEN);
#undef BETWEEN
}

static void trellis_strip(const ath_turbo_code *code, const int16_t (*x)[STRIP], int n,
                          uint16_t (*words)[STRIP], int32_t *squares) {
    ath_trellis_strip_avx512(code, x, n, words, squares);
}

ATH_INLINE void symbols_write(uint8_t **at, bool is_key, vi x, int n_bytes) {
    const __m128i by_place = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    x = _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(by_place));
    if (is_key) {
        const __m512i planes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_mask_storeu_epi32(at[0], (__mmask16)((1u << 4 * n_bytes) - 1),
                                 _mm512_permutexvar_epi32(planes, x));
        at[0] += 16 * n_bytes;
        return;
    }
    __m128i four[4] = {_mm512_castsi512_si128(x), _mm512_extracti32x4_epi32(x, 1),
                       _mm512_extracti32x4_epi32(x, 2), _mm512_extracti32x4_epi32(x, 3)};
    for (int i = 0; i < 4; i++, at[i - 1] += 4 * n_bytes)
        _mm_mask_storeu_epi32(at[i], (__mmask8)((1u << n_bytes) - 1), four[i]);
}

/* By halving. */
ATH_INLINE vi count_thresholds(const float *thresholds, int bits, vf u) {
    vi count = vi_set(0);
    for (int step = 1 << (bits - 1); step; step /= 2) {
        vf threshold = vf_look_up(thresholds, vi_add(count, vi_set(step - 1)));
        count = _mm512_mask_add_epi32(count, vf_ge(u, threshold), count, vi_set(step));
    }
    return count;
}

static void store_quads(const vi *quads, uint8_t *at, int64_t row_bytes) {
    vi rows[4];
    ath_transpose_dwords_avx512(quads, rows);
    for (int i = 0; i < 4; i++, at += row_bytes) {
        _mm_storeu_si128((__m128i *)(void *)at, _mm512_castsi512_si128(rows[i]));
        _mm_storeu_si128((__m128i *)(void *)(at + 4 * row_bytes), _mm512_extracti32x4_epi32(rows[i], 1));
        _mm_storeu_si128((__m128i *)(void *)(at + 8 * row_bytes), _mm512_extracti32x4_epi32(rows[i], 2));
        _mm_storeu_si128((__m128i *)(void *)(at + 12 * row_bytes), _mm512_extracti32x4_epi32(rows[i], 3));
    }
}

#include "kernels/kv_encode_x86.h"

void ath_kv_encode_avx512(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    encode(layout, tile, out, scratch);
}
