/* Scores and values of turbo pages for ARM. Both unpack their table values as dwords of 4 bytes that are
 * summed up: of a token, 4 channels; of a channel, 4 tokens. Then both are the same product with queries, or
 * weights, as two bytes each. The file of an instruction set defines before it includes this:
 *
 *     dot_4(sum, x, y)    sum[i] += dot product of the 4 signed bytes of x and y in lane i; no byte of x is
 * -128 */
#ifndef ATH_KERNELS_ATTENTION_TURBO_ARM_H
#define ATH_KERNELS_ATTENTION_TURBO_ARM_H

#include "base/half.h"
#include "kernels/attention_neon.h"

/* Integers 256 * high + low, 4 of a step together. */
typedef struct factors {
    int8_t high[ATH_PAGE_TOKENS], low[ATH_PAGE_TOKENS];
} factors;

ATH_INLINE int8x16_t load_factors(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

/* out[h][16]: sums over steps of values[step][16][4], steps `stride` bytes apart, with the factors of n heads
 * (a constant where it is called). */
ATH_INLINE void dot_16(const int n, const int8_t *values, int64_t stride, int step0, int step1,
                       const factors *f, int32x4_t (*out)[4]) {
    int32x4_t high[2][4], low[2][4];
    for (int h = 0; h < n; h++)
        for (int v = 0; v < 4; v++) high[h][v] = low[h][v] = vdupq_n_s32(0);
    for (int step = step0; step < step1; step++) {
        int8x16_t x[4];
        for (int v = 0; v < 4; v++) x[v] = vld1q_s8(values + step * stride + 16 * v);
        for (int h = 0; h < n; h++) {
            int8x16_t h4 = load_factors(f[h].high + 4 * step), l4 = load_factors(f[h].low + 4 * step);
            for (int v = 0; v < 4; v++) {
                high[h][v] = dot_4(high[h][v], x[v], h4);
                low[h][v] = dot_4(low[h][v], x[v], l4);
            }
        }
    }
    for (int h = 0; h < n; h++)
        for (int v = 0; v < 4; v++) out[h][v] = vaddq_s32(vshlq_n_s32(high[h][v], 8), low[h][v]);
}

/* A part's integers of a query in the order of ath_unpack_keys_neon; 0 where it comes round. */
static void order_query(const ath_turbo_query *q, int start, int dim, int quarter, factors *out) {
    for (int i = 0; i < quarter; i++)
        for (int j = 0; j < 4; j++) {
            int c = j * quarter + i;
            out->high[4 * i + j] = c < dim ? q->high[start + c] : 0;
            out->low[4 * i + j] = c < dim ? q->low[start + c] : 0;
        }
}

/* score += norm * step * dot: one part of 16 tokens, of n heads (a constant where it is called); scores: of
 * the first token. */
ATH_INLINE void scores_heads(const int n, const int8_t *values, int quarter, const uint8_t *norms,
                             const ath_turbo_query *q, int part, const factors *f, float *scores) {
    int32x4_t dot[2][4];
    dot_16(n, values, 64, 0, quarter, f, dot);
    for (int h = 0; h < n; h++, scores += ATH_PAGE_TOKENS)
        for (int v = 0; v < 4; v++) {
            float32x4_t scale = vmulq_n_f32(ath_load_bf16_neon(norms + 8 * v), q[h].step[part]);
            vst1q_f32(scores + 4 * v, vfmaq_f32(vld1q_f32(scores + 4 * v), scale, vcvtq_f32_s32(dot[h][v])));
        }
}

/* Up to 4 heads. */
ATH_INLINE void scores_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            const ath_turbo_query *q, int n, int group0, int group1, float *scores) {
    int8x16x4_t table = ath_unpack_table_neon(ath_turbo_code_of(layout->type));
    for (int h = 0; h < n; h++)
        for (int t = 16 * group0; t < 16 * group1; t++) scores[h * ATH_PAGE_TOKENS + t] = q[h].bias;
    for (int p = 0; p < layout->n_parts; p++) {
        _Alignas(16) int8_t values[32 * 64];
        factors f[4];
        int start = layout->part_start[p], dim = layout->part_dim[p], quarter = ath_unpack_quarter(kind, dim);
        for (int h = 0; h < n; h++) order_query(&q[h], start, dim, quarter, &f[h]);
        for (int g = group0; g < group1; g++) {
            const uint8_t *planes = page + ((int64_t)g * layout->head_dim + start) * 2 * kind.k;
            const uint8_t *norms = page + layout->norms_at + 2 * (size_t)(p * ATH_PAGE_TOKENS + 16 * g);
            ath_unpack_keys_neon(kind, &table, planes, dim, values);
            float *out = scores + 16 * g;
            for (int h = 0; h + 2 <= n; h += 2)
                scores_heads(2, values, quarter, norms, q + h, p, f + h, out + h * ATH_PAGE_TOKENS);
            if (n % 2)
                scores_heads(1, values, quarter, norms, q + n - 1, p, f + n - 1,
                             out + (n - 1) * ATH_PAGE_TOKENS);
        }
    }
}

