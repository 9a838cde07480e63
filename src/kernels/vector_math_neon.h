/* NEON version of vector_math.h, bit for bit. Only files for 64-bit ARM include it. */
#ifndef ATH_KERNELS_VECTOR_MATH_NEON_H
#define ATH_KERNELS_VECTOR_MATH_NEON_H

#include <arm_neon.h>

#include "kernels/vector_math.h"

static inline float32x4_t ath_exp_neon(float32x4_t x) {
    x = vminq_f32(x, vdupq_n_f32(89.0f)); /* NaN stays; the result is +inf from here on */
    float32x4_t n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(ATH_EXP_LOG2E)));
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-ATH_EXP_LN2_HI));
    r = vfmaq_f32(r, n, vdupq_n_f32(-ATH_EXP_LN2_LO));
    float32x4_t one = vdupq_n_f32(1.0f);
    float32x4_t p = vfmaq_f32(vdupq_n_f32(ATH_EXP_C5), vdupq_n_f32(ATH_EXP_C6), r);
    p = vfmaq_f32(vdupq_n_f32(ATH_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(ATH_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(one, p, r);
    p = vfmaq_f32(one, p, r);
    int32x4_t k = vcvtq_s32_f32(n), half = vshrq_n_s32(k, 1), bias = vdupq_n_s32(127);
    int32x4_t rest = vsubq_s32(k, half);
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
    uint32x4_t none = vcleq_f32(x, vdupq_n_f32(ATH_EXP_MIN));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), none));
}

#endif
