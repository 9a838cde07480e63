/* Vectors of floats with AVX2, under the names of lanes.h. Only files compiled for AVX2 include it. */
#ifndef ATH_KERNELS_LANES_AVX2_H
#define ATH_KERNELS_LANES_AVX2_H

#include <immintrin.h>

#include "kernels/unroll.h"

enum { VF_LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vf_mask; /* all ones in the lanes that are meant */

ATH_INLINE vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
ATH_INLINE vf vf_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
ATH_INLINE vf vf_load_bf16(const void *p) {
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
ATH_INLINE void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
ATH_INLINE vf vf_set(float x) {
    return _mm256_set1_ps(x);
}
ATH_INLINE vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
ATH_INLINE vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
ATH_INLINE vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
ATH_INLINE vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
ATH_INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
ATH_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
ATH_INLINE vf vf_neg(vf x) {
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}
ATH_INLINE vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
ATH_INLINE vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
ATH_INLINE vf vf_max_known(vf a, vf b) {
    return _mm256_max_ps(b, a);
}
ATH_INLINE vf vf_round(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ATH_INLINE vf vf_scale(vf x, vf n) {
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(k, half);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

ATH_INLINE vf_mask vf_not_le(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_NLE_UQ);
}
ATH_INLINE vf_mask vf_between(int t, int lo, int hi) {
    __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(t));
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane)));
}
ATH_INLINE vf vf_keep(vf_mask m, vf x) {
    return _mm256_and_ps(x, m);
}
ATH_INLINE vf vf_where(vf_mask m, vf a, vf b) {
    return _mm256_blendv_ps(b, a, m);
}
ATH_INLINE vf vf_max_where(vf_mask m, vf a, vf b) {
    return vf_max_known(a, vf_where(m, b, a));
}

ATH_INLINE float vf_sum_16(const vf *x) {
    __m256 y = _mm256_add_ps(x[0], x[1]);
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
ATH_INLINE float vf_top(vf x) {
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

ATH_INLINE vf vf_sqrt(vf x) {
    return _mm256_sqrt_ps(x);
}
ATH_INLINE vf vf_abs(vf x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
ATH_INLINE vf vf_copysign(vf a, vf b) {
    return _mm256_or_ps(a, _mm256_and_ps(b, _mm256_set1_ps(-0.0f)));
}
ATH_INLINE vf vf_min_known(vf a, vf b) {
    return _mm256_min_ps(b, a);
}
ATH_INLINE vf_mask vf_ge(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_GE_OQ);
}
ATH_INLINE vf_mask vf_gt(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}
ATH_INLINE vf_mask vf_not_lt(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_NLT_UQ);
}
ATH_INLINE vf_mask vf_not_eq(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ);
}
ATH_INLINE void vf_store_f16(void *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
ATH_INLINE void vf_store_bf16(void *p, vf x) {
    __m256i u = _mm256_castps_si256(x),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(u));
}
ATH_INLINE void vf_store_i16(void *p, vf x) {
    __m256i i = _mm256_cvtps_epi32(x);
    i = _mm256_permute4x64_epi64(_mm256_packs_epi32(i, i), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(i));
}

ATH_INLINE vi vi_load(const int32_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
ATH_INLINE vi vi_load_u16(const void *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
ATH_INLINE void vi_store(int32_t *p, vi x) {
    _mm256_storeu_si256((__m256i *)(void *)p, x);
}
ATH_INLINE vi vi_set(int32_t x) {
    return _mm256_set1_epi32(x);
}
ATH_INLINE vi vi_add(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
ATH_INLINE vi vi_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
ATH_INLINE vi vi_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
ATH_INLINE vi vi_shl(vi x, int n) {
    return _mm256_sll_epi32(x, _mm_cvtsi32_si128(n));
}
ATH_INLINE vi vi_shr(vi x, int n) {
    return _mm256_srl_epi32(x, _mm_cvtsi32_si128(n));
}
ATH_INLINE vi vi_keep(vf_mask m, vi x) {
    return _mm256_and_si256(_mm256_castps_si256(m), x);
}
ATH_INLINE vi vi_increment(vi x, vf_mask m) {
    return _mm256_sub_epi32(x, _mm256_castps_si256(m));
}
ATH_INLINE vi vi_of_vf(vf x) {
    return _mm256_cvttps_epi32(x);
}
ATH_INLINE vf vf_of_vi(vi x) {
    return _mm256_cvtepi32_ps(x);
}
ATH_INLINE vi vi_look_up(const void *table, vi index) {
    const vi *half = table;
    vf low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_loadu_si256(half), index));
    vf high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_loadu_si256(half + 1), index));
    return _mm256_castps_si256(
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
}
ATH_INLINE vf vf_look_up(const float *table, vi index) {
    return _mm256_castsi256_ps(vi_look_up(table, index));
}

#endif
