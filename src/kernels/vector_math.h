/* exp in float32, the one definition of its bits: the version in vector lanes (vector_math_lanes.h) does the
 * same operations in the same order and gives the same results.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2 (Cody-Waite, two constants), e^r by a degree-6 polynomial (Taylor-like
 * minimax), then two exact scalings by powers of two, so that results below 2^-126 are rounded once more and
 * stay monotone. Relative error below 3e-7 for normal results. -inf and everything below -104 give 0,
 * above 88.8 +inf, NaN stays NaN. */
#ifndef ATH_KERNELS_VECTOR_MATH_H
#define ATH_KERNELS_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>

#include "base/half.h"

#define ATH_EXP_MIN    (-104.0f)
#define ATH_EXP_MAX    88.8f
#define ATH_EXP_LOG2E  0x1.715476p+0f
#define ATH_EXP_LN2_HI 0x1.62e4p-1f
#define ATH_EXP_LN2_LO 0x1.7f7d1cp-20f
#define ATH_EXP_C6     0x1.6c16c2p-10f
#define ATH_EXP_C5     0x1.111112p-7f
#define ATH_EXP_C4     0x1.555556p-5f
#define ATH_EXP_C3     0x1.555556p-3f

static inline float ath_expf(float x) {
    if (!(x > ATH_EXP_MIN)) return x != x ? x : 0.0f;
    if (x > ATH_EXP_MAX) return INFINITY;
    float n = rintf(x * ATH_EXP_LOG2E);
    float r = fmaf(n, -ATH_EXP_LN2_LO, fmaf(n, -ATH_EXP_LN2_HI, x));
    float p = fmaf(ATH_EXP_C6, r, ATH_EXP_C5);
    p = fmaf(p, r, ATH_EXP_C4);
    p = fmaf(p, r, ATH_EXP_C3);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t k = (int32_t)n, half = k >> 1;
    p *= ath_f32_from_bits((uint32_t)(half + 127) << 23);
    return p * ath_f32_from_bits((uint32_t)(k - half + 127) << 23);
}

#endif
