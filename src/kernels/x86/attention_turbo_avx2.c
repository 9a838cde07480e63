/* Attention on turbo pages with AVX2. Products of int8 with int8 (scores) use |value| and the query with the
 * value's sign, because pairs of them then fit 16 bits; products with 15-bit weights widen the values of even
 * and odd tokens. */
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx2.h"

ATH_INLINE int32_t load_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* x (destroyed) to codes. */
static void quantise_part(float *x, int n, int8_t *codes, float *step, int32_t *sum) {
    __m256 amax = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    for (int i = 0; i < n; i += 8) amax = _mm256_max_ps(amax, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    float top = ath_max_lanes_avx2(amax);
    __m256 inverse = _mm256_set1_ps(top > 0.0f ? 127.0f / top : 0.0f);
    int32_t total = 0;
    for (int i = 0; i < n; i += 8) {
        __m256 y = _mm256_min_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse), _mm256_set1_ps(127.0f));
        int32_t code[8];
        _mm256_storeu_si256((__m256i *)(void *)code,
                            _mm256_cvtps_epi32(_mm256_max_ps(y, _mm256_set1_ps(-127.0f))));
        for (int j = 0; j < 8; j++) {
            codes[i + j] = (int8_t)code[j];
            total += code[j];
        }
    }
    *step = top * (1.0f / 127.0f);
    *sum = total;
}

ATH_INLINE void multiply(float *x, const float *y, float factor, int n) {
    for (int i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor));
        _mm256_storeu_ps(x + i, y ? _mm256_mul_ps(v, _mm256_loadu_ps(y + i)) : v);
    }
}

static void turbo_query(const ath_kv_layout *layout, const uint8_t *page, const float *q, int n,
                        ath_turbo_query *out) {
    const float *signs = ath_rotation_signs();
    int head_dim = layout->head_dim;
    for (int h = 0; h < n; h++, q += head_dim, out++) {
        float x[ATH_MAX_HEAD_DIM];
        __m256 bias[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int c = 0; c < head_dim; c += 8) {
            __m256 v = _mm256_loadu_ps(q + c), mean = ath_load_f16_avx2(page + layout->mean_at + 2 * c);
            bias[c / 8 % 2] = _mm256_fmadd_ps(v, mean, bias[c / 8 % 2]);
            v = _mm256_mul_ps(v, ath_eq_scales_avx2(page + layout->eq_at + c));
            _mm256_storeu_ps(x + c, _mm256_mul_ps(v, _mm256_loadu_ps(signs + c)));
        }
        out->bias = ath_sum_lanes_avx2(bias[0], bias[1]);
        for (int p = 0; p < layout->n_parts; p++) {
            int start = layout->part_start[p], dim = layout->part_dim[p];
            ath_hadamard_avx2(x + start, dim);
            multiply(x + start, NULL, ath_rotation_scale(dim), dim);
            quantise_part(x + start, dim, out->codes + start, &out->step[p], &out->sum[p]);
        }
    }
}

/* 16 tokens against n heads, a constant where it is called. */
ATH_INLINE void scores_group(const int n, const ath_unpack_avx2 *unpack, const ath_kv_layout *layout,
                             const uint8_t *units, const uint8_t *norms, const ath_turbo_query *q,
                             float *scores) {
    __m256 score[4][2];
    for (int h = 0; h < n; h++) score[h][0] = score[h][1] = _mm256_set1_ps(q[h].bias);
    for (int p = 0; p < layout->n_parts; p++) {
        __m256i dot[4][2];
        for (int h = 0; h < n; h++) dot[h][0] = dot[h][1] = _mm256_setzero_si256();
        int end = layout->part_start[p] + layout->part_dim[p];
        for (int c = layout->part_start[p]; c < end; c += 4, units += unpack->bytes)
            for (int half = 0; half < 2; half++) {
                __m256i values = ath_unpack_avx2_half(unpack, units, half), size = _mm256_abs_epi8(values);
                for (int h = 0; h < n; h++) {
                    __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(load_4_bytes(q[h].codes + c)), values);
                    x = _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), _mm256_set1_epi16(1));
                    dot[h][half] = _mm256_add_epi32(dot[h][half], x);
                }
            }
        for (int half = 0; half < 2; half++) {
            __m256 norm = ath_load_bf16_avx2(norms + (size_t)p * ATH_PAGE_TOKENS * 2 + 16 * half);
            for (int h = 0; h < n; h++)
                score[h][half] = _mm256_fmadd_ps(_mm256_mul_ps(norm, _mm256_set1_ps(q[h].step[p])),
                                                 _mm256_cvtepi32_ps(dot[h][half]), score[h][half]);
        }
    }
    for (int h = 0; h < n; h++)
        for (int half = 0; half < 2; half++)
            _mm256_storeu_ps(scores + h * ATH_PAGE_TOKENS + 8 * half, score[h][half]);
}

static void turbo_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores) {
    ath_unpack_avx2 unpack = ath_unpack_init_avx2(layout->type);
    for (int g = group0; g < group1; g++) {
        const uint8_t *units = page + (size_t)g * (size_t)(layout->head_dim / 4) * (size_t)unpack.bytes;
        const uint8_t *norms = page + layout->norms_at + 32 * (size_t)g;
        for (int h = 0; h < n; h += 3) {
            float *out = scores + 16 * g + h * ATH_PAGE_TOKENS;
            if (n - h == 1)
                scores_group(1, &unpack, layout, units, norms, q + h, out);
            else if (n - h == 2)
                scores_group(2, &unpack, layout, units, norms, q + h, out);
            else
                scores_group(3, &unpack, layout, units, norms, q + h, out);
        }
    }
}

