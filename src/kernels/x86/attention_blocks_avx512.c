/* Attention on pages of blocks with AVX-512. The blocks lie token by token; 16 tokens at a time are
 * transposed in registers, once for all heads. */
#include <string.h>

#include "kernels/attention_blocks_avx512.h"

enum { GROUPS = ATH_PAGE_TOKENS / 16, MAX_BLOCKS = ATH_MAX_HEAD_DIM / ATH_KV_BLOCK };

ATH_INLINE int32_t load_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Sums of a query's integers over blocks. */
static void sum_blocks(const ath_turbo_query *q, int n_blocks, int32_t *sums) {
    const __m256i ones = _mm256_set1_epi8(1);
    for (int b = 0; b < n_blocks; b++) {
        const void *high = q->high + ATH_KV_BLOCK * b, *low = q->low + ATH_KV_BLOCK * b;
        __m256i h =
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, _mm256_loadu_si256((const __m256i *)high));
        __m256i x =
            _mm256_dpbusd_epi32(_mm256_slli_epi32(h, 8), ones, _mm256_loadu_si256((const __m256i *)low));
        __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
        sums[b] = _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
    }
}

/* 16 tokens against n heads, a constant where it is called. at: of the first token; sums: [n][MAX_BLOCKS]. */
ATH_INLINE void scores_group(const int n, const ath_block_kind kind, const ath_block_unpack *unpack,
                             const ath_kv_layout *layout, const uint8_t *at, const ath_turbo_query *q,
                             int32_t (*sums)[MAX_BLOCKS], float *scores, const uint8_t *next) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    __m512 score[4];
    for (int h = 0; h < n; h++) score[h] = _mm512_set1_ps(q[h].bias);
    for (int p = 0, b = 0; p < layout->n_parts; p++)
        for (int end = b + layout->part_dim[p] / ATH_KV_BLOCK; b < end; b++, at += kind.bytes) {
            ath_block_fetch(next, 16 * b * kind.bytes, 16 * (b + 1) * kind.bytes);
            __m512i codes[8], high[4], low[4];
            __m512 d, m;
            ath_block_scales_avx512(unpack, at, &d, &m);
            m = ath_block_centred_avx512(kind, d, m);
            ath_block_tile_avx512(kind, true, unpack, at, row_bytes, codes);
            for (int h = 0; h < n; h++) {
                high[h] = _mm512_setzero_si512();
                low[h] = _mm512_set1_epi32(-ath_block_bias(kind) * sums[h][b]);
            }
            ATH_UNROLL
            for (int j = 0; j < 8; j++) {
                int c = ATH_KV_BLOCK * b + 4 * j;
                ATH_UNROLL
                for (int h = 0; h < n; h++) {
                    __m512i hq = _mm512_set1_epi32(load_4_bytes(q[h].high + c));
                    ath_dot_avx512(&high[h], codes[j], hq);
                    __m512i lq = _mm512_set1_epi32(load_4_bytes(q[h].low + c));
                    ath_dot_avx512(&low[h], codes[j], lq);
                }
            }
            for (int h = 0; h < n; h++) {
                __m512 step = _mm512_set1_ps(q[h].step[p]);
                __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[h], 8), low[h]));
                score[h] = _mm512_fmadd_ps(_mm512_mul_ps(d, step), dot, score[h]);
                if (!kind.has_minimum) continue;
                __m512 sum = _mm512_set1_ps((float)sums[h][b]);
                score[h] = _mm512_fmadd_ps(_mm512_mul_ps(m, step), sum, score[h]);
            }
        }
    for (int h = 0; h < n; h++) _mm512_storeu_ps(scores + h * ATH_PAGE_TOKENS, score[h]);
}

