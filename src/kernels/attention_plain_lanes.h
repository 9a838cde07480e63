/* Attention on plain tiles, and the softmax, in vector lanes. Scores and values are the same product. Scores:
 * lanes are tokens, steps are channels; values: lanes are channels, steps are tokens. */
#ifndef ATH_KERNELS_ATTENTION_PLAIN_LANES_H
#define ATH_KERNELS_ATTENTION_PLAIN_LANES_H

#include <string.h>

#include "kernels/attention.h"
#include "kernels/vector_math_lanes.h"

typedef vf (*load_fn)(const void *data, int64_t i);

ATH_INLINE vf load_f32(const void *data, int64_t i) {
    return vf_load((const float *)data + i);
}
ATH_INLINE vf load_f16(const void *data, int64_t i) {
    return vf_load_f16((const uint16_t *)data + i);
}
ATH_INLINE vf load_bf16(const void *data, int64_t i) {
    return vf_load_bf16((const uint16_t *)data + i);
}

/* out[i][lane] (+)= sequential fma over steps of a[i][step] * b[step][lane], for n rows and lanes [lane0,
 * lane1). */
typedef struct product {
    const float *a;
    const void *b;
    float *out;
    int n, step0, step1;
    int64_t a_stride, b_stride, out_stride, lane0, lane1;
    load_fn load;
    bool add;
} product;

/* n_a rows of a times n_b vectors of lanes; both constants where it is called. */
ATH_INLINE void product_tile(const product p, const int n_a, const int n_b, int i0, int64_t lane) {
    const float *a = p.a + i0 * p.a_stride;
    float *out = p.out + i0 * p.out_stride + lane;
    vf sum[6][8];
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++)
            sum[i][j] = p.add ? vf_load(out + i * p.out_stride + VF_LANES * j) : vf_set(0);
    for (int step = p.step0; step < p.step1; step++) {
        vf b[8];
        for (int j = 0; j < n_b; j++) b[j] = p.load(p.b, step * p.b_stride + lane + VF_LANES * j);
        for (int i = 0; i < n_a; i++) {
            vf x = vf_set(a[i * p.a_stride + step]);
            for (int j = 0; j < n_b; j++) sum[i][j] = vf_fma(x, b[j], sum[i][j]);
        }
    }
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++) vf_store(out + i * p.out_stride + VF_LANES * j, sum[i][j]);
}

ATH_INLINE void product_rows(const product p, const int n_b, int64_t lane) {
    for (int i = 0; i < p.n; i += 6) {
        switch (p.n - i) {
        case 1: product_tile(p, 1, n_b, i, lane); break;
        case 2: product_tile(p, 2, n_b, i, lane); break;
        case 3: product_tile(p, 3, n_b, i, lane); break;
        case 4: product_tile(p, 4, n_b, i, lane); break;
        case 5: product_tile(p, 5, n_b, i, lane); break;
        default: product_tile(p, 6, n_b, i, lane); break;
        }
    }
}

/* Narrow vectors take 16 lanes at a time; of wide ones registers hold more. */
ATH_INLINE void product_of(const product p) {
    int64_t lane = p.lane0;
    if (VF_LANES == 16) {
        if (p.n <= 2) /* few rows, as in decode: memory is the limit, so whole rows of b at a time */
            for (; lane + 128 <= p.lane1; lane += 128) {
                if (p.n == 1)
                    product_tile(p, 1, 8, 0, lane);
                else
                    product_tile(p, 2, 8, 0, lane);
            }
        for (; lane + 64 <= p.lane1; lane += 64) product_rows(p, 4, lane);
    }
    for (; lane < p.lane1; lane += 16) product_rows(p, 16 / VF_LANES, lane);
}

ATH_INLINE void scores_of(load_fn load, const void *tile, int head_dim, int group0, int group1,
                          const float *q, int n, float *scores) {
    product_of((product){.load = load,
                         .a = q,
                         .b = tile,
                         .out = scores,
                         .n = n,
                         .step0 = 0,
                         .step1 = head_dim,
                         .a_stride = head_dim,
                         .b_stride = ATH_PAGE_TOKENS,
                         .out_stride = ATH_PAGE_TOKENS,
                         .lane0 = 16 * group0,
                         .lane1 = 16 * group1});
}

