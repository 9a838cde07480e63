/* Scores and values of plain tiles are one product. Scores: lanes are tokens, steps are channels; values: lanes
 * are channels, steps are tokens. */
#ifndef ATH_KERNELS_ATTENTION_PRODUCT_H
#define ATH_KERNELS_ATTENTION_PRODUCT_H

#include "kernels/attention.h"

/* out[i][lane] (+)= sequential fma over steps of a[i][step] * b[step][lane], for n rows and lanes [lane0,
 * lane1). */
typedef struct ath_attn_product {
    const float *a;
    const void *b;
    float *out;
    int n, step0, step1;
    int64_t a_stride, b_stride, out_stride, lane0, lane1;
} ath_attn_product;

static inline ath_attn_product ath_attn_scores_product(const void *tile, int head_dim, int group0, int group1,
                                                       const float *q, int n, float *scores) {
    return (ath_attn_product){.a = q,
                              .b = tile,
                              .out = scores,
                              .n = n,
                              .step0 = 0,
                              .step1 = head_dim,
                              .a_stride = head_dim,
                              .b_stride = ATH_PAGE_TOKENS,
                              .out_stride = ATH_PAGE_TOKENS,
                              .lane0 = 16 * group0,
                              .lane1 = 16 * group1};
}

static inline ath_attn_product ath_attn_values_product(const void *tile, int head_dim, int lo, int hi,
                                                       const float *weights, int n, float *acc) {
    return (ath_attn_product){.a = weights,
                              .b = tile,
                              .out = acc,
                              .n = n,
                              .step0 = lo,
                              .step1 = hi,
                              .a_stride = ATH_PAGE_TOKENS,
                              .b_stride = head_dim,
                              .out_stride = head_dim,
                              .lane0 = 0,
                              .lane1 = head_dim};
}

#endif
