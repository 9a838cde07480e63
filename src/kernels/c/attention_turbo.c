/* Attention on turbo pages in C: the specification of the bits. */
#include <math.h>

#include "base/half.h"
#include "kernels/attention_c.h"

/* Code i of a unit. Reads one byte past the last code at most: a page's norms follow its codes. */
static inline int unit_code(const uint8_t *unit, int bits, int i) {
    int at = i * bits;
    int word = unit[at / 8] | unit[at / 8 + 1] << 8;
    return word >> (at % 8) & ((1 << bits) - 1);
}

static inline const uint16_t *page_norms(const ath_kv_layout *layout, const uint8_t *page, int part) {
    return (const uint16_t *)(const void *)(page + layout->norms_at) + part * ATH_PAGE_TOKENS;
}

/* x[i] to codes of step amax / 127. */
static void quantise_part(const float *x, int n, int8_t *codes, float *step, int32_t *sum) {
    float amax = 0.0f;
    for (int i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    int32_t total = 0;
    for (int i = 0; i < n; i++) {
        float v = rintf(x[i] * inverse);
        v = v < 127.0f ? v : 127.0f; /* an amax below 2^-121 makes inverse infinite */
        v = v > -127.0f ? v : -127.0f;
        codes[i] = (int8_t)v;
        total += codes[i];
    }
    *step = amax * (1.0f / 127.0f);
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
            quantise_part(x + start, layout->part_dim[p], out->codes + start, &out->step[p], &out->sum[p]);
        }
    }
}

/* Score of one token: the integer products are exact, so their order is free. */
static float turbo_score(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q,
                         int token) {
    const int8_t *table = ath_turbo_table(layout->type);
    int bits = ath_kv_turbo_bits(layout->type), quads = layout->head_dim / 4;
    const uint8_t *units = page + (size_t)(token / 16) * quads * 8 * bits;
    float score = q->bias;
    for (int p = 0; p < layout->n_parts; p++) {
        int32_t dot = 0;
        int end = layout->part_start[p] + layout->part_dim[p];
        for (int c = layout->part_start[p]; c < end; c++)
            dot += table[unit_code(units + c / 4 * 8 * bits, bits, token % 16 * 4 + c % 4)] * q->codes[c];
        float norm = ath_bf16_to_f32(page_norms(layout, page, p)[token]);
        score = fmaf(norm * q->step[p], (float)dot, score);
    }
    return score;
}

void ath_turbo_scores_c(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                        int group0, int group1, float *scores) {
    for (int i = 0; i < n; i++, scores += ATH_PAGE_TOKENS)
        for (int t = 16 * group0; t < 16 * group1; t++) scores[t] = turbo_score(layout, page, &q[i], t);
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
                            const float *weights, int n, float *acc) {
    const int8_t *table = ath_turbo_table(layout->type);
    int bits = ath_kv_turbo_bits(layout->type), head_dim = layout->head_dim;
    for (int i = 0; i < n; i++, weights += ATH_PAGE_TOKENS, acc += head_dim) {
        for (int p = 0; p < layout->n_parts; p++) {
            int32_t w[ATH_PAGE_TOKENS];
            float step = quantise_weights(page_norms(layout, page, p), lo, hi, weights, w);
            int end = layout->part_start[p] + layout->part_dim[p];
            for (int c = layout->part_start[p]; c < end; c++) {
                int32_t dot = 0;
                for (int t = 0; t < ATH_PAGE_TOKENS; t++) {
                    const uint8_t *unit = page + ((size_t)(t / 4) * (head_dim / 16) + c / 16) * 8 * bits;
                    dot += w[t] * table[unit_code(unit, bits, c % 16 * 4 + t % 4)];
                }
                acc[c] = fmaf(step, (float)dot, acc[c]);
            }
        }
    }
}
