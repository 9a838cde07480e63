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

/* Below it a reciprocal may overflow, and products with it must be clamped. */
static const float LEAST_TOP = 1e-30f;

/* 64 integers of at most 15 bits and a sign, in dwords, as bytes in order: integer = 256 * high + low. With
 * half = 128 low is signed, with 0 unsigned. Returns four partial sums per lane... of all. */
typedef struct byte_pair {
    __m512i low, high;
} byte_pair;

ATH_INLINE byte_pair split_bytes(const __m512i *x, int half, __m512i *sum) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low = _mm512_set1_epi16(0xff), up = _mm512_set1_epi16((short)half),
                  one = _mm512_set1_epi16(1);
    __m512i a = _mm512_packs_epi32(x[0], x[1]), b = _mm512_packs_epi32(x[2], x[3]);
    *sum = _mm512_add_epi32(*sum, _mm512_add_epi32(_mm512_madd_epi16(a, one), _mm512_madd_epi16(b, one)));
    byte_pair out;
    out.low = _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
    out.low = _mm512_permutexvar_epi32(order, out.low);
    a = _mm512_srai_epi16(_mm512_add_epi16(a, up), 8);
    b = _mm512_srai_epi16(_mm512_add_epi16(b, up), 8);
    out.high = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b));
    return out;
}

/* Up to 64 bytes to p: 16 * n_regs. */
ATH_INLINE void store_bytes(void *p, __m512i x, const int n_regs) {
    if (n_regs >= 4)
        _mm512_storeu_si512(p, x);
    else
        _mm512_mask_storeu_epi8(p, ((__mmask64)1 << 16 * n_regs) - 1, x);
}

