/* Attention on plain tiles, and the softmax, in C: the specification of the bits. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/attention_c.h"
#include "kernels/vector_math.h"

static inline float load_f32(const void *data, int64_t i) {
    return ((const float *)data)[i];
}
static inline float load_f16(const void *data, int64_t i) {
    return ath_f16_to_f32(((const uint16_t *)data)[i]);
}
static inline float load_bf16(const void *data, int64_t i) {
    return ath_bf16_to_f32(((const uint16_t *)data)[i]);
}

/* The three kernels of a raw type. */
#define PLAIN_KERNELS(type)                                                                                  \
    static void widen_##type(const void *src, float *dst, int64_t n) {                                       \
        for (int64_t i = 0; i < n; i++) dst[i] = load_##type(src, i);                                        \
    }                                                                                                        \
    static void scores_##type(const void *tile, int head_dim, int group0, int group1, const float *q, int n, \
                              float *scores) {                                                               \
        for (int i = 0; i < n; i++, q += head_dim, scores += ATH_PAGE_TOKENS) {                              \
            for (int t = 16 * group0; t < 16 * group1; t++) scores[t] = 0.0f;                                \
            for (int c = 0; c < head_dim; c++)                                                               \
                for (int t = 16 * group0; t < 16 * group1; t++)                                              \
                    scores[t] = fmaf(q[c], load_##type(tile, c * ATH_PAGE_TOKENS + t), scores[t]);           \
        }                                                                                                    \
    }                                                                                                        \
    static void accumulate_##type(const void *tile, int head_dim, int lo, int hi, const float *weights,      \
                                  int n, float *acc) {                                                       \
        for (int i = 0; i < n; i++, weights += ATH_PAGE_TOKENS, acc += head_dim)                             \
            for (int t = lo; t < hi; t++)                                                                    \
                for (int c = 0; c < head_dim; c++)                                                           \
                    acc[c] = fmaf(weights[t], load_##type(tile, t * head_dim + c), acc[c]);                  \
    }

PLAIN_KERNELS(f32)
PLAIN_KERNELS(f16)
PLAIN_KERNELS(bf16)

static float softmax(float *scores, int lo, int hi, float *max, float *sum) {
    if (lo >= hi) {
        memset(scores, 0, ATH_PAGE_TOKENS * sizeof *scores);
        return 1.0f;
    }
    float m = *max, lanes[16] = {0};
    for (int t = lo; t < hi; t++) m = scores[t] > m ? scores[t] : m;
    for (int t = 0; t < ATH_PAGE_TOKENS; t++) {
        scores[t] = t >= lo && t < hi ? ath_expf(scores[t] - m) : 0.0f;
        lanes[t % 16] += scores[t];
    }
    float factor = ath_expf(*max - m);
    *sum = *sum * factor + ath_sum_lanes(lanes);
    *max = m;
    return factor;
}

/* tanh(x) = 1 - 2 / (e^2x + 1): the absolute error is an f32 rounding of 1, which is what a capped score can
 * hold. */
static void softcap(float *scores, int n, float cap) {
    for (int i = 0; i < n; i++) {
        float x = scores[i] / cap, e = ath_expf(x + x);
        scores[i] = cap * (1.0f - 2.0f / (e + 1.0f));
    }
}

void ath_attn_kernels_init_c(ath_attn_kernels *k) {
    *k = (ath_attn_kernels){
        .isa = "plain C",
        .widen = {widen_f32, widen_f16, widen_bf16},
        .scores = {scores_f32, scores_f16, scores_bf16},
        .accumulate = {accumulate_f32, accumulate_f16, accumulate_bf16},
        .accumulate_any = {accumulate_f32, accumulate_f16, accumulate_bf16},
        .softmax = softmax,
        .softcap = softcap,
        .turbo_query = ath_turbo_query_c,
        .turbo_scores = ath_turbo_scores_c,
        .turbo_accumulate = ath_turbo_accumulate_c,
        .block_scores = ath_block_scores_c,
        .block_accumulate = ath_block_accumulate_c,
        .unrotate = ath_unrotate,
        .expand = ath_kv_decode_page,
        .encode = ath_kv_encode_page,
    };
}
