/* Attention on turbo pages with AVX2: table values widened to 16 bits times queries in 16 or weights in 15
 * bits, two products to a sum of 32 bits. */
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx2.h"

ATH_INLINE int32_t load_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

ATH_INLINE int64_t load_8_bytes(const void *p) {
    int64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* 16 integers in two registers of dwords, which fit 16 bits, as words in order. */
ATH_INLINE __m256i pack_words(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

/* The low bytes of 16 words. */
ATH_INLINE __m128i pack_bytes(__m256i x) {
    x = _mm256_and_si256(x, _mm256_set1_epi16(0xff));
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(x, x), 0xd8));
}

/* x to integers of 16 bits. */
static void quantise_part(const float *x, int n, int8_t *high, int8_t *low, float *step, int32_t *sum) {
    const float most = (float)ATH_QUERY_STEPS;
    __m256 amax = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    for (int i = 0; i < n; i += 8) amax = _mm256_max_ps(amax, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    float top = ath_max_lanes_avx2(amax);
    __m256 inverse = _mm256_set1_ps(top > 0.0f ? most / top : 0.0f);
    __m256i total = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 16) {
        __m256i integer[2];
        for (int j = 0; j < 2; j++) {
            __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), inverse);
            y = _mm256_max_ps(_mm256_min_ps(y, _mm256_set1_ps(most)), _mm256_set1_ps(-most));
            integer[j] = _mm256_cvtps_epi32(y);
            total = _mm256_add_epi32(total, integer[j]);
        }
        __m256i words = pack_words(integer[0], integer[1]);
        __m256i upper = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
        _mm_storeu_si128((__m128i *)(void *)(high + i), pack_bytes(upper));
        _mm_storeu_si128((__m128i *)(void *)(low + i), pack_bytes(words));
    }
    int32_t lanes[8];
    _mm256_storeu_si256((__m256i *)(void *)lanes, total);
    *step = top * (1.0f / (float)ATH_QUERY_STEPS);
    *sum = lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
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
    float scales[ATH_MAX_HEAD_DIM];
    for (int c = 0; c < head_dim; c += 8) {
        __m256 eq = ath_eq_scales_avx2(page + layout->eq_at + c);
        _mm256_storeu_ps(scales + c, _mm256_mul_ps(eq, _mm256_loadu_ps(signs + c)));
    }
    for (int h = 0; h < n; h++, q += head_dim, out++) {
        float x[ATH_MAX_HEAD_DIM];
        __m256 bias[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int c = 0; c < head_dim; c += 8) {
            __m256 v = _mm256_loadu_ps(q + c), mean = ath_load_f16_avx2(page + layout->mean_at + 2 * c);
            bias[c / 8 % 2] = _mm256_fmadd_ps(v, mean, bias[c / 8 % 2]);
            _mm256_storeu_ps(x + c, _mm256_mul_ps(v, _mm256_loadu_ps(scales + c)));
        }
        out->bias = ath_sum_lanes_avx2(bias[0], bias[1]);
        for (int p = 0; p < layout->n_parts; p++) {
            int start = layout->part_start[p], dim = layout->part_dim[p];
            ath_hadamard_avx2(x + start, dim);
            multiply(x + start, NULL, ath_rotation_scale(dim), dim);
            quantise_part(x + start, dim, out->high + start, out->low + start, &out->step[p], &out->sum[p]);
        }
    }
}

/* Queries in 16-bit integers, of up to 4 heads. */
typedef struct wide_queries {
    int16_t q[4][ATH_MAX_HEAD_DIM];
} wide_queries;

static void widen_query(const ath_turbo_query *q, int n, int16_t *out) {
    for (int c = 0; c < n; c += 16) {
        __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q->high + c)));
        __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q->low + c)));
        low = _mm256_add_epi16(_mm256_slli_epi16(high, 8), low);
        _mm256_storeu_si256((__m256i *)(void *)(out + c), low);
    }
}

