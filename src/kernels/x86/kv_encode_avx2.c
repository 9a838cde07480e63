/* Encoding of pages with AVX2: the bytes of ath_kv_encode_page, 8 tokens at a time. */
#include <string.h>

#include "kernels/attention_blocks_avx2.h"
#include "kernels/lanes.h"
#include "kernels/trellis_x86.h"

enum { TOKENS = ATH_PAGE_TOKENS, COLUMN = 8, STRIP = ATH_TRELLIS_LANES_AVX2 };

/* 8 rows of 8 f16 values, `stride` apart, to the columns x[8][TOKENS]. */
static void transpose(const uint16_t *rows, int64_t stride, float *x) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = vf_load_f16(rows + i * stride);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) /* r[i + j]: columns j, 4 + j of rows i to i + 3 */
        for (int j = 0; j < 4; j++) {
            __m256d low = _mm256_castps_pd(t[i + j / 2]), high = _mm256_castps_pd(t[i + j / 2 + 2]);
            r[i + j] =
                _mm256_castpd_ps(j % 2 ? _mm256_unpackhi_pd(low, high) : _mm256_unpacklo_pd(low, high));
        }
    for (int j = 0; j < 4; j++) {
        vf_store(x + j * TOKENS, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
        vf_store(x + (4 + j) * TOKENS, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
    }
}

static void hadamard_column(float *x, int dim) {
    ath_butterfly_rows_avx2(x, dim);
}

static void trellis_strip(const ath_turbo_code *code, const int16_t (*x)[STRIP], int n,
                          uint16_t (*words)[STRIP], int32_t *squares) {
    ath_trellis_strip_avx2(code, x, n, words, squares);
}

ATH_INLINE void symbols_write(uint8_t **at, bool is_key, vi x, int n_bytes) {
    const __m128i by_place = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    uint8_t bytes[32];
    x = _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(by_place));
    if (is_key) x = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)bytes, x);
    if (is_key) {
        for (int i = 0; i < n_bytes; i++) memcpy(at[0] + 16 * i, bytes + 8 * i, 8);
        at[0] += 16 * n_bytes;
        return;
    }
    for (int i = 0; i < 2; i++, at[i - 1] += 4 * n_bytes) memcpy(at[i], bytes + 16 * i, 4 * (size_t)n_bytes);
}

ATH_INLINE vi count_thresholds(const float *thresholds, int bits, vf u) {
    const int n = (1 << bits) - 1;
    vi count = vi_set(0);
    for (int i = 0; i < 15 && i < n; i++) /* the 15 is for the compiler, which then unrolls */
        count = vi_increment(count, vf_ge(u, vf_set(thresholds[i])));
    return count;
}

static void store_quads(const vi *quads, uint8_t *at, int64_t row_bytes) {
    vi rows[4];
    ath_transpose_dwords_avx2(quads, rows);
    for (int i = 0; i < 4; i++, at += row_bytes) {
        _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(rows[i]));
        _mm_storeu_si128((__m128i *)(void *)(at + 4 * row_bytes), _mm256_extracti128_si256(rows[i], 1));
    }
}

#include "kernels/kv_encode_x86.h"

void ath_kv_encode_avx2(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    encode(layout, tile, out, scratch);
}
