/* Attention on turbo pages in C: the specification of the bits. */
#include <math.h>

#include "base/half.h"
#include "kernels/attention_c.h"

static inline const uint16_t *page_norms(const ath_kv_layout *layout, const uint8_t *page, int part) {
    return (const uint16_t *)(const void *)(page + layout->norms_at) + part * ATH_PAGE_TOKENS;
}

/* x[i] to integers of step amax / ATH_QUERY_STEPS. */
static void quantise_part(const float *x, int n, int8_t *high, int8_t *low, float *step, int32_t *sum) {
    float amax = 0.0f, top = (float)ATH_QUERY_STEPS;
    for (int i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float inverse = amax > 0.0f ? top / amax : 0.0f;
    int32_t total = 0;
    for (int i = 0; i < n; i++) {
        float v = rintf(x[i] * inverse);
        v = v < top ? v : top; /* a tiny amax makes inverse infinite */
        v = v > -top ? v : -top;
        int32_t integer = (int32_t)v;
        high[i] = (int8_t)((integer + 128) >> 8);
        low[i] = (int8_t)(integer - 256 * high[i]);
        total += integer;
    }
    *step = amax * (1.0f / (float)ATH_QUERY_STEPS);
    *sum = total;
}

void ath_turbo_query_c(const ath_kv_layout *layout, const uint8_t *page, const float *q, int n,
                       ath_turbo_query *out) {
    const uint16_t *mean = (const uint16_t *)(const void *)(page + layout->mean_at);
    const uint8_t *eq = page + layout->eq_at;
    int head_dim = layout->head_dim;
    for (int h = 0; h < n; h++, q += head_dim, out++) {
        float x[ATH_MAX_HEAD_DIM], lanes[16] = {0};
        for (int c = 0; c < head_dim; c++) {
            lanes[c % 16] = fmaf(q[c], ath_f16_to_f32(mean[c]), lanes[c % 16]);
            x[c] = q[c] * ath_eq_scale(eq[c]);
        }
        out->bias = ath_sum_lanes(lanes);
        ath_rotate(layout, x);
        for (int p = 0; p < layout->n_parts; p++) {
            int start = layout->part_start[p];
            quantise_part(x + start, layout->part_dim[p], out->high + start, out->low + start, &out->step[p],
                          &out->sum[p]);
        }
    }
}

/* Score of one token, values being those of its page row. The integer sums are exact, so their order is free.
 */
static float turbo_score(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q,
                         int token, const int8_t *values) {
    float score = q->bias;
    for (int p = 0; p < layout->n_parts; p++) {
        int32_t dot = 0;
        int end = layout->part_start[p] + layout->part_dim[p];
        for (int c = layout->part_start[p]; c < end; c++) dot += values[c] * (256 * q->high[c] + q->low[c]);
        float norm = ath_bf16_to_f32(page_norms(layout, page, p)[token]);
        score = fmaf(norm * q->step[p], (float)dot, score);
    }
    return score;
}

void ath_turbo_scores_c(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                        int group0, int group1, float *scores, const uint8_t *next) {
    (void)next;
    for (int t = 16 * group0; t < 16 * group1; t++) {
        int8_t values[ATH_MAX_HEAD_DIM];
        for (int p = 0; p < layout->n_parts; p++)
            ath_turbo_values(layout, page, p, (size_t)t, values + layout->part_start[p]);
        for (int i = 0; i < n; i++)
            scores[i * ATH_PAGE_TOKENS + t] = turbo_score(layout, page, &q[i], t, values);
    }
}

/* Weights times norms as integers of 0 .. ATH_WEIGHT_STEPS; returns the value of a step. */
static float quantise_weights(const uint16_t *norms, int lo, int hi, const float *weights, int32_t *out) {
    float w[ATH_PAGE_TOKENS] = {0}, max = 0.0f;
    for (int t = lo; t < hi; t++) {
        w[t] = weights[t] * ath_bf16_to_f32(norms[t]);
        max = w[t] > max ? w[t] : max;
    }
    float inverse = max > 0.0f ? (float)ATH_WEIGHT_STEPS / max : 0.0f;
    for (int t = 0; t < ATH_PAGE_TOKENS; t++) {
        float v = w[t] * inverse;
        v = v > 0.0f ? v : 0.0f;
        v = v < (float)ATH_WEIGHT_STEPS ? v : (float)ATH_WEIGHT_STEPS;
        out[t] = (int32_t)rintf(v);
    }
    return max * (1.0f / (float)ATH_WEIGHT_STEPS);
}

void ath_turbo_accumulate_c(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                            const float *weights, int n, float *acc, const uint8_t *next) {
    (void)next;
    for (int p = 0; p < layout->n_parts; p++) {
        int dim = layout->part_dim[p];
        int8_t values[ATH_PAGE_TOKENS][128];
        for (size_t t = 0; t < ATH_PAGE_TOKENS; t++) ath_turbo_values(layout, page, p, t, values[t]);
        for (int i = 0; i < n; i++) {
            int32_t w[ATH_PAGE_TOKENS], dot[128] = {0};
            float step =
                quantise_weights(page_norms(layout, page, p), lo, hi, weights + i * ATH_PAGE_TOKENS, w);
            for (int t = 0; t < ATH_PAGE_TOKENS; t++)
                for (int c = 0; c < dim; c++) dot[c] += w[t] * values[t][c];
            float *out = acc + (int64_t)i * layout->head_dim + layout->part_start[p];
            for (int c = 0; c < dim; c++) out[c] = fmaf(step, (float)dot[c], out[c]);
        }
    }
}