/* Up to 4 heads. */
ATH_INLINE void scores_page(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            const ath_turbo_query *q, int n, int group0, int group1, float *scores,
                            const uint8_t *next) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    ath_block_unpack unpack = ath_block_unpack_avx512(kind, true, row_bytes);
    int32_t sums[4][MAX_BLOCKS];
    for (int h = 0; h < n; h++) sum_blocks(&q[h], layout->head_dim / ATH_KV_BLOCK, sums[h]);
    ath_block_fetch(next, (int64_t)layout->mean_at, (int64_t)layout->bytes);
    for (int g = group0; g < group1; g++) {
        const uint8_t *at = page + 16 * g * row_bytes;
        float *out = scores + 16 * g;
        const uint8_t *fetched = next ? next + 16 * g * row_bytes : NULL;
        if (n == 4)
            scores_group(4, kind, &unpack, layout, at, q, sums, out, fetched);
        else if (n == 3)
            scores_group(3, kind, &unpack, layout, at, q, sums, out, fetched);
        else if (n == 2)
            scores_group(2, kind, &unpack, layout, at, q, sums, out, fetched);
        else
            scores_group(1, kind, &unpack, layout, at, q, sums, out, fetched);
    }
}

static void block_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores, const uint8_t *next) {
    for (int i = 0; i < n; i += 4, q += 4, scores += 4 * ATH_PAGE_TOKENS) {
        int heads = n - i < 4 ? n - i : 4;
#define SCORES(kind) scores_page(kind, layout, page, q, heads, group0, group1, scores, i ? NULL : next)
        ATH_BLOCK_DISPATCH(layout->type, SCORES);
#undef SCORES
    }
}

/* One block of all tokens: tiles, scales, minima. */
typedef struct block_column {
    __m512i codes[GROUPS][8];
    __m512 d[GROUPS], m[GROUPS];
} block_column;

/* Weights of one head times the scales of a column, in 16 bits: the bytes of 128 tokens. */
typedef struct weight_bytes {
    int8_t high[ATH_PAGE_TOKENS], low[ATH_PAGE_TOKENS];
    float step;
    int32_t sum;
} weight_bytes;

static void quantise_weights(const block_column *col, int lo, int hi, const float *weights,
                             weight_bytes *out) {
    const float most = (float)ATH_QUERY_STEPS;
    __m512 w[GROUPS], max = _mm512_setzero_ps();
    for (int g = 0; g < GROUPS; g++) {
        w[g] =
            _mm512_maskz_mul_ps(ath_visible_avx512(g, lo, hi), _mm512_loadu_ps(weights + 16 * g), col->d[g]);
        max = _mm512_max_ps(_mm512_abs_ps(w[g]), max);
    }
    float top = _mm512_reduce_max_ps(max);
    __m512 inverse = _mm512_set1_ps(top > 0.0f ? most / top : 0.0f);
    __m512i total = _mm512_setzero_si512();
    for (int g = 0; g < GROUPS; g++) {
        __m512 y = _mm512_min_ps(_mm512_mul_ps(w[g], inverse), _mm512_set1_ps(most));
        __m512i integer = _mm512_cvtps_epi32(_mm512_max_ps(y, _mm512_set1_ps(-most)));
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(integer, _mm512_set1_epi32(128)), 8);
        total = _mm512_add_epi32(total, integer);
        _mm_storeu_si128((__m128i *)(void *)(out->high + 16 * g), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((__m128i *)(void *)(out->low + 16 * g), _mm512_cvtepi32_epi8(integer));
    }
    out->step = top * (1.0f / (float)ATH_QUERY_STEPS);
    out->sum = _mm512_reduce_add_epi32(total);
}

