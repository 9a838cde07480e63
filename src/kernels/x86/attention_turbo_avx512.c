/* Attention on turbo pages with AVX-512: units of 64 codes become bytes with three shuffles, vpdpbusd sums
 * products of four channels (scores) or four tokens (values) per lane. */
#include "kernels/attention_avx512.h"

#include <string.h>

#include "base/half.h"

ATH_INLINE int32_t load_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

ATH_INLINE void query_part(const int n_regs, const float *x, const float *scales, float norm, int8_t *codes,
                           float *step, int32_t *sum) {
    __m512 v[8], amax = _mm512_setzero_ps();
    for (int i = 0; i < n_regs; i++)
        v[i] = _mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_loadu_ps(scales + 16 * i));
    ath_hadamard_avx512(v, n_regs);
    for (int i = 0; i < n_regs; i++) {
        v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(norm));
        amax = _mm512_max_ps(amax, _mm512_abs_ps(v[i]));
    }
    float top = _mm512_reduce_max_ps(amax);
    __m512 inverse = _mm512_set1_ps(top > 0.0f ? 127.0f / top : 0.0f);
    __m512i total = _mm512_setzero_si512();
    for (int i = 0; i < n_regs; i++) {
        __m512 y = _mm512_min_ps(_mm512_mul_ps(v[i], inverse), _mm512_set1_ps(127.0f));
        __m512i code = _mm512_cvtps_epi32(_mm512_max_ps(y, _mm512_set1_ps(-127.0f)));
        total = _mm512_add_epi32(total, code);
        _mm_storeu_si128((__m128i *)(void *)(codes + 16 * i), _mm512_cvtepi32_epi8(code));
    }
    *step = top * (1.0f / 127.0f);
    *sum = _mm512_reduce_add_epi32(total);
}

static void turbo_query(const ath_kv_layout *layout, const uint8_t *page, const float *q, int n,
                        ath_turbo_query *out) {
    const float *signs = ath_rotation_signs();
    int head_dim = layout->head_dim;
    float scales[ATH_MAX_HEAD_DIM], mean[ATH_MAX_HEAD_DIM];
    for (int c = 0; c < head_dim; c += 16) {
        __m512 eq = ath_eq_scales_avx512(page + layout->eq_at + c);
        _mm512_storeu_ps(scales + c, _mm512_mul_ps(eq, _mm512_loadu_ps(signs + c)));
        _mm512_storeu_ps(mean + c, ath_load_f16_avx512(page + layout->mean_at + 2 * c));
    }
    for (int h = 0; h < n; h++, q += head_dim, out++) {
        __m512 bias = _mm512_setzero_ps();
        for (int c = 0; c < head_dim; c += 16)
            bias = _mm512_fmadd_ps(_mm512_loadu_ps(q + c), _mm512_loadu_ps(mean + c), bias);
        out->bias = ath_sum_lanes_avx512(bias);
        for (int p = 0; p < layout->n_parts; p++) {
            int start = layout->part_start[p], dim = layout->part_dim[p];
            float norm = ath_rotation_scale(dim);
            const float *x = q + start, *s = scales + start;
            int8_t *codes = out->codes + start;
            if (dim == 128)
                query_part(8, x, s, norm, codes, &out->step[p], &out->sum[p]);
            else if (dim == 64)
                query_part(4, x, s, norm, codes, &out->step[p], &out->sum[p]);
            else if (dim == 32)
                query_part(2, x, s, norm, codes, &out->step[p], &out->sum[p]);
            else
                query_part(1, x, s, norm, codes, &out->step[p], &out->sum[p]);
        }
    }
}

/* 16 tokens against n heads, a constant where it is called. units: those of the tokens; norms: of the first
 * part. */
