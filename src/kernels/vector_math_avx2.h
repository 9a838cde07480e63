/* AVX2 version of vector_math.h, bit for bit. Only files compiled for AVX2 include it. */
#ifndef ATH_KERNELS_VECTOR_MATH_AVX2_H
#define ATH_KERNELS_VECTOR_MATH_AVX2_H

#include <immintrin.h>

#include "kernels/vector_math.h"

static inline __m256 ath_exp_avx2(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x); /* NaN stays; the result is +inf from here on */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(ATH_EXP_LOG2E)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-ATH_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-ATH_EXP_LN2_LO), r);
    __m256 one = _mm256_set1_ps(1.0f);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(ATH_EXP_C6), r, _mm256_set1_ps(ATH_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ATH_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ATH_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(k, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
    return _mm256_and_ps(p, _mm256_cmp_ps(x, _mm256_set1_ps(ATH_EXP_MIN), _CMP_NLE_UQ));
}

#endif