ATH_INLINE void query_part(const int n_regs, const float *x, const float *scales, float norm, int8_t *high,
                           int8_t *low, float *step, int32_t *sum) {
    const float most = (float)ATH_QUERY_STEPS;
    __m512 v[8], amax = _mm512_setzero_ps();
    for (int i = 0; i < n_regs; i++)
        v[i] = _mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_loadu_ps(scales + 16 * i));
    ath_hadamard_avx512(v, n_regs);
    for (int i = 0; i < n_regs; i++) {
        v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(norm));
        amax = _mm512_max_ps(amax, _mm512_abs_ps(v[i]));
    }
    float top = _mm512_reduce_max_ps(amax);
    __m512 inverse = _mm512_set1_ps(top > 0.0f ? most / top : 0.0f);
    for (int i = 0; i < n_regs; i++) v[i] = _mm512_mul_ps(v[i], inverse);
    if (top < LEAST_TOP) {
        for (int i = 0; i < n_regs; i++) {
            v[i] = _mm512_min_ps(v[i], _mm512_set1_ps(most));
            v[i] = _mm512_max_ps(v[i], _mm512_set1_ps(-most));
        }
    }
    __m512i integers[8] = {_mm512_setzero_si512()}, total = _mm512_setzero_si512();
    for (int i = 0; i < n_regs; i++) integers[i] = _mm512_cvtps_epi32(v[i]);
    for (int i = n_regs; i < 4; i++) integers[i] = _mm512_setzero_si512();
    for (int i = 0; i < n_regs; i += 4) {
        byte_pair bytes = split_bytes(integers + i, 128, &total);
        store_bytes(high + 16 * i, bytes.high, n_regs);
        store_bytes(low + 16 * i, bytes.low, n_regs);
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

/* The 128 bytes that lie `ahead` of p: more than a step of a loop reads, which makes up for tables at the
 * page's end. */
ATH_INLINE void prefetch_128(const uint8_t *p, intptr_t ahead) {
    const char *at = (const char *)((uintptr_t)p + (uintptr_t)ahead);
    _mm_prefetch(at, _MM_HINT_T1);
    _mm_prefetch(at + 64, _MM_HINT_T1);
}
ATH_INLINE intptr_t distance(const uint8_t *page, const uint8_t *next) {
    return next ? (intptr_t)((uintptr_t)next - (uintptr_t)page) : 0;
}

/* What scores read of a page, in one place. */
typedef struct key_codes {
    ath_unpack_avx512 unpack;
    const ath_kv_layout *layout;
    const uint8_t *planes, *norms; /* of the first group of 16 tokens and the first part */
    int64_t group_bytes;           /* from its planes to those of the next 16 tokens */
    int window_bytes;              /* of planes */
    intptr_t ahead;                /* where the next page lies */
} key_codes;

/* Sums of high and low bytes, by group and head. */
typedef struct score_sums {
    __m512i high[2][4], low[2][4];
} score_sums;

/* 16 channels from c on of n_groups times 16 tokens, times n heads. n, n_groups and end (is it the end of a
 * part?) are constants in each call. planes: of the channels; start: of the part. */
ATH_INLINE void scores_step(const int n, const int n_groups, const ath_unpack_kind kind, const bool end,
                            const key_codes *codes, const uint8_t *planes, const uint8_t *start,
                            const ath_turbo_query *q, int c, score_sums *sums) {
    const int windows = 4 / kind.quads;
    ATH_UNROLL
    for (int g = 0; g < n_groups; g++) prefetch_128(planes + g * codes->group_bytes, codes->ahead);
    ATH_UNROLL
    for (int w = 0; w < windows; w++, planes += codes->window_bytes) {
        __m512i window[2];
        ATH_UNROLL
        for (int g = 0; g < n_groups; g++)
            window[g] = kind.trellis && end && w == windows - 1
                            ? ath_unpack_window_end_avx512(&codes->unpack, planes + g * codes->group_bytes,
                                                           start + g * codes->group_bytes)
                            : ath_unpack_window_avx512(&codes->unpack, planes + g * codes->group_bytes);
        ATH_UNROLL
        for (int i = 0; i < kind.quads; i++) {
            const int at = c + 4 * (w * kind.quads + i);
            __m512i values[2];
            ATH_UNROLL
            for (int g = 0; g < n_groups; g++)
                values[g] = ath_unpack_avx512_look_up(&codes->unpack, kind, window[g], i);
            ATH_UNROLL
            for (int h = 0; h < n; h++) {
                __m512i high = _mm512_set1_epi32(load_4_bytes(q[h].high + at)),
                        low = _mm512_set1_epi32(load_4_bytes(q[h].low + at));
                ATH_UNROLL
                for (int g = 0; g < n_groups; g++) {
                    ath_dot_avx512(&sums->high[g][h], values[g], high);
                    ath_dot_avx512(&sums->low[g][h], values[g], low);
                }
            }
        }
    }
}

/* Tokens from `group` on against n heads; n_groups times 16 of them. Both are constants where it is called:
 * two groups share what they load of the queries, and hide the time that a sum takes. */
ATH_INLINE void scores_groups(const int n, const int n_groups, const ath_unpack_kind kind,
                              const key_codes *codes, int group, const ath_turbo_query *q, float *scores) {
    const uint8_t *planes = codes->planes + group * codes->group_bytes;
    const ath_kv_layout *layout = codes->layout;
    __m512 score[2][4];
    for (int g = 0; g < n_groups; g++)
        for (int h = 0; h < n; h++) score[g][h] = _mm512_set1_ps(q[h].bias);
    for (int p = 0; p < layout->n_parts; p++) {
        score_sums sums;
        for (int g = 0; g < n_groups; g++)
            for (int h = 0; h < n; h++) {
                sums.high[g][h] = _mm512_setzero_si512();
                sums.low[g][h] = _mm512_set1_epi32(-128 * q[h].sum[p]); /* values are table values + 128 */
            }
        const uint8_t *start = planes;
        int c = layout->part_start[p], last = c + layout->part_dim[p] - 16;
        int step_bytes = codes->window_bytes * 4 / kind.quads;
        for (; c < last; c += 16, planes += step_bytes)
            scores_step(n, n_groups, kind, false, codes, planes, start, q, c, &sums);
        scores_step(n, n_groups, kind, true, codes, planes, start, q, c, &sums);
        planes += step_bytes;
        for (int g = 0; g < n_groups; g++) {
            __m512 norm =
                ath_load_bf16_avx512(codes->norms + 2 * (size_t)(p * ATH_PAGE_TOKENS + 16 * (group + g)));
            for (int h = 0; h < n; h++) {
                __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(sums.high[g][h], 8), sums.low[g][h]);
                __m512 step = _mm512_mul_ps(norm, _mm512_set1_ps(q[h].step[p]));
                score[g][h] = _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(dot), score[g][h]);
            }
        }
    }
    for (int g = 0; g < n_groups; g++)
        for (int h = 0; h < n; h++)
            _mm512_storeu_ps(scores + h * ATH_PAGE_TOKENS + 16 * (group + g), score[g][h]);
}