/* What fetching the next page ahead brings on ARM has not been measured: it is left to the hardware. */
static void turbo_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores, const uint8_t *next) {
    (void)next;
    for (int h = 0; h < n; h += 4, q += 4, scores += 4 * ATH_PAGE_TOKENS) {
        int heads = n - h < 4 ? n - h : 4;
#define SCORES(kind) scores_page(kind, layout, page, q, heads, group0, group1, scores)
        ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), SCORES);
#undef SCORES
    }
}

/* Weights times norms of tokens [lo, hi) as integers of 15 bits, with the sign turned: so their halves fit
 * into signed bytes. Returns the value of a step. */
static float quantise_weights(const uint8_t *norms, int lo, int hi, const float *weights, factors *out) {
    float w[ATH_PAGE_TOKENS];
    float32x4_t max = vdupq_n_f32(0), zero = max, most = vdupq_n_f32((float)ATH_WEIGHT_STEPS);
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4) {
        float32x4_t x = vmulq_f32(vld1q_f32(weights + t), ath_load_bf16_neon(norms + 2 * t));
        x = ath_masked_neon(x, ath_visible_neon(t, lo, hi));
        max = vmaxnmq_f32(max, x);
        vst1q_f32(w + t, x);
    }
    float top = vmaxvq_f32(max), inverse = top > 0.0f ? (float)ATH_WEIGHT_STEPS / top : 0.0f;
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 8) {
        int32x4_t code[2];
        for (int i = 0; i < 2; i++) {
            float32x4_t x = vmaxnmq_f32(vmulq_n_f32(vld1q_f32(w + t + 4 * i), inverse), zero);
            code[i] = vcvtnq_s32_f32(vminnmq_f32(x, most));
        }
        int16x8_t minus = vnegq_s16(vcombine_s16(vmovn_s32(code[0]), vmovn_s32(code[1])));
        int16x8_t high = vrshrq_n_s16(minus, 8);
        vst1_s8(out->high + t, vmovn_s16(high));
        vst1_s8(out->low + t, vmovn_s16(minus)); /* less 256 * high, which the narrowing leaves out */
    }
    return top * (1.0f / (float)ATH_WEIGHT_STEPS);
}

/* acc -= step * dot: one part, of n heads (a constant where it is called), over the groups of 4 tokens that
 * [lo, hi) touches; values[32 groups][dim][4]. */
ATH_INLINE void values_heads(const int n, const int8_t *values, int dim, const uint8_t *norms, int lo, int hi,
                             const float *weights, float *acc, int64_t acc_stride) {
    factors f[2];
    float step[2];
    for (int h = 0; h < n; h++)
        step[h] = quantise_weights(norms, lo, hi, weights + h * ATH_PAGE_TOKENS, &f[h]);
    for (int c = 0; c < dim; c += 16) {
        int32x4_t dot[2][4];
        dot_16(n, values + 4 * c, 4 * dim, lo / 4, (hi + 3) / 4, f, dot);
        for (int h = 0; h < n; h++)
            for (int v = 0; v < 4; v++) {
                float *out = acc + h * acc_stride + c + 4 * v;
                float32x4_t sum = vcvtq_f32_s32(vnegq_s32(dot[h][v]));
                vst1q_f32(out, vfmaq_n_f32(vld1q_f32(out), sum, step[h]));
            }
    }
}

ATH_INLINE void values_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            int lo, int hi, const float *weights, int n, float *acc) {
    int8x16x4_t table = ath_unpack_table_neon(ath_turbo_code_of(layout->type));
    int64_t stride = layout->head_dim;
    for (int p = 0; p < layout->n_parts; p++) {
        _Alignas(16) int8_t values[ATH_PAGE_TOKENS * 128];
        int start = layout->part_start[p], dim = layout->part_dim[p];
        const uint8_t *norms = page + layout->norms_at + (size_t)p * ATH_PAGE_TOKENS * 2;
        for (int g = lo / 4; g < (hi + 3) / 4; g++)
            ath_unpack_values_neon(kind, &table, page + (g * stride + start) * kind.k / 2, dim,
                                   values + 4 * g * dim);
        float *out = acc + start;
        for (int h = 0; h + 2 <= n; h += 2)
            values_heads(2, values, dim, norms, lo, hi, weights + h * ATH_PAGE_TOKENS, out + h * stride,
                         stride);
        if (n % 2)
            values_heads(1, values, dim, norms, lo, hi, weights + (n - 1) * ATH_PAGE_TOKENS,
                         out + (n - 1) * stride, stride);
    }
}

static void turbo_accumulate(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc, const uint8_t *next) {
    (void)next;
#define VALUES(kind) values_page(kind, layout, page, lo, hi, weights, n, acc)
    ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), VALUES);
#undef VALUES
}

#endif
