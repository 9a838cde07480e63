/* Attention on turbo pages with AVX-512: 64 symbols become bytes with three to five instructions, vpdpbusd
 * sums products of four channels (scores) or four tokens (values) per lane. */
#include "kernels/attention_avx512.h"

#include <string.h>

#include "base/half.h"

ATH_INLINE int32_t load_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

ATH_INLINE void query_part(const int n_regs, const float *x, const float *scales, float norm, int8_t *high,
                           int8_t *low, float *step, int32_t *sum) {
    __m512 v[8], amax = _mm512_setzero_ps();
    for (int i = 0; i < n_regs; i++)
        v[i] = _mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_loadu_ps(scales + 16 * i));
    ath_hadamard_avx512(v, n_regs);
    for (int i = 0; i < n_regs; i++) {
        v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(norm));
        amax = _mm512_max_ps(amax, _mm512_abs_ps(v[i]));
    }
    float top = _mm512_reduce_max_ps(amax);
    const float most = (float)ATH_QUERY_STEPS;
    __m512 inverse = _mm512_set1_ps(top > 0.0f ? most / top : 0.0f);
    __m512i total = _mm512_setzero_si512();
    for (int i = 0; i < n_regs; i++) {
        __m512 y = _mm512_min_ps(_mm512_mul_ps(v[i], inverse), _mm512_set1_ps(most));
        __m512i integer = _mm512_cvtps_epi32(_mm512_max_ps(y, _mm512_set1_ps(-most)));
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(integer, _mm512_set1_epi32(128)), 8);
        total = _mm512_add_epi32(total, integer);
        _mm_storeu_si128((__m128i *)(void *)(high + 16 * i), _mm512_cvtepi32_epi8(h));
        __m512i l = _mm512_sub_epi32(integer, _mm512_slli_epi32(h, 8));
        _mm_storeu_si128((__m128i *)(void *)(low + 16 * i), _mm512_cvtepi32_epi8(l));
    }
    *step = top * (1.0f / (float)ATH_QUERY_STEPS);
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
            int8_t *high = out->high + start, *low = out->low + start;
            if (dim == 128)
                query_part(8, x, s, norm, high, low, &out->step[p], &out->sum[p]);
            else if (dim == 64)
                query_part(4, x, s, norm, high, low, &out->step[p], &out->sum[p]);
            else if (dim == 32)
                query_part(2, x, s, norm, high, low, &out->step[p], &out->sum[p]);
            else
                query_part(1, x, s, norm, high, low, &out->step[p], &out->sum[p]);
        }
    }
}

/* 64 values of 4 channels from c on, times n heads. */
ATH_INLINE void scores_quad(const int n, __m512i values, const ath_turbo_query *q, int c, __m512i *high,
                            __m512i *low) {
    ATH_UNROLL
    for (int h = 0; h < n; h++) {
        high[h] = _mm512_dpbusd_epi32(high[h], values, _mm512_set1_epi32(load_4_bytes(q[h].high + c)));
        low[h] = _mm512_dpbusd_epi32(low[h], values, _mm512_set1_epi32(load_4_bytes(q[h].low + c)));
    }
}

/* 16 tokens against n heads, a constant where it is called. planes: those of the tokens; norms: of the first
 * part. */
ATH_INLINE void scores_group(const int n, const ath_unpack_kind kind, const ath_unpack_avx512 *unpack,
                             const ath_kv_layout *layout, const uint8_t *planes, const uint8_t *norms,
                             const ath_turbo_query *q, float *scores) {
    __m512 score[4];
    int bytes = ath_kv_turbo_bits(layout->type) * kind.quads / 2; /* of a token's stream in a window */
    for (int h = 0; h < n; h++) score[h] = _mm512_set1_ps(q[h].bias);
    for (int p = 0; p < layout->n_parts; p++) {
        __m512i high[4], low[4];
        for (int h = 0; h < n; h++) {
            high[h] = _mm512_setzero_si512();
            low[h] = _mm512_set1_epi32(-128 * q[h].sum[p]); /* values are table values + 128 */
        }
        const uint8_t *start = planes;
        int c = layout->part_start[p], last = c + layout->part_dim[p] - 4 * kind.quads;
        for (; c < last + !kind.trellis; c += 4 * kind.quads, planes += 16 * bytes) {
            __m512i window = ath_unpack_window_avx512(unpack, planes);
            for (int i = 0; i < kind.quads; i++)
                scores_quad(n, ath_unpack_avx512_look_up(unpack, kind, window, i), q, c + 4 * i, high, low);
        }
        if (kind.trellis) {
            __m512i window = ath_unpack_window_end_avx512(unpack, planes, start);
            for (int i = 0; i < kind.quads; i++)
                scores_quad(n, ath_unpack_avx512_look_up(unpack, kind, window, i), q, c + 4 * i, high, low);
            planes += 16 * bytes;
        }
        __m512 norm = ath_load_bf16_avx512(norms + (size_t)p * ATH_PAGE_TOKENS * 2);
        for (int h = 0; h < n; h++) {
            __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[h], 8), low[h]));
            score[h] = _mm512_fmadd_ps(_mm512_mul_ps(norm, _mm512_set1_ps(q[h].step[p])), dot, score[h]);
        }
    }
    for (int h = 0; h < n; h++) _mm512_storeu_ps(scores + h * ATH_PAGE_TOKENS, score[h]);
}