ATH_INLINE void scores_heads(const int n, const ath_unpack_kind kind, const key_codes *codes, int group0,
                             int group1, const ath_turbo_query *q, float *scores) {
    for (; group0 + 2 <= group1; group0 += 2) scores_groups(n, 2, kind, codes, group0, q, scores);
    if (group0 < group1) scores_groups(n, 1, kind, codes, group0, q, scores);
}

ATH_INLINE void scores_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            const ath_turbo_query *q, int n, int group0, int group1, float *scores,
                            const uint8_t *next) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    key_codes codes = {.unpack = ath_unpack_keys_avx512(code, kind, -128),
                       .layout = layout,
                       .planes = page,
                       .norms = page + layout->norms_at,
                       .group_bytes = (int64_t)layout->head_dim * 2 * code->k,
                       .window_bytes = 8 * code->k * kind.quads,
                       .ahead = distance(page, next)};
    for (; n >= 4; n -= 4, q += 4, scores += 4 * ATH_PAGE_TOKENS)
        scores_heads(4, kind, &codes, group0, group1, q, scores);
    if (n == 3)
        scores_heads(3, kind, &codes, group0, group1, q, scores);
    else if (n == 2)
        scores_heads(2, kind, &codes, group0, group1, q, scores);
    else if (n == 1)
        scores_heads(1, kind, &codes, group0, group1, q, scores);
}

static void turbo_scores(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores, const uint8_t *next) {
#define SCORES(kind) scores_page(kind, layout, page, q, n, group0, group1, scores, next)
    ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), SCORES);
#undef SCORES
}

/* Weights of one head and part in 15 bits: the bytes of 128 tokens, and the value of a step. */
typedef struct weight_bytes {
    uint8_t low[ATH_PAGE_TOKENS], high[ATH_PAGE_TOKENS];
    float step;
} weight_bytes;

static void quantise_weights(const uint8_t *norms, int lo, int hi, const float *weights, weight_bytes *out) {
    const float steps = (float)ATH_WEIGHT_STEPS;
    const bool all = lo == 0 && hi == ATH_PAGE_TOKENS;
    __m512 w[8], max = _mm512_setzero_ps();
    for (int g = 0; g < 8; g++) {
        w[g] = _mm512_mul_ps(_mm512_loadu_ps(weights + 16 * g), ath_load_bf16_avx512(norms + 32 * g));
        if (!all) w[g] = _mm512_maskz_mov_ps(ath_visible_avx512(g, lo, hi), w[g]);
        max = _mm512_max_ps(w[g], max);
    }
    float top = _mm512_reduce_max_ps(max);
    __m512 inverse = _mm512_set1_ps(top > 0.0f ? steps / top : 0.0f);
    for (int g = 0; g < 8; g++) w[g] = _mm512_max_ps(_mm512_mul_ps(w[g], inverse), _mm512_setzero_ps());
    if (top < LEAST_TOP)
        for (int g = 0; g < 8; g++) w[g] = _mm512_min_ps(w[g], _mm512_set1_ps(steps));
    __m512i integers[8], unused = _mm512_setzero_si512();
    for (int g = 0; g < 8; g++) integers[g] = _mm512_cvtps_epi32(w[g]);
    for (int half = 0; half < 2; half++) {
        byte_pair bytes = split_bytes(integers + 4 * half, 0, &unused);
        _mm512_storeu_si512(out->low + 64 * half, bytes.low);
        _mm512_storeu_si512(out->high + 64 * half, bytes.high);
    }
    out->step = top * (1.0f / steps);
}