/* Weights of one head and part in 15 bits: pairs of tokens 4i, 4i + 2 and 4i + 1, 4i + 3, and the value of a
 * step. */
typedef struct weight_pairs {
    int16_t even[ATH_PAGE_TOKENS / 2], odd[ATH_PAGE_TOKENS / 2];
    float step;
} weight_pairs;

static void quantise_weights(const uint8_t *norms, int lo, int hi, const float *weights, weight_pairs *out) {
    float w[ATH_PAGE_TOKENS];
    __m256 max = _mm256_setzero_ps();
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(weights + t), ath_load_bf16_avx2(norms + 2 * t));
        x = _mm256_and_ps(x, ath_visible_avx2(t, lo, hi));
        max = _mm256_max_ps(x, max);
        _mm256_storeu_ps(w + t, x);
    }
    float top = ath_max_lanes_avx2(max);
    __m256 inverse = _mm256_set1_ps(top > 0.0f ? (float)ATH_WEIGHT_STEPS / top : 0.0f);
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 8) {
        __m256 x = _mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(w + t), inverse), _mm256_setzero_ps());
        int32_t code[8];
        x = _mm256_min_ps(x, _mm256_set1_ps((float)ATH_WEIGHT_STEPS));
        _mm256_storeu_si256((__m256i *)(void *)code, _mm256_cvtps_epi32(x));
        for (int i = 0; i < 4; i++) {
            out->even[t / 2 + i] = (int16_t)code[2 * i];
            out->odd[t / 2 + i] = (int16_t)code[2 * i + 1];
        }
    }
    out->step = top * (1.0f / (float)ATH_WEIGHT_STEPS);
}

/* 16 channels of n heads, a constant where it is called, over all tokens. */
ATH_INLINE void values_tile(const int n, const ath_unpack_avx2 *unpack, const uint8_t *units,
                            int64_t row_bytes, const weight_pairs *w, float *acc, int64_t acc_stride) {
    __m256i dot[3][2];
    for (int h = 0; h < n; h++) dot[h][0] = dot[h][1] = _mm256_setzero_si256();
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4, units += row_bytes)
        for (int half = 0; half < 2; half++) {
            __m256i values = ath_unpack_avx2_half(unpack, units, half);
            __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(values, 8), 8),
                    odd = _mm256_srai_epi16(values, 8);
            for (int h = 0; h < n; h++) {
                __m256i x = _mm256_madd_epi16(even, _mm256_set1_epi32(load_4_bytes(w[h].even + t / 2)));
                __m256i y = _mm256_madd_epi16(odd, _mm256_set1_epi32(load_4_bytes(w[h].odd + t / 2)));
                dot[h][half] = _mm256_add_epi32(dot[h][half], _mm256_add_epi32(x, y));
            }
        }
    for (int h = 0; h < n; h++)
        for (int half = 0; half < 2; half++) {
            float *a = acc + h * acc_stride + 8 * half;
            __m256 x = _mm256_cvtepi32_ps(dot[h][half]);
            _mm256_storeu_ps(a, _mm256_fmadd_ps(_mm256_set1_ps(w[h].step), x, _mm256_loadu_ps(a)));
        }
}

static void turbo_accumulate(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc) {
    ath_unpack_avx2 unpack = ath_unpack_init_avx2(layout->type);
    int64_t stride = layout->head_dim, row_bytes = layout->head_dim / 16 * unpack.bytes;
    for (int i = 0; i < n; i += 3, weights += 3 * ATH_PAGE_TOKENS, acc += 3 * stride) {
        int heads = n - i < 3 ? n - i : 3;
        for (int p = 0; p < layout->n_parts; p++) {
            weight_pairs w[3];
            const uint8_t *norms = page + layout->norms_at + (size_t)p * ATH_PAGE_TOKENS * 2;
            for (int h = 0; h < heads; h++)
                quantise_weights(norms, lo, hi, weights + h * ATH_PAGE_TOKENS, &w[h]);
            int end = layout->part_start[p] + layout->part_dim[p];
            for (int c = layout->part_start[p]; c < end; c += 16) {
                const uint8_t *units = page + c / 16 * unpack.bytes;
                if (heads == 1)
                    values_tile(1, &unpack, units, row_bytes, w, acc + c, stride);
                else if (heads == 2)
                    values_tile(2, &unpack, units, row_bytes, w, acc + c, stride);
                else
                    values_tile(3, &unpack, units, row_bytes, w, acc + c, stride);
            }
        }
    }
}

static void unrotate(const ath_kv_layout *layout, float *x) {
    for (int p = 0; p < layout->n_parts; p++) {
        int start = layout->part_start[p], dim = layout->part_dim[p];
        ath_hadamard_avx2(x + start, dim);
        multiply(x + start, ath_rotation_signs() + start, ath_rotation_scale(dim), dim);
    }
}

void ath_attn_turbo_init_avx2(ath_attn_kernels *k) {
    k->turbo_query = turbo_query;
    k->turbo_scores = turbo_scores;
    k->turbo_accumulate = turbo_accumulate;
    k->unrotate = unrotate;
}