ATH_INLINE void accumulate_of(load_fn load, const void *tile, int head_dim, int lo, int hi,
                              const float *weights, int n, float *acc) {
    product_of((product){.load = load,
                         .add = true,
                         .a = weights,
                         .b = tile,
                         .out = acc,
                         .n = n,
                         .step0 = lo,
                         .step1 = hi,
                         .a_stride = ATH_PAGE_TOKENS,
                         .b_stride = head_dim,
                         .out_stride = head_dim,
                         .lane0 = 0,
                         .lane1 = head_dim});
}

/* The three kernels of a raw type. */
#define PLAIN_KERNELS(type)                                                                                  \
    static void widen_##type(const void *src, float *dst, int64_t n) {                                       \
        for (int64_t i = 0; i < n; i += VF_LANES) vf_store(dst + i, load_##type(src, i));                    \
    }                                                                                                        \
    static void scores_##type(const void *tile, int head_dim, int group0, int group1, const float *q, int n, \
                              float *scores) {                                                               \
        scores_of(load_##type, tile, head_dim, group0, group1, q, n, scores);                                \
    }                                                                                                        \
    static void accumulate_##type(const void *tile, int head_dim, int lo, int hi, const float *weights,      \
                                  int n, float *acc) {                                                       \
        accumulate_of(load_##type, tile, head_dim, lo, hi, weights, n, acc);                                 \
    }

PLAIN_KERNELS(f32)
PLAIN_KERNELS(f16)
PLAIN_KERNELS(bf16)

/* all: every token is visible. */
ATH_INLINE float softmax_step(const bool all, float *scores, int lo, int hi, float *max, float *sum) {
    vf top = vf_set(*max), lanes[16 / VF_LANES];
    for (int t = 0; t < ATH_PAGE_TOKENS; t += VF_LANES) {
        vf x = vf_load(scores + t);
        top = all ? vf_max_known(top, x) : vf_max_where(vf_between(t, lo, hi), top, x);
    }
    float m = vf_top(top);
    for (int i = 0; i < 16 / VF_LANES; i++) lanes[i] = vf_set(0);
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 16)
        for (int i = 0; i < 16 / VF_LANES; i++) {
            float *at = scores + t + i * VF_LANES;
            vf e = vf_exp(vf_sub(vf_load(at), vf_set(m)));
            if (!all) e = vf_keep(vf_between(t + i * VF_LANES, lo, hi), e);
            vf_store(at, e);
            lanes[i] = vf_add(lanes[i], e);
        }
    float lower = *max - m, factor = lower == 0.0f ? 1.0f : ath_expf(lower);
    *sum = *sum * factor + vf_sum_16(lanes);
    *max = m;
    return factor;
}

static float softmax(float *scores, int lo, int hi, float *max, float *sum) {
    if (lo >= hi) {
        memset(scores, 0, ATH_PAGE_TOKENS * sizeof *scores);
        return 1.0f;
    }
    if (lo == 0 && hi == ATH_PAGE_TOKENS) return softmax_step(true, scores, lo, hi, max, sum);
    return softmax_step(false, scores, lo, hi, max, sum);
}

static void softcap(float *scores, int n, float cap) {
    vf one = vf_set(1.0f), two = vf_set(2.0f), c = vf_set(cap);
    for (int i = 0; i < n; i += VF_LANES) {
        vf x = vf_div(vf_load(scores + i), c), e = vf_exp(vf_add(x, x));
        vf_store(scores + i, vf_mul(c, vf_sub(one, vf_div(two, vf_add(e, one)))));
    }
}

ATH_INLINE void plain_kernels(ath_attn_kernels *k) {
    k->widen[ATH_KV_F32] = widen_f32;
    k->widen[ATH_KV_F16] = widen_f16;
    k->widen[ATH_KV_BF16] = widen_bf16;
    k->scores[ATH_KV_F32] = scores_f32;
    k->scores[ATH_KV_F16] = scores_f16;
    k->scores[ATH_KV_BF16] = scores_bf16;
    k->accumulate[ATH_KV_F32] = accumulate_f32;
    k->accumulate[ATH_KV_F16] = accumulate_f16;
    k->accumulate[ATH_KV_BF16] = accumulate_bf16;
    k->softmax = softmax;
    k->softcap = softcap;
}

#endif
