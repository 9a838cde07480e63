/* Attention on pages of blocks with AVX2: integers and queries or weights in words, which vpmaddwd multiplies
 * and adds in pairs. */
#include "kernels/attention_blocks_avx2.h"

enum { EIGHTHS = ATH_PAGE_TOKENS / 8 };

ATH_INLINE int32_t load_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Up to 4 queries in words, channels in the order 0, 2, 1, 3 of each four; sums over blocks. */
typedef struct wide_queries {
    int16_t q[4][ATH_MAX_HEAD_DIM];
    int32_t sums[4][ATH_MAX_HEAD_DIM / ATH_KV_BLOCK];
} wide_queries;

static int32_t sum_of_words(__m256i words) {
    __m256i x = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
}

static void widen_query(const ath_turbo_query *q, int n, int16_t *out, int32_t *sums) {
    for (int c = 0; c < n; c += 16) {
        __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q->high + c)));
        __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q->low + c)));
        __m256i words = _mm256_add_epi16(_mm256_slli_epi16(high, 8), low);
        if (c % ATH_KV_BLOCK == 0) sums[c / ATH_KV_BLOCK] = 0;
        sums[c / ATH_KV_BLOCK] += sum_of_words(words);
        words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(out + c), words);
    }
}

/* 8 tokens against n heads, a constant where it is called. at: of the first token. */
ATH_INLINE void scores_eight(const int n, const ath_block_kind kind, const ath_kv_layout *layout,
                             const uint8_t *at, const ath_turbo_query *q, const wide_queries *wide,
                             float *scores, const uint8_t *next) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    __m256i tokens = ath_block_tokens_avx2(row_bytes);
    __m256 score[4];
    for (int h = 0; h < n; h++) score[h] = _mm256_set1_ps(q[h].bias);
    for (int p = 0, b = 0; p < layout->n_parts; p++)
        for (int end = b + layout->part_dim[p] / ATH_KV_BLOCK; b < end; b++, at += kind.bytes) {
            ath_block_fetch(next, 8 * b * kind.bytes, 8 * (b + 1) * kind.bytes);
            __m256i x[8], dot[4];
            __m256 d, m;
            ath_block_scales_avx2(tokens, at, &d, &m);
            m = ath_block_centred_avx2(kind, d, m);
            ath_block_tile_avx2(kind, tokens, at, row_bytes, x);
            for (int h = 0; h < n; h++) dot[h] = _mm256_setzero_si256();
            ATH_UNROLL
            for (int j = 0; j < 8; j++) {
                __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x[j], 8), 8),
                        odd = _mm256_srai_epi16(x[j], 8);
                ATH_UNROLL
                for (int h = 0; h < n; h++) {
                    const int16_t *words = &wide->q[h][ATH_KV_BLOCK * b + 4 * j];
                    __m256i of_even = _mm256_set1_epi32(load_4_bytes(words));
                    __m256i of_odd = _mm256_set1_epi32(load_4_bytes(words + 2));
                    dot[h] = _mm256_add_epi32(dot[h], _mm256_madd_epi16(even, of_even));
                    dot[h] = _mm256_add_epi32(dot[h], _mm256_madd_epi16(odd, of_odd));
                }
            }
            for (int h = 0; h < n; h++) {
                __m256 step = _mm256_set1_ps(q[h].step[p]);
                score[h] = _mm256_fmadd_ps(_mm256_mul_ps(d, step), _mm256_cvtepi32_ps(dot[h]), score[h]);
                if (!kind.has_minimum) continue;
                __m256 sum = _mm256_set1_ps((float)wide->sums[h][b]);
                score[h] = _mm256_fmadd_ps(_mm256_mul_ps(m, step), sum, score[h]);
            }
        }
    for (int h = 0; h < n; h++) _mm256_storeu_ps(scores + h * ATH_PAGE_TOKENS, score[h]);
}

/* Up to 4 heads. */
ATH_INLINE void scores_page(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            const ath_turbo_query *q, int n, int group0, int group1, float *scores,
                            const uint8_t *next) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    wide_queries wide;
    for (int h = 0; h < n; h++) widen_query(&q[h], layout->head_dim, wide.q[h], wide.sums[h]);
    ath_block_fetch(next, (int64_t)layout->mean_at, (int64_t)layout->bytes);
    for (int t = 16 * group0; t < 16 * group1; t += 8) {
        const uint8_t *at = page + t * row_bytes, *fetched = next ? next + t * row_bytes : NULL;
        if (n == 4)
            scores_eight(4, kind, layout, at, q, &wide, scores + t, fetched);
        else if (n == 3)
            scores_eight(3, kind, layout, at, q, &wide, scores + t, fetched);
        else if (n == 2)
            scores_eight(2, kind, layout, at, q, &wide, scores + t, fetched);
        else
            scores_eight(1, kind, layout, at, q, &wide, scores + t, fetched);
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

/* One block of all tokens: words of two neighbouring tokens in a dword, dwords are channels; scales, minima.
 */
typedef struct block_column {
    __m256i words[ATH_PAGE_TOKENS / 2][4];
    __m256 d[EIGHTHS], m[EIGHTHS];
} block_column;

ATH_INLINE void unpack_column(const ath_block_kind kind, const uint8_t *at, int64_t row_bytes,
                              block_column *col, const uint8_t *next) {
    __m256i tokens = ath_block_tokens_avx2(row_bytes);
    for (int i = 0; i < EIGHTHS; i++) {
        ath_block_fetch(next, 8 * i * kind.bytes, 8 * (i + 1) * kind.bytes);
        ath_block_scales_avx2(tokens, at + 8 * i * row_bytes, &col->d[i], &col->m[i]);
        col->m[i] = ath_block_centred_avx2(kind, col->d[i], col->m[i]);
    }
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 2, at += 2 * row_bytes) {
        __m256i first = ath_block_row_avx2(kind, at), second = ath_block_row_avx2(kind, at + row_bytes);
        __m256i low = _mm256_unpacklo_epi8(first, second), high = _mm256_unpackhi_epi8(first, second);
        col->words[t / 2][0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(low));
        col->words[t / 2][1] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(high));
        col->words[t / 2][2] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(low, 1));
        col->words[t / 2][3] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(high, 1));
    }
}