/* Sums of the four lanes of x[0] ... x[3], one after the other. */
ATH_INLINE __m512i sum_lanes_of_four(const __m512i *x) {
    __m512i a =
        _mm512_add_epi32(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    __m512i b =
        _mm512_add_epi32(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* The 32 channels of a column times one head's weights; bias: of the codes. */
static void accumulate_column(const block_column *col, const weight_bytes *w, int bias, float *acc) {
    const __m512i quads = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512i high[8], low[8];
    ATH_UNROLL
    for (int j = 0; j < 8; j++) high[j] = low[j] = _mm512_setzero_si512();
    for (int g = 0; g < GROUPS; g++) {
        __m128i hb = _mm_loadu_si128((const __m128i *)(const void *)(w->high + 16 * g));
        __m128i lb = _mm_loadu_si128((const __m128i *)(const void *)(w->low + 16 * g));
        __m512i hw = _mm512_permutexvar_epi32(quads, _mm512_castsi128_si512(hb));
        __m512i lw = _mm512_permutexvar_epi32(quads, _mm512_castsi128_si512(lb));
        ATH_UNROLL
        for (int j = 0; j < 8; j++) {
            ath_dot_avx512(&high[j], col->codes[g][j], hw);
            ath_dot_avx512(&low[j], col->codes[g][j], lw);
        }
    }
    ATH_UNROLL
    for (int j = 0; j < 8; j++) low[j] = _mm512_add_epi32(_mm512_slli_epi32(high[j], 8), low[j]);
    for (int i = 0; i < 2; i++) {
        __m512i dot = _mm512_sub_epi32(sum_lanes_of_four(low + 4 * i), _mm512_set1_epi32(bias * w->sum));
        __m512 y =
            _mm512_fmadd_ps(_mm512_set1_ps(w->step), _mm512_cvtepi32_ps(dot), _mm512_loadu_ps(acc + 16 * i));
        _mm512_storeu_ps(acc + 16 * i, y);
    }
}

static void accumulate_minima(const block_column *col, int lo, int hi, const float *weights, float *acc) {
    __m512 lanes = _mm512_setzero_ps();
    for (int g = 0; g < GROUPS; g++)
        lanes = _mm512_mask3_fmadd_ps(_mm512_loadu_ps(weights + 16 * g), col->m[g], lanes,
                                      ath_visible_avx512(g, lo, hi));
    __m512 sum = _mm512_set1_ps(ath_sum_lanes_avx512(lanes));
    for (int i = 0; i < ATH_KV_BLOCK; i += 16)
        _mm512_storeu_ps(acc + i, _mm512_add_ps(_mm512_loadu_ps(acc + i), sum));
}

ATH_INLINE void accumulate_page(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                                int lo, int hi, const float *weights, int n, float *acc,
                                const uint8_t *next) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    ath_block_unpack unpack = ath_block_unpack_avx512(kind, false, row_bytes);
    block_column col;
    for (int c = 0; c < layout->head_dim; c += ATH_KV_BLOCK, page += kind.bytes) {
        for (int g = 0; g < GROUPS; g++) {
            const uint8_t *at = page + 16 * g * row_bytes;
            __m512i codes[8];
            int64_t piece = (c / ATH_KV_BLOCK * GROUPS + g) * 16 * kind.bytes;
            ath_block_fetch(next, piece, piece + 16 * kind.bytes);
            ath_block_scales_avx512(&unpack, at, &col.d[g], &col.m[g]);
            col.m[g] = ath_block_centred_avx512(kind, col.d[g], col.m[g]);
            ath_block_tile_avx512(kind, false, &unpack, at, row_bytes, codes);
            ATH_UNROLL
            for (int j = 0; j < 8; j++) col.codes[g][j] = codes[j];
        }
        for (int h = 0; h < n; h++) {
            weight_bytes w;
            float *out = acc + (int64_t)h * layout->head_dim + c;
            quantise_weights(&col, lo, hi, weights + h * ATH_PAGE_TOKENS, &w);
            accumulate_column(&col, &w, ath_block_bias(kind), out);
            if (kind.has_minimum) accumulate_minima(&col, lo, hi, weights + h * ATH_PAGE_TOKENS, out);
        }
    }
}

static void block_accumulate(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc, const uint8_t *next) {
#define VALUES(kind) accumulate_page(kind, layout, page, lo, hi, weights, n, acc, next)
    ATH_BLOCK_DISPATCH(layout->type, VALUES);
#undef VALUES
}

void ath_attn_blocks_init_avx512(ath_attn_kernels *k) {
    k->block_scores = block_scores;
    k->block_accumulate = block_accumulate;
}