/* Channels c, c + 1 of 16 tokens times n heads. */
ATH_INLINE void scores_pair(const int n, __m256i values, const wide_queries *wide, int c, __m256i (*dot)[2]) {
    __m256i first = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(values));
    __m256i second = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(values, 1));
    ATH_UNROLL
    for (int h = 0; h < n; h++) {
        __m256i q = _mm256_set1_epi32(load_4_bytes(&wide->q[h][c]));
        dot[h][0] = _mm256_add_epi32(dot[h][0], _mm256_madd_epi16(first, q));
        dot[h][1] = _mm256_add_epi32(dot[h][1], _mm256_madd_epi16(second, q));
    }
}

/* The 128 bytes that lie `ahead` of p. */
ATH_INLINE void prefetch_128(const uint8_t *p, intptr_t ahead) {
    const char *at = (const char *)((uintptr_t)p + (uintptr_t)ahead);
    _mm_prefetch(at, _MM_HINT_T0);
    _mm_prefetch(at + 64, _MM_HINT_T0);
}
ATH_INLINE intptr_t distance(const uint8_t *page, const uint8_t *next) {
    return next ? (intptr_t)((uintptr_t)next - (uintptr_t)page) : 0;
}

/* 16 tokens against n heads, a constant where it is called. planes: those of the tokens; norms: of the first
 * part. */
ATH_INLINE void scores_group(const int n, const ath_unpack_kind kind, const ath_unpack_avx2 *unpack,
                             const ath_kv_layout *layout, const uint8_t *planes, const uint8_t *norms,
                             intptr_t ahead, const ath_turbo_query *q, const wide_queries *wide,
                             float *scores) {
    __m256 score[4][2];
    for (int h = 0; h < n; h++) score[h][0] = score[h][1] = _mm256_set1_ps(q[h].bias);
    for (int p = 0; p < layout->n_parts; p++) {
        __m256i dot[4][2];
        for (int h = 0; h < n; h++) dot[h][0] = dot[h][1] = _mm256_setzero_si256();
        int start = layout->part_start[p], dim = layout->part_dim[p], size = dim * kind.k / 8;
        for (int c = 0; c < dim; c += 8) {
            if (c % 16 == 0) prefetch_128(planes + 2 * c * kind.k, ahead);
            ATH_UNROLL
            for (int i = 0; i < 8; i += 2) {
                __m256i values =
                    ath_unpack_key_pair(unpack, kind, planes, size, c + i, ath_unpack_bit(kind, i));
                scores_pair(n, values, wide, start + c + i, dot);
            }
        }
        planes += 16 * size;
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

ATH_INLINE void scores_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            const ath_turbo_query *q, int n, int group0, int group1, float *scores,
                            intptr_t ahead) {
    ath_unpack_avx2 unpack = ath_unpack_keys_avx2(ath_turbo_code_of(layout->type));
    for (int h = 0; h < n; h += 4, q += 4) {
        wide_queries wide;
        int heads = n - h < 4 ? n - h : 4;
        for (int i = 0; i < heads; i++) widen_query(&q[i], layout->head_dim, wide.q[i]);
        for (int g = group0; g < group1; g++) {
            const uint8_t *planes = page + (int64_t)g * layout->head_dim * 2 * kind.k;
            const uint8_t *norms = page + layout->norms_at + 32 * (size_t)g;
            float *out = scores + 16 * g + h * ATH_PAGE_TOKENS;
            if (heads == 1)
                scores_group(1, kind, &unpack, layout, planes, norms, ahead, q, &wide, out);
            else if (heads == 2)
                scores_group(2, kind, &unpack, layout, planes, norms, ahead, q, &wide, out);
            else if (heads == 3)
                scores_group(3, kind, &unpack, layout, planes, norms, ahead, q, &wide, out);
            else
                scores_group(4, kind, &unpack, layout, planes, norms, ahead, q, &wide, out);
        }
    }
}

static void turbo_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores, const uint8_t *next) {
#define SCORES(kind) scores_page(kind, layout, page, q, n, group0, group1, scores, distance(page, next))
    ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), SCORES);
#undef SCORES
}

/* Weights of one head and part in 15 bits, and the value of a step. */
typedef struct wide_weights {
    int16_t w[ATH_PAGE_TOKENS];
    float step;
} wide_weights;