ATH_INLINE void scores_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            const ath_turbo_query *q, int n, int group0, int group1, float *scores) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    ath_unpack_avx512 unpack = ath_unpack_keys_avx512(code, kind, -128);
    for (int g = group0; g < group1; g++) {
        const uint8_t *planes = page + (size_t)g * (size_t)(layout->head_dim * 2 * code->k);
        const uint8_t *norms = page + layout->norms_at + 32 * (size_t)g;
        float *out = scores + 16 * g;
        int h = 0;
        for (; h + 4 <= n; h += 4)
            scores_group(4, kind, &unpack, layout, planes, norms, q + h, out + h * ATH_PAGE_TOKENS);
        out += h * ATH_PAGE_TOKENS;
        if (n - h == 3)
            scores_group(3, kind, &unpack, layout, planes, norms, q + h, out);
        else if (n - h == 2)
            scores_group(2, kind, &unpack, layout, planes, norms, q + h, out);
        else if (n - h == 1)
            scores_group(1, kind, &unpack, layout, planes, norms, q + h, out);
    }
}

static void turbo_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores) {
#define SCORES(kind) scores_page(kind, layout, page, q, n, group0, group1, scores)
    ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), SCORES);
#undef SCORES
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

/* A page's codes as a part of V reads them. */
typedef struct value_codes {
    ath_unpack_avx512 unpack;
    const uint8_t *part;       /* of the part's first 4 tokens */
    int64_t row_bytes, window; /* bytes of 4 tokens; of 16 channels of them */
} value_codes;

/* n heads times n_groups groups of 16 channels, both constant where it is called, over all tokens. first: of
 * the groups; ends: whether the last of them is the part's last. */
ATH_INLINE void values_tile(const int n, const int n_groups, const ath_unpack_kind kind, const bool ends,
                            const value_codes *codes, int first, const weight_bytes *w, float *acc,
                            int64_t acc_stride) {
    __m512i low[4][4], high[4][4];
    for (int h = 0; h < n; h++)
        for (int g = 0; g < n_groups; g++) low[h][g] = high[h][g] = _mm512_setzero_si512();
    const uint8_t *start = codes->part;
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4, start += codes->row_bytes) {
        ATH_UNROLL
        for (int g = 0; g < n_groups; g++) {
            const uint8_t *at = start + (first + g) * codes->window;
            __m512i window = kind.trellis && ends && g == n_groups - 1
                                 ? ath_unpack_window_end_avx512(&codes->unpack, at, start)
                                 : ath_unpack_window_avx512(&codes->unpack, at);
            __m512i values = ath_unpack_avx512_look_up(&codes->unpack, kind, window, 0);
            ATH_UNROLL
            for (int h = 0; h < n; h++) {
                low[h][g] =
                    _mm512_dpbusd_epi32(low[h][g], _mm512_set1_epi32(load_4_bytes(w[h].low + t)), values);
                high[h][g] =
                    _mm512_dpbusd_epi32(high[h][g], _mm512_set1_epi32(load_4_bytes(w[h].high + t)), values);
            }
        }
    }
    acc += 16 * first;
    for (int h = 0; h < n; h++)
        for (int g = 0; g < n_groups; g++) {
            __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high[h][g], 8), low[h][g]);
            float *a = acc + h * acc_stride + 16 * g;
            _mm512_storeu_ps(
                a, _mm512_fmadd_ps(_mm512_set1_ps(w[h].step), _mm512_cvtepi32_ps(dot), _mm512_loadu_ps(a)));
        }
}

/* One part for n heads; acc: of its first channel. */
ATH_INLINE void values_part(const int n, const ath_unpack_kind kind, const value_codes *codes, int dim,
                            const weight_bytes *w, float *acc, int64_t stride) {
    const int step = n > 2 ? 2 : 4; /* accumulators: 2 * n * step registers */
    int group = 0, end = dim / 16;
    for (; group + step < end; group += step) values_tile(n, step, kind, false, codes, group, w, acc, stride);
    if (group + step == end)
        values_tile(n, step, kind, true, codes, group, w, acc, stride);
    else if (group + 2 == end)
        values_tile(n, 2, kind, true, codes, group, w, acc, stride);
    else
        values_tile(n, 1, kind, true, codes, group, w, acc, stride);
}

/* Up to 4 heads. */
ATH_INLINE void values_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            int lo, int hi, const float *weights, int n, float *acc) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    int64_t stride = layout->head_dim;
    value_codes codes = {
        .unpack = ath_unpack_values_avx512(code), .row_bytes = stride * code->k / 2, .window = 8 * code->k};
    for (int p = 0; p < layout->n_parts; p++) {
        weight_bytes w[4];
        int dim = layout->part_dim[p];
        const uint8_t *norms = page + layout->norms_at + (size_t)p * ATH_PAGE_TOKENS * 2;
        float *out = acc + layout->part_start[p];
        codes.part = page + layout->part_start[p] * code->k / 2;
        for (int h = 0; h < n; h++) quantise_weights(norms, lo, hi, weights + h * ATH_PAGE_TOKENS, &w[h]);
        if (n == 4)
            values_part(4, kind, &codes, dim, w, out, stride);
        else if (n == 3)
            values_part(3, kind, &codes, dim, w, out, stride);
        else if (n == 2)
            values_part(2, kind, &codes, dim, w, out, stride);
        else
            values_part(1, kind, &codes, dim, w, out, stride);
    }
}

static void turbo_accumulate(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc) {
    for (int i = 0; i < n; i += 4, weights += 4 * ATH_PAGE_TOKENS, acc += 4 * layout->head_dim) {
        int heads = n - i < 4 ? n - i : 4;
#define VALUES(kind) values_page(kind, layout, page, lo, hi, weights, heads, acc)
        ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), VALUES);
#undef VALUES
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
