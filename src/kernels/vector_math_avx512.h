/* AVX-512 version of vector_math.h, bit for bit. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_VECTOR_MATH_AVX512_H
#define ATH_KERNELS_VECTOR_MATH_AVX512_H

#include <immintrin.h>

#include "kernels/vector_math.h"

/* Scaling by scalef rounds once, as the two exact steps of C do in sum; a bound above ATH_EXP_MAX makes it
 * overflow as C says. min and the unordered comparison let NaN through. */
static inline __m512 ath_exp_avx512(__m512 x) {
    __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(ATH_EXP_MIN), _CMP_NLE_UQ);
    x = _mm512_min_ps(_mm512_set1_ps(ATH_EXP_MAX + 1.0f), x);
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
    return _mm512_maskz_scalef_ps(above, p, n);
}

#endif