ATH_INLINE void scores_group(const int n, const ath_unpack_avx512 *unpack, const ath_kv_layout *layout,
                             const uint8_t *units, const uint8_t *norms, const ath_turbo_query *q,
                             float *scores) {
    __m512 score[8];
    for (int h = 0; h < n; h++) score[h] = _mm512_set1_ps(q[h].bias);
    for (int p = 0; p < layout->n_parts; p++) {
        __m512i dot[8];
        for (int h = 0; h < n; h++) dot[h] = _mm512_set1_epi32(-128 * q[h].sum[p]);
        int end = layout->part_start[p] + layout->part_dim[p];
        for (int c = layout->part_start[p]; c < end; c += 4, units += unpack->bytes) {
            __m512i values = ath_unpack_avx512_unit(unpack, units);
            for (int h = 0; h < n; h++)
                dot[h] = _mm512_dpbusd_epi32(dot[h], values, _mm512_set1_epi32(load_4_bytes(q[h].codes + c)));
        }
        __m512 norm = ath_load_bf16_avx512(norms + (size_t)p * ATH_PAGE_TOKENS * 2);
        for (int h = 0; h < n; h++)
            score[h] = _mm512_fmadd_ps(_mm512_mul_ps(norm, _mm512_set1_ps(q[h].step[p])),
                                       _mm512_cvtepi32_ps(dot[h]), score[h]);
    }
    for (int h = 0; h < n; h++) _mm512_storeu_ps(scores + h * ATH_PAGE_TOKENS, score[h]);
}

static void turbo_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores) {
    ath_unpack_avx512 unpack = ath_unpack_init_avx512(layout->type, -128);
    for (int g = group0; g < group1; g++) {
        const uint8_t *units = page + (size_t)g * (size_t)(layout->head_dim / 4) * (size_t)unpack.bytes;
        const uint8_t *norms = page + layout->norms_at + 32 * (size_t)g;
        float *out = scores + 16 * g;
        int h = 0;
        for (; h + 8 <= n; h += 8)
            scores_group(8, &unpack, layout, units, norms, q + h, out + h * ATH_PAGE_TOKENS);
        if (n - h >= 4) {
            scores_group(4, &unpack, layout, units, norms, q + h, out + h * ATH_PAGE_TOKENS);
            h += 4;
        }
        if (n - h == 3)
            scores_group(3, &unpack, layout, units, norms, q + h, out + h * ATH_PAGE_TOKENS);
        else if (n - h == 2)
            scores_group(2, &unpack, layout, units, norms, q + h, out + h * ATH_PAGE_TOKENS);
        else if (n - h == 1)
            scores_group(1, &unpack, layout, units, norms, q + h, out + h * ATH_PAGE_TOKENS);
    }
}

/* Weights of one head and part in 15 bits: the bytes of 128 tokens, and the value of a step. */
typedef struct weight_bytes {
    uint8_t low[ATH_PAGE_TOKENS], high[ATH_PAGE_TOKENS];
    float step;
} weight_bytes;

static void quantise_weights(const uint8_t *norms, int lo, int hi, const float *weights, weight_bytes *out) {
    __m512 w[8], max = _mm512_setzero_ps(), steps = _mm512_set1_ps((float)ATH_WEIGHT_STEPS);
    for (int g = 0; g < 8; g++) {
        __m512 norm = ath_load_bf16_avx512(norms + 32 * g);
        w[g] = _mm512_maskz_mul_ps(ath_visible_avx512(g, lo, hi), _mm512_loadu_ps(weights + 16 * g), norm);
        max = _mm512_max_ps(w[g], max);
    }
    float top = _mm512_reduce_max_ps(max);
    __m512 inverse = _mm512_set1_ps(top > 0.0f ? (float)ATH_WEIGHT_STEPS / top : 0.0f);
    for (int g = 0; g < 8; g++) {
        __m512 x = _mm512_max_ps(_mm512_mul_ps(w[g], inverse), _mm512_setzero_ps());
        __m512i code = _mm512_cvtps_epi32(_mm512_min_ps(x, steps));
        _mm_storeu_si128((__m128i *)(void *)(out->low + 16 * g), _mm512_cvtepi32_epi8(code));
        _mm_storeu_si128((__m128i *)(void *)(out->high + 16 * g),
                         _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
    }
    out->step = top * (1.0f / (float)ATH_WEIGHT_STEPS);
}

/* n heads times n_groups groups of 16 channels, both constant where it is called, over all tokens. */
ATH_INLINE void values_tile(const int n, const int n_groups, const ath_unpack_avx512 *unpack,
                            const uint8_t *units, int64_t row_bytes, const weight_bytes *w, float *acc,
                            int64_t acc_stride) {
    __m512i low[4][4], high[4][4];
    for (int h = 0; h < n; h++)
        for (int g = 0; g < n_groups; g++) low[h][g] = high[h][g] = _mm512_setzero_si512();
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4, units += row_bytes) {
        for (int g = 0; g < n_groups; g++) {
            __m512i values = ath_unpack_avx512_unit(unpack, units + g * unpack->bytes);
            for (int h = 0; h < n; h++) {
                low[h][g] =
                    _mm512_dpbusd_epi32(low[h][g], _mm512_set1_epi32(load_4_bytes(w[h].low + t)), values);
                high[h][g] =
                    _mm512_dpbusd_epi32(high[h][g], _mm512_set1_epi32(load_4_bytes(w[h].high + t)), values);
            }
        }
    }
    for (int h = 0; h < n; h++)
        for (int g = 0; g < n_groups; g++) {
            __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high[h][g], 8), low[h][g]);
            float *a = acc + h * acc_stride + 16 * g;
            _mm512_storeu_ps(
                a, _mm512_fmadd_ps(_mm512_set1_ps(w[h].step), _mm512_cvtepi32_ps(dot), _mm512_loadu_ps(a)));
        }
}