/* Weights times scales of a column as words; returns the value of a step. */
static float quantise_weights(const block_column *col, int lo, int hi, const float *weights, int16_t *out) {
    const __m256 sign = _mm256_set1_ps(-0.0f), most = _mm256_set1_ps((float)ATH_QUERY_STEPS);
    __m256 w[EIGHTHS], max = _mm256_setzero_ps();
    for (int i = 0; i < EIGHTHS; i++) {
        w[i] = _mm256_mul_ps(_mm256_loadu_ps(weights + 8 * i), col->d[i]);
        w[i] = _mm256_and_ps(w[i], ath_visible_avx2(8 * i, lo, hi));
        max = _mm256_max_ps(_mm256_andnot_ps(sign, w[i]), max);
    }
    float top = ath_max_lanes_avx2(max);
    __m256 inverse = _mm256_set1_ps(top > 0.0f ? (float)ATH_QUERY_STEPS / top : 0.0f);
    for (int i = 0; i < EIGHTHS; i += 2) {
        __m256i integers[2];
        for (int j = 0; j < 2; j++) {
            __m256 y = _mm256_min_ps(_mm256_mul_ps(w[i + j], inverse), most);
            integers[j] = _mm256_cvtps_epi32(_mm256_max_ps(y, _mm256_xor_ps(most, sign)));
        }
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(integers[0], integers[1]), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(out + 8 * i), words);
    }
    return top * (1.0f / (float)ATH_QUERY_STEPS);
}

/* The 32 channels of a column times one head's weights. */
static void accumulate_column(const block_column *col, const int16_t *w, float step, float *acc) {
    __m256i dot[4];
    for (int j = 0; j < 4; j++) dot[j] = _mm256_setzero_si256();
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 2) {
        __m256i x = _mm256_set1_epi32(load_4_bytes(w + t));
        ATH_UNROLL
        for (int j = 0; j < 4; j++)
            dot[j] = _mm256_add_epi32(dot[j], _mm256_madd_epi16(col->words[t / 2][j], x));
    }
    for (int j = 0; j < 4; j++) {
        __m256 old = _mm256_loadu_ps(acc + 8 * j);
        _mm256_storeu_ps(acc + 8 * j, _mm256_fmadd_ps(_mm256_set1_ps(step), _mm256_cvtepi32_ps(dot[j]), old));
    }
}

static void accumulate_minima(const block_column *col, int lo, int hi, const float *weights, float *acc) {
    __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int i = 0; i < EIGHTHS; i++) {
        __m256 visible = ath_visible_avx2(8 * i, lo, hi);
        __m256 w = _mm256_and_ps(_mm256_loadu_ps(weights + 8 * i), visible),
               m = _mm256_and_ps(col->m[i], visible);
        lanes[i % 2] = _mm256_fmadd_ps(w, m, lanes[i % 2]);
    }
    __m256 sum = _mm256_set1_ps(ath_sum_lanes_avx2(lanes[0], lanes[1]));
    for (int i = 0; i < ATH_KV_BLOCK; i += 8)
        _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), sum));
}

ATH_INLINE void accumulate_page(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                                int lo, int hi, const float *weights, int n, float *acc,
                                const uint8_t *next) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    block_column col;
    for (int c = 0; c < layout->head_dim; c += ATH_KV_BLOCK, page += kind.bytes) {
        unpack_column(kind, page, row_bytes, &col,
                      next ? next + c / ATH_KV_BLOCK * ATH_PAGE_TOKENS * kind.bytes : NULL);
        for (int h = 0; h < n; h++) {
            int16_t words[ATH_PAGE_TOKENS];
            float *out = acc + (int64_t)h * layout->head_dim + c;
            float step = quantise_weights(&col, lo, hi, weights + h * ATH_PAGE_TOKENS, words);
            accumulate_column(&col, words, step, out);
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

void ath_attn_blocks_init_avx2(ath_attn_kernels *k) {
    k->block_scores = block_scores;
    k->block_accumulate = block_accumulate;
}
