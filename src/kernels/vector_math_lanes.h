/* ath_expf of vector_math.h in vector lanes, bit for bit. */
#ifndef ATH_KERNELS_VECTOR_MATH_LANES_H
#define ATH_KERNELS_VECTOR_MATH_LANES_H

#include "kernels/lanes.h"
#include "kernels/vector_math.h"

ATH_INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set(89.0f), x); /* NaN stays; the result is +inf from here on */
    vf_mask above = vf_not_le(x, vf_set(ATH_EXP_MIN));
    vf n = vf_round(vf_mul(x, vf_set(ATH_EXP_LOG2E)));
    vf r = vf_fma(n, vf_set(-ATH_EXP_LN2_HI), x);
    r = vf_fma(n, vf_set(-ATH_EXP_LN2_LO), r);
    vf p = vf_fma(vf_set(ATH_EXP_C6), r, vf_set(ATH_EXP_C5));
    p = vf_fma(p, r, vf_set(ATH_EXP_C4));
    p = vf_fma(p, r, vf_set(ATH_EXP_C3));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_keep(above, vf_scale(p, n));
}

#endif
