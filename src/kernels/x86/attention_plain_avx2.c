/* Attention on plain tiles, and the softmax, with AVX2. Scores (lanes are tokens, steps are channels) and
 * values (lanes are channels, steps are tokens) are the same product: out[i][lane] = fma over steps of
 * a[i][step] * b[step][lane]. */
#include <immintrin.h>
#include <string.h>

#include "kernels/attention_avx2.h"
#include "kernels/attention_blocks_x86.h"
#include "kernels/vector_math_lanes.h"

typedef __m256 (*load_fn)(const void *data, int64_t i);

ATH_INLINE __m256 load_f32(const void *data, int64_t i) {
    return _mm256_loadu_ps((const float *)data + i);
}
ATH_INLINE __m256 load_f16(const void *data, int64_t i) {
    return ath_load_f16_avx2((const uint16_t *)data + i);
}
ATH_INLINE __m256 load_bf16(const void *data, int64_t i) {
    return ath_load_bf16_avx2((const uint16_t *)data + i);
}

/* n_a rows of a times 16 lanes; n_a is a constant where it is called. */
ATH_INLINE void product_tile(load_fn load, const int n_a, const ath_attn_product *p, const float *a,
                             int64_t lane, float *out, bool add) {
    __m256 sum[6][2];
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < 2; j++)
            sum[i][j] = add ? _mm256_loadu_ps(out + i * p->out_stride + 8 * j) : _mm256_setzero_ps();
    for (int step = p->step0; step < p->step1; step++) {
        __m256 b0 = load(p->b, step * p->b_stride + lane), b1 = load(p->b, step * p->b_stride + lane + 8);
        for (int i = 0; i < n_a; i++) {
            __m256 x = _mm256_broadcast_ss(a + i * p->a_stride + step);
            sum[i][0] = _mm256_fmadd_ps(x, b0, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(x, b1, sum[i][1]);
        }
    }
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < 2; j++) _mm256_storeu_ps(out + i * p->out_stride + 8 * j, sum[i][j]);
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
        for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(dst + i, load_##type(src, i));                   \
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
    __m256 top = _mm256_set1_ps(*max), lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 8) {
        __m256 x = _mm256_blendv_ps(top, _mm256_loadu_ps(scores + t), ath_visible_avx2(t, lo, hi));
        top = _mm256_max_ps(x, top);
    }
    float m = ath_max_lanes_avx2(top);
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 8) {
        __m256 e = vf_exp(_mm256_sub_ps(_mm256_loadu_ps(scores + t), _mm256_set1_ps(m)));
        e = _mm256_and_ps(e, ath_visible_avx2(t, lo, hi));
        _mm256_storeu_ps(scores + t, e);
        lanes[t / 8 % 2] = _mm256_add_ps(lanes[t / 8 % 2], e);
    }
    float lower = *max - m, factor = lower == 0.0f ? 1.0f : ath_expf(lower);
    *sum = *sum * factor + ath_sum_lanes_avx2(lanes[0], lanes[1]);
    *max = m;
    return factor;
}

static void softcap(float *scores, int n, float cap) {
    __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f), c = _mm256_set1_ps(cap);
    for (int i = 0; i < n; i += 8) {
        __m256 x = _mm256_div_ps(_mm256_loadu_ps(scores + i), c);
        __m256 e = vf_exp(_mm256_add_ps(x, x));
        __m256 tanh = _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(e, one)));
        _mm256_storeu_ps(scores + i, _mm256_mul_ps(c, tanh));
    }
}

void ath_attn_kernels_init_avx2(ath_attn_kernels *k) {
    k->isa = "avx2";
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
    ath_attn_turbo_init_avx2(k);
    ath_attn_blocks_init_avx2(k);
    ath_attn_pages_init_avx2(k);
}
