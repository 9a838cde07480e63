/* Vectors of floats with AVX-512, under the names of lanes.h. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_LANES_AVX512_H
#define ATH_KERNELS_LANES_AVX512_H

#include <immintrin.h>

#include "kernels/unroll.h"

enum { VF_LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vf_mask;

ATH_INLINE vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
ATH_INLINE vf vf_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
ATH_INLINE vf vf_load_bf16(const void *p) {
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
ATH_INLINE void vf_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
ATH_INLINE vf vf_set(float x) {
    return _mm512_set1_ps(x);
}
ATH_INLINE vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
ATH_INLINE vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
ATH_INLINE vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
ATH_INLINE vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
ATH_INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
ATH_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
ATH_INLINE vf vf_neg(vf x) {
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}
ATH_INLINE vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
ATH_INLINE vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
ATH_INLINE vf vf_max_known(vf a, vf b) {
    return _mm512_max_ps(b, a);
}
ATH_INLINE vf vf_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ATH_INLINE vf vf_scale(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}

ATH_INLINE vf_mask vf_not_le(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ);
}
ATH_INLINE vf_mask vf_between(int t, int lo, int hi) {
    __m512i lane = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                    _mm512_set1_epi32(t));
    vf_mask above = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(lo));
    return _mm512_mask_cmplt_epi32_mask(above, lane, _mm512_set1_epi32(hi));
}
ATH_INLINE vf vf_keep(vf_mask m, vf x) {
    return _mm512_maskz_mov_ps(m, x);
}
ATH_INLINE vf vf_where(vf_mask m, vf a, vf b) {
    return _mm512_mask_mov_ps(b, m, a);
}
ATH_INLINE vf vf_max_where(vf_mask m, vf a, vf b) {
    return _mm512_mask_max_ps(a, m, b, a);
}

ATH_INLINE float vf_sum_16(const vf *x) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(*x), _mm512_extractf32x8_ps(*x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
ATH_INLINE float vf_top(vf x) {
    return _mm512_reduce_max_ps(x);
}

ATH_INLINE vf vf_sqrt(vf x) {
    return _mm512_sqrt_ps(x);
}
ATH_INLINE vf vf_abs(vf x) {
    return _mm512_abs_ps(x);
}
ATH_INLINE vf vf_copysign(vf a, vf b) {
    return _mm512_or_ps(a, _mm512_and_ps(b, _mm512_set1_ps(-0.0f)));
}
ATH_INLINE vf vf_min_known(vf a, vf b) {
    return _mm512_min_ps(b, a);
}
ATH_INLINE vf_mask vf_ge(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
ATH_INLINE vf_mask vf_gt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
ATH_INLINE vf_mask vf_not_lt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ);
}
ATH_INLINE vf_mask vf_not_eq(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ);
}
ATH_INLINE void vf_store_f16(void *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
ATH_INLINE void vf_store_bf16(void *p, vf x) {
    __m512i u = _mm512_castps_si512(x),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
ATH_INLINE void vf_store_i16(void *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

ATH_INLINE vi vi_load(const int32_t *p) {
    return _mm512_loadu_si512(p);
}
ATH_INLINE vi vi_load_u16(const void *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
ATH_INLINE void vi_store(int32_t *p, vi x) {
    _mm512_storeu_si512(p, x);
}
ATH_INLINE vi vi_set(int32_t x) {
    return _mm512_set1_epi32(x);
}
ATH_INLINE vi vi_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
ATH_INLINE vi vi_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
ATH_INLINE vi vi_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
ATH_INLINE vi vi_shl(vi x, int n) {
    return _mm512_sll_epi32(x, _mm_cvtsi32_si128(n));
}
ATH_INLINE vi vi_shr(vi x, int n) {
    return _mm512_srl_epi32(x, _mm_cvtsi32_si128(n));
}
ATH_INLINE vi vi_keep(vf_mask m, vi x) {
    return _mm512_maskz_mov_epi32(m, x);
}
ATH_INLINE vi vi_increment(vi x, vf_mask m) {
    return _mm512_mask_add_epi32(x, m, x, _mm512_set1_epi32(1));
}
ATH_INLINE vi vi_of_vf(vf x) {
    return _mm512_cvttps_epi32(x);
}
ATH_INLINE vf vf_of_vi(vi x) {
    return _mm512_cvtepi32_ps(x);
}
ATH_INLINE vi vi_look_up(const void *table, vi index) {
    return _mm512_permutexvar_epi32(index, _mm512_loadu_si512(table));
}
ATH_INLINE vf vf_look_up(const float *table, vi index) {
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

#endif
