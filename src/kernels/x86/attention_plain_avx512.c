/* Attention on plain tiles, and the softmax, with AVX-512. Scores (lanes are tokens, steps are channels) and
 * values (lanes are channels, steps are tokens) are the same product: out[i][lane] = fma over steps of
 * a[i][step] * b[step][lane]. */
#include <immintrin.h>
#include <string.h>

#include "kernels/attention_avx512.h"
#include "kernels/attention_blocks_x86.h"
#include "kernels/vector_math_lanes.h"

typedef __m512 (*load_fn)(const void *data, int64_t i);

ATH_INLINE __m512 load_f32(const void *data, int64_t i) {
    return _mm512_loadu_ps((const float *)data + i);
}
ATH_INLINE __m512 load_f16(const void *data, int64_t i) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)data + i)));
}
ATH_INLINE __m512 load_bf16(const void *data, int64_t i) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)data + i));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* n_a rows of a times n_b vectors of 16 lanes; both constants where it is called. */
ATH_INLINE void product_tile(load_fn load, const int n_a, const int n_b, const ath_attn_product *p,
                             const float *a, int64_t lane, float *out, bool add) {
    __m512 sum[6][8];
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++)
            sum[i][j] = add ? _mm512_loadu_ps(out + i * p->out_stride + 16 * j) : _mm512_setzero_ps();
    for (int step = p->step0; step < p->step1; step++) {
        __m512 b[8];
        for (int j = 0; j < n_b; j++) b[j] = load(p->b, step * p->b_stride + lane + 16 * j);
        for (int i = 0; i < n_a; i++) {
            __m512 x = _mm512_set1_ps(a[i * p->a_stride + step]);
            for (int j = 0; j < n_b; j++) sum[i][j] = _mm512_fmadd_ps(x, b[j], sum[i][j]);
        }
    }
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++) _mm512_storeu_ps(out + i * p->out_stride + 16 * j, sum[i][j]);
}

ATH_INLINE void product_lanes(load_fn load, const int n_b, const ath_attn_product *p, int64_t lane,
                              bool add) {
    for (int i = 0; i < p->n; i += 6) {
        const float *a = p->a + i * p->a_stride;
        float *out = p->out + i * p->out_stride + lane;
        switch (p->n - i) {
        case 1: product_tile(load, 1, n_b, p, a, lane, out, add); break;
        case 2: product_tile(load, 2, n_b, p, a, lane, out, add); break;
        case 3: product_tile(load, 3, n_b, p, a, lane, out, add); break;
        case 4: product_tile(load, 4, n_b, p, a, lane, out, add); break;
        case 5: product_tile(load, 5, n_b, p, a, lane, out, add); break;
        default: product_tile(load, 6, n_b, p, a, lane, out, add); break;
        }
    }
}

ATH_INLINE void product(load_fn load, const ath_attn_product *p, bool add) {
    int64_t lane = p->lane0;
    if (p->n <= 2) /* few rows, as in decode: memory is the limit, so whole rows of b at a time */
        for (; lane + 128 <= p->lane1; lane += 128) {
            if (p->n == 1)
                product_tile(load, 1, 8, p, p->a, lane, p->out + lane, add);
            else
                product_tile(load, 2, 8, p, p->a, lane, p->out + lane, add);
        }
    for (; lane + 64 <= p->lane1; lane += 64) product_lanes(load, 4, p, lane, add);
    for (; lane < p->lane1; lane += 16) product_lanes(load, 1, p, lane, add);
}

#define PLAIN_KERNELS(type)                                                                                  \
    static void widen_##type(const void *src, float *dst, int64_t n) {                                       \
        int64_t i = 0;                                                                                       \
        for (; i + 16 <= n; i += 16) _mm512_storeu_ps(dst + i, load_##type(src, i));                         \
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

/* all: every token is visible. */
ATH_INLINE float softmax_step(const bool all, float *scores, int lo, int hi, float *max, float *sum) {
    __m512 x[8], top = _mm512_set1_ps(*max), lanes = _mm512_setzero_ps();
    __mmask16 visible[8];
    for (int g = 0; g < 8; g++) {
        visible[g] = all ? 0xffff : ath_visible_avx512(g, lo, hi);
        x[g] = _mm512_loadu_ps(scores + 16 * g);
        top = _mm512_mask_max_ps(top, visible[g], x[g], top);
    }
    float m = _mm512_reduce_max_ps(top);
    for (int g = 0; g < 8; g++) {
        __m512 e = vf_exp(_mm512_sub_ps(x[g], _mm512_set1_ps(m)));
        if (!all) e = _mm512_maskz_mov_ps(visible[g], e);
        _mm512_storeu_ps(scores + 16 * g, e);
        lanes = _mm512_add_ps(lanes, e);
    }
    float factor = m == *max ? 1.0f : ath_expf(*max - m);
    *sum = *sum * factor + ath_sum_lanes_avx512(lanes);
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
    __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f), c = _mm512_set1_ps(cap);
    for (int i = 0; i < n; i += 16) {
        __m512 x = _mm512_div_ps(_mm512_loadu_ps(scores + i), c);
        __m512 e = vf_exp(_mm512_add_ps(x, x));
        __m512 tanh = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(e, one)));
        _mm512_storeu_ps(scores + i, _mm512_mul_ps(c, tanh));
    }
}

void ath_attn_kernels_init_avx512(ath_attn_kernels *k) {
    k->isa = "avx512";
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
    ath_attn_turbo_init_avx512(k);
    ath_attn_blocks_init_avx512(k);
    ath_attn_pages_init_avx512(k);
}
