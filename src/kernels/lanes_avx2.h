/* Vectors of floats with AVX2, under the names of lanes.h. Only files compiled for AVX2 include it. */
#ifndef ATH_KERNELS_LANES_AVX2_H
#define ATH_KERNELS_LANES_AVX2_H

#include <immintrin.h>

#include "kernels/unroll.h"

enum { VF_LANES = 8 };
typedef __m256 vf;
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

#endif