/* A page's codes as a part of V reads them. */
typedef struct value_codes {
    ath_unpack_avx512 narrow, wide; /* windows of 16 channels, of 32 */
    const uint8_t *part;            /* of the part's first 4 tokens */
    int64_t row_bytes, window;      /* bytes of 4 tokens; of 16 channels of them */
    intptr_t ahead;                 /* where the next page lies */
} value_codes;

/* Values of 4 tokens: n_groups times 16 channels, of which pairs are interleaved if they are wide. at: of the
 * first; start: of the part. */
ATH_INLINE void values_row(const int n_groups, const ath_unpack_kind kind, const bool ends,
                           const value_codes *codes, const uint8_t *at, const uint8_t *start,
                           __m512i *values) {
    const int step = kind.wide && n_groups > 1 ? 2 : 1;
    const ath_unpack_avx512 *unpack = step == 2 ? &codes->wide : &codes->narrow;
    ATH_UNROLL
    for (int g = 0; g < n_groups; g += step) {
        const uint8_t *from = at + g * codes->window;
        __m512i window = kind.trellis && ends && g + step == n_groups
                             ? ath_unpack_window_end_avx512(unpack, from, start)
                             : ath_unpack_window_avx512(unpack, from);
        ATH_UNROLL
        for (int i = 0; i < step; i++) values[g + i] = ath_unpack_avx512_look_up(unpack, kind, window, i);
    }
}

/* Sums of a pair of groups that were interleaved, in the order of channels. */
ATH_INLINE void untangle(__m512i *sums) {
    const __m512i low = _mm512_setr_epi32(0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
    __m512i first = _mm512_permutex2var_epi32(sums[0], low, sums[1]);
    sums[1] = _mm512_permutex2var_epi32(sums[0], _mm512_add_epi32(low, _mm512_set1_epi32(8)), sums[1]);
    sums[0] = first;
}

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
        __m512i values[4];
        prefetch_128(start + first * codes->window, codes->ahead);
        values_row(n_groups, kind, ends, codes, start + first * codes->window, start, values);
        ATH_UNROLL
        for (int h = 0; h < n; h++) {
            __m512i low_weights = _mm512_set1_epi32(load_4_bytes(w[h].low + t)),
                    high_weights = _mm512_set1_epi32(load_4_bytes(w[h].high + t));
            ATH_UNROLL
            for (int g = 0; g < n_groups; g++) {
                ath_dot_avx512(&low[h][g], low_weights, values[g]);
                ath_dot_avx512(&high[h][g], high_weights, values[g]);
            }
        }
    }
    acc += 16 * first;
    for (int h = 0; h < n; h++) {
        __m512i dot[4];
        for (int g = 0; g < n_groups; g++)
            dot[g] = _mm512_add_epi32(_mm512_slli_epi32(high[h][g], 8), low[h][g]);
        for (int g = 0; kind.wide && g + 2 <= n_groups; g += 2) untangle(dot + g);
        for (int g = 0; g < n_groups; g++) {
            float *a = acc + h * acc_stride + 16 * g;
            __m512 sum =
                _mm512_fmadd_ps(_mm512_set1_ps(w[h].step), _mm512_cvtepi32_ps(dot[g]), _mm512_loadu_ps(a));
            _mm512_storeu_ps(a, sum);
        }
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
                            int lo, int hi, const float *weights, int n, float *acc, const uint8_t *next) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    int64_t stride = layout->head_dim;
    value_codes codes = {.narrow = ath_unpack_values_avx512(code, 16),
                         .wide = ath_unpack_values_avx512(code, 32),
                         .row_bytes = stride * code->k / 2,
                         .window = 8 * code->k,
                         .ahead = distance(page, next)};
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
                             const float *weights, int n, float *acc, const uint8_t *next) {
    for (int i = 0; i < n; i += 4, weights += 4 * ATH_PAGE_TOKENS, acc += 4 * layout->head_dim) {
        int heads = n - i < 4 ? n - i : 4;
#define VALUES(kind) values_page(kind, layout, page, lo, hi, weights, heads, acc, next)
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
