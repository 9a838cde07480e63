/* AVX-512 version of vector_math.h, bit for bit. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_VECTOR_MATH_AVX512_H
#define ATH_KERNELS_VECTOR_MATH_AVX512_H

#include <immintrin.h>

#include "kernels/vector_math.h"

static inline __m512 ath_exp_avx512(__m512 x) {
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(ATH_EXP_LOG2E)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-ATH_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-ATH_EXP_LN2_LO), r);
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(ATH_EXP_C6), r, _mm512_set1_ps(ATH_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(ATH_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(ATH_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512i k = _mm512_cvtps_epi32(n), half = _mm512_srai_epi32(k, 1), bias = _mm512_set1_epi32(127);
    __m512i rest = _mm512_sub_epi32(k, half);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23)));
    p = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(ATH_EXP_MIN), _CMP_GT_OQ), p);
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, _mm512_set1_ps(ATH_EXP_MAX), _CMP_GT_OQ),
                           _mm512_set1_ps(INFINITY));
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

#endif
