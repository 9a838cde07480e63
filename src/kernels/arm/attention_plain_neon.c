/* Attention on plain tiles, and the softmax, with NEON. */
#include "kernels/attention_neon.h"
#include "kernels/attention_product.h"
#include "kernels/vector_math_lanes.h"

typedef float32x4_t (*load_fn)(const void *data, int64_t i);

ATH_INLINE float32x4_t load_f32(const void *data, int64_t i) {
    return vld1q_f32((const float *)data + i);
}
ATH_INLINE float32x4_t load_f16(const void *data, int64_t i) {
    return ath_load_f16_neon((const uint16_t *)data + i);
}
ATH_INLINE float32x4_t load_bf16(const void *data, int64_t i) {
    return ath_load_bf16_neon((const uint16_t *)data + i);
}

/* n_a rows of a times 16 lanes; n_a is a constant where it is called. */
ATH_INLINE void product_tile(load_fn load, const int n_a, const ath_attn_product *p, const float *a,
                             int64_t lane, float *out, bool add) {
    float32x4_t sum[6][4];
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < 4; j++)
            sum[i][j] = add ? vld1q_f32(out + i * p->out_stride + 4 * j) : vdupq_n_f32(0);
    for (int step = p->step0; step < p->step1; step++) {
        float32x4_t b[4];
        for (int j = 0; j < 4; j++) b[j] = load(p->b, step * p->b_stride + lane + 4 * j);
        for (int i = 0; i < n_a; i++) {
            float x = a[i * p->a_stride + step];
            for (int j = 0; j < 4; j++) sum[i][j] = vfmaq_n_f32(sum[i][j], b[j], x);
        }
    }
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < 4; j++) vst1q_f32(out + i * p->out_stride + 4 * j, sum[i][j]);
}

ATH_INLINE void product(load_fn load, const ath_attn_product *p, bool add) {
    for (int64_t lane = p->lane0; lane < p->lane1; lane += 16)
        for (int i = 0; i < p->n; i += 6) {
            const float *a = p->a + i * p->a_stride;
            float *out = p->out + i * p->out_stride + lane;
            switch (p->n - i) {
            case 1: product_tile(load, 1, p, a, lane, out, add); break;
            case 2: product_tile(load, 2, p, a, lane, out, add); break;
            case 3: product_tile(load, 3, p, a, lane, out, add); break;
            case 4: product_tile(load, 4, p, a, lane, out, add); break;
            case 5: product_tile(load, 5, p, a, lane, out, add); break;
            default: product_tile(load, 6, p, a, lane, out, add); break;
            }
        }
}

#define PLAIN_KERNELS(type)                                                                                  \
    static void widen_##type(const void *src, float *dst, int64_t n) {                                       \
        for (int64_t i = 0; i < n; i += 4) vst1q_f32(dst + i, load_##type(src, i));                          \
    }                                                                                                        \
    static void scores_##type(const void *tile, int head_dim, int group0, int group1, const float *q, int n, \
                              float *scores) {                                                               \
        ath_attn_product p = ath_attn_scores_product(tile, head_dim, group0, group1, q, n, scores);          \
        product(load_##type, &p, false);                                                                     \
    }                                                                                                        \
    static void accumulate_##type(const void *tile, int head_dim, int lo, int hi, const float *weights,      \
                                  int n, float *acc) {                                                       \
        ath_attn_product p = ath_attn_values_product(tile, head_dim, lo, hi, weights, n, acc);               \
        product(load_##type, &p, true);                                                                      \
    }

PLAIN_KERNELS(f32)
PLAIN_KERNELS(f16)
PLAIN_KERNELS(bf16)

static float softmax(float *scores, int lo, int hi, float *max, float *sum) {
    if (lo >= hi) {
        memset(scores, 0, ATH_PAGE_TOKENS * sizeof *scores);
        return 1.0f;
    }
    float32x4_t top = vdupq_n_f32(*max), lanes[4];
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4)
        top = vmaxnmq_f32(top, vbslq_f32(ath_visible_neon(t, lo, hi), vld1q_f32(scores + t), top));
    float m = vmaxvq_f32(top);
    for (int i = 0; i < 4; i++) lanes[i] = vdupq_n_f32(0);
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4) {
        float32x4_t e = vf_exp(vsubq_f32(vld1q_f32(scores + t), vdupq_n_f32(m)));
        e = ath_masked_neon(e, ath_visible_neon(t, lo, hi));
        vst1q_f32(scores + t, e);
        lanes[t / 4 % 4] = vaddq_f32(lanes[t / 4 % 4], e);
    }
    float factor = ath_expf(*max - m);
    *sum = *sum * factor + ath_sum_lanes_neon(lanes);
    *max = m;
    return factor;
}

static void softcap(float *scores, int n, float cap) {
    float32x4_t one = vdupq_n_f32(1.0f), two = vdupq_n_f32(2.0f), c = vdupq_n_f32(cap);
    for (int i = 0; i < n; i += 4) {
        float32x4_t x = vdivq_f32(vld1q_f32(scores + i), c), e = vf_exp(vaddq_f32(x, x));
        vst1q_f32(scores + i, vmulq_f32(c, vsubq_f32(one, vdivq_f32(two, vaddq_f32(e, one)))));
    }
}

void ath_attn_kernels_init_neon(ath_attn_kernels *k) {
    k->isa = "neon";
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
    ath_attn_turbo_init_neon(k);
    ath_attn_pages_init_neon(k);
}