/* One part for n heads. */
ATH_INLINE void values_part(const int n, const ath_unpack_avx512 *unpack, const ath_kv_layout *layout,
                            const uint8_t *page, int part, const weight_bytes *w, float *acc) {
    int group = layout->part_start[part] / 16, end = group + layout->part_dim[part] / 16;
    int64_t row_bytes = layout->head_dim / 16 * unpack->bytes, stride = layout->head_dim;
    const int step = n > 2 ? 2 : 4; /* accumulators: 2 * n * step registers */
    for (; group + step <= end; group += step)
        values_tile(n, step, unpack, page + group * unpack->bytes, row_bytes, w, acc + 16 * group, stride);
    for (; group < end; group++)
        values_tile(n, 1, unpack, page + group * unpack->bytes, row_bytes, w, acc + 16 * group, stride);
}

static void turbo_accumulate(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc) {
    ath_unpack_avx512 unpack = ath_unpack_init_avx512(layout->type, 0);
    int64_t stride = layout->head_dim;
    for (int i = 0; i < n; i += 4, weights += 4 * ATH_PAGE_TOKENS, acc += 4 * stride) {
        int heads = n - i < 4 ? n - i : 4;
        for (int p = 0; p < layout->n_parts; p++) {
            weight_bytes w[4];
            const uint8_t *norms = page + layout->norms_at + (size_t)p * ATH_PAGE_TOKENS * 2;
            for (int h = 0; h < heads; h++)
                quantise_weights(norms, lo, hi, weights + h * ATH_PAGE_TOKENS, &w[h]);
            if (heads == 4)
                values_part(4, &unpack, layout, page, p, w, acc);
            else if (heads == 3)
                values_part(3, &unpack, layout, page, p, w, acc);
            else if (heads == 2)
                values_part(2, &unpack, layout, page, p, w, acc);
            else
                values_part(1, &unpack, layout, page, p, w, acc);
        }
    }
}

ATH_INLINE void unrotate_part(const int n_regs, float *x, const float *signs, float norm) {
    __m512 v[8];
    for (int i = 0; i < n_regs; i++) v[i] = _mm512_loadu_ps(x + 16 * i);
    ath_hadamard_avx512(v, n_regs);
    for (int i = 0; i < n_regs; i++) {
        v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(norm));
        _mm512_storeu_ps(x + 16 * i, _mm512_mul_ps(v[i], _mm512_loadu_ps(signs + 16 * i)));
    }
}

static void unrotate(const ath_kv_layout *layout, float *x) {
    for (int p = 0; p < layout->n_parts; p++) {
        int start = layout->part_start[p], dim = layout->part_dim[p];
        const float *signs = ath_rotation_signs() + start;
        float norm = ath_rotation_scale(dim), *part = x + start;
        if (dim == 128)
            unrotate_part(8, part, signs, norm);
        else if (dim == 64)
            unrotate_part(4, part, signs, norm);
        else if (dim == 32)
            unrotate_part(2, part, signs, norm);
        else
            unrotate_part(1, part, signs, norm);
    }
}

void ath_attn_turbo_init_avx512(ath_attn_kernels *k) {
    k->turbo_query = turbo_query;
    k->turbo_scores = turbo_scores;
    k->turbo_accumulate = turbo_accumulate;
    k->unrotate = unrotate;
}
