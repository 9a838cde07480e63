/* Attention on pages of blocks (q8_0 to iq4_nl) in C: the specification of the bits. */
#include <math.h>

#include "kernels/attention_c.h"

/* Sum of the query's integers over a block; times values, if there are any. */
static int32_t block_dot(const ath_turbo_query *q, int block, const int8_t *values) {
    int32_t dot = 0;
    for (int i = 0; i < ATH_KV_BLOCK; i++) {
        int c = ATH_KV_BLOCK * block + i;
        dot += (values ? values[i] : 1) * (256 * q->high[c] + q->low[c]);
    }
    return dot;
}

void ath_block_scores_c(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                        int group0, int group1, float *scores, const uint8_t *next) {
    (void)next;
    bool has_minimum = ath_block_kind_of(layout->type)->has_minimum;
    for (int i = 0; i < n; i++)
        for (int t = 16 * group0; t < 16 * group1; t++) scores[i * ATH_PAGE_TOKENS + t] = q[i].bias;
    for (int p = 0; p < layout->n_parts; p++) {
        int block0 = layout->part_start[p] / ATH_KV_BLOCK, blocks = layout->part_dim[p] / ATH_KV_BLOCK;
        for (int b = block0; b < block0 + blocks; b++)
            for (int t = 16 * group0; t < 16 * group1; t++) {
                int8_t values[ATH_KV_BLOCK];
                float d, m;
                ath_block_values(layout, page, (size_t)t, b, values, &d, &m);
                for (int i = 0; i < n; i++) {
                    float *s = &scores[i * ATH_PAGE_TOKENS + t];
                    *s = fmaf(d * q[i].step[p], (float)block_dot(&q[i], b, values), *s);
                    if (has_minimum) *s = fmaf(m * q[i].step[p], (float)block_dot(&q[i], b, NULL), *s);
                }
            }
    }
}

/* One block of all tokens. */
typedef struct block_column {
    int8_t values[ATH_PAGE_TOKENS][ATH_KV_BLOCK];
    float d[ATH_PAGE_TOKENS], m[ATH_PAGE_TOKENS];
} block_column;

/* Weights times scales as integers of 0 .. +-ATH_QUERY_STEPS; returns the value of a step. */
static float quantise_weights(const block_column *col, int lo, int hi, const float *weights, int32_t *out) {
    float w[ATH_PAGE_TOKENS] = {0}, max = 0.0f, top = (float)ATH_QUERY_STEPS;
    for (int t = lo; t < hi; t++) {
        w[t] = weights[t] * col->d[t];
        max = fabsf(w[t]) > max ? fabsf(w[t]) : max;
    }
    float inverse = max > 0.0f ? top / max : 0.0f;
    for (int t = 0; t < ATH_PAGE_TOKENS; t++) {
        float v = w[t] * inverse;
        v = v < top ? v : top;
        v = v > -top ? v : -top;
        out[t] = (int32_t)rintf(v);
    }
    return max * (1.0f / (float)ATH_QUERY_STEPS);
}

static void accumulate_block(const block_column *col, bool has_minimum, int lo, int hi, const float *weights,
                             float *acc) {
    int32_t w[ATH_PAGE_TOKENS], dot[ATH_KV_BLOCK] = {0};
    float lanes[16] = {0}, step = quantise_weights(col, lo, hi, weights, w);
    for (int t = 0; t < ATH_PAGE_TOKENS; t++)
        for (int c = 0; c < ATH_KV_BLOCK; c++) dot[c] += w[t] * col->values[t][c];
    for (int c = 0; c < ATH_KV_BLOCK; c++) acc[c] = fmaf(step, (float)dot[c], acc[c]);
    if (!has_minimum) return;
    for (int t = lo; t < hi; t++) lanes[t % 16] = fmaf(weights[t], col->m[t], lanes[t % 16]);
    float sum = ath_sum_lanes(lanes);
    for (int c = 0; c < ATH_KV_BLOCK; c++) acc[c] += sum;
}

void ath_block_accumulate_c(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                            const float *weights, int n, float *acc, const uint8_t *next) {
    (void)next;
    bool has_minimum = ath_block_kind_of(layout->type)->has_minimum;
    for (int b = 0; b < layout->head_dim / ATH_KV_BLOCK; b++) {
        block_column col;
        for (size_t t = 0; t < ATH_PAGE_TOKENS; t++)
            ath_block_values(layout, page, t, b, col.values[t], &col.d[t], &col.m[t]);
        for (int i = 0; i < n; i++)
            accumulate_block(&col, has_minimum, lo, hi, weights + i * ATH_PAGE_TOKENS,
                             acc + (int64_t)i * layout->head_dim + ATH_KV_BLOCK * b);
    }
}