static void quantise_weights(const uint8_t *norms, int lo, int hi, const float *weights, wide_weights *out) {
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
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 16) {
        __m256i code[2];
        for (int i = 0; i < 2; i++) {
            __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + t + 8 * i), inverse);
            x = _mm256_min_ps(_mm256_max_ps(x, _mm256_setzero_ps()), _mm256_set1_ps((float)ATH_WEIGHT_STEPS));
            code[i] = _mm256_cvtps_epi32(x);
        }
        _mm256_storeu_si256((__m256i *)(void *)(out->w + t), pack_words(code[0], code[1]));
    }
    out->step = top * (1.0f / (float)ATH_WEIGHT_STEPS);
}

/* 8 channels, from c of a part on, of n heads, a constant where it is called, over all tokens. codes: of the
 * part's first 4 tokens; size: bytes of its stream. */
ATH_INLINE void values_tile(const int n, const ath_unpack_kind kind, const ath_unpack_avx2 *unpack,
                            const uint8_t *codes, int size, int64_t row_bytes, int c, intptr_t ahead,
                            const wide_weights *w, float *acc, int64_t acc_stride) {
    __m256i even[3], odd[3]; /* channels c, c + 2 ... and c + 1, c + 3 ...: a quadword has two sums of one */
    for (int h = 0; h < n; h++) even[h] = odd[h] = _mm256_setzero_si256();
    for (int t = 0; t < ATH_PAGE_TOKENS; t += 4, codes += row_bytes) {
        if (c % 64 == 0) prefetch_128(codes + c * kind.k / 2, ahead);
        __m256i values = ath_unpack_value_eight(unpack, kind, codes, size, c);
        __m256i low = ath_low_bytes_avx2(values), high = ath_high_bytes_avx2(values);
        ATH_UNROLL
        for (int h = 0; h < n; h++) {
            __m256i weights = _mm256_set1_epi64x(load_8_bytes(w[h].w + t));
            even[h] = _mm256_add_epi32(even[h], _mm256_madd_epi16(low, weights));
            odd[h] = _mm256_add_epi32(odd[h], _mm256_madd_epi16(high, weights));
        }
    }
    for (int h = 0; h < n; h++) {
        __m256i dot = _mm256_shuffle_epi32(_mm256_hadd_epi32(even[h], odd[h]), 0xd8);
        float *a = acc + h * acc_stride + c;
        _mm256_storeu_ps(
            a, _mm256_fmadd_ps(_mm256_set1_ps(w[h].step), _mm256_cvtepi32_ps(dot), _mm256_loadu_ps(a)));
    }
}

/* Up to 3 heads. */
ATH_INLINE void values_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            int lo, int hi, const float *weights, int n, float *acc, intptr_t ahead) {
    ath_unpack_avx2 unpack = ath_unpack_values_avx2(ath_turbo_code_of(layout->type), kind);
    int64_t stride = layout->head_dim, row_bytes = stride * kind.k / 2;
    for (int p = 0; p < layout->n_parts; p++) {
        wide_weights w[3];
        int start = layout->part_start[p], dim = layout->part_dim[p], size = dim * kind.k / 8;
        const uint8_t *norms = page + layout->norms_at + (size_t)p * ATH_PAGE_TOKENS * 2,
                      *codes = page + start * kind.k / 2;
        float *out = acc + start;
        for (int h = 0; h < n; h++) quantise_weights(norms, lo, hi, weights + h * ATH_PAGE_TOKENS, &w[h]);
        for (int c = 0; c < dim; c += 8) {
            if (n == 1)
                values_tile(1, kind, &unpack, codes, size, row_bytes, c, ahead, w, out, stride);
            else if (n == 2)
                values_tile(2, kind, &unpack, codes, size, row_bytes, c, ahead, w, out, stride);
            else
                values_tile(3, kind, &unpack, codes, size, row_bytes, c, ahead, w, out, stride);
        }
    }
}

static void turbo_accumulate(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc, const uint8_t *next) {
    for (int i = 0; i < n; i += 3, weights += 3 * ATH_PAGE_TOKENS, acc += 3 * layout->head_dim) {
        int heads = n - i < 3 ? n - i : 3;
#define VALUES(kind) values_page(kind, layout, page, lo, hi, weights, heads, acc, distance(page, next))
        ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), VALUES);
#undef VALUES
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
