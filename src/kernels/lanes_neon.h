/* Vectors of floats with NEON, under the names of lanes.h. Only files for 64-bit ARM include it. */
#ifndef ATH_KERNELS_LANES_NEON_H
#define ATH_KERNELS_LANES_NEON_H

#include <arm_neon.h>

#include "kernels/unroll.h"

enum { VF_LANES = 4 };
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vf_mask; /* all ones in the lanes that are meant */

ATH_INLINE vf vf_load(const float *p) {
    return vld1q_f32(p);
}
ATH_INLINE vf vf_load_f16(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
ATH_INLINE vf vf_load_bf16(const void *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
ATH_INLINE void vf_store(float *p, vf x) {
    vst1q_f32(p, x);
}
ATH_INLINE vf vf_set(float x) {
    return vdupq_n_f32(x);
}
ATH_INLINE vf vf_add(vf a, vf b) {
    return vaddq_f32(a, b);
}
ATH_INLINE vf vf_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}
ATH_INLINE vf vf_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
ATH_INLINE vf vf_div(vf a, vf b) {
    return vdivq_f32(a, b);
}
ATH_INLINE vf vf_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
ATH_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return vfmsq_f32(c, a, b);
}
ATH_INLINE vf vf_neg(vf x) {
    return vnegq_f32(x);
}
ATH_INLINE vf vf_min(vf a, vf b) {
    return vminq_f32(a, b);
}
ATH_INLINE vf vf_max(vf a, vf b) {
    return vmaxq_f32(a, b);
}
ATH_INLINE vf vf_max_known(vf a, vf b) {
    return vmaxnmq_f32(a, b);
}
ATH_INLINE vf vf_round(vf x) {
    return vrndnq_f32(x);
}
ATH_INLINE vf vf_scale(vf x, vf n) {
    int32x4_t k = vcvtq_s32_f32(n), half = vshrq_n_s32(k, 1), bias = vdupq_n_s32(127);
    int32x4_t rest = vsubq_s32(k, half);
    x = vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
}

ATH_INLINE vf_mask vf_not_le(vf a, vf b) {
    return vmvnq_u32(vcleq_f32(a, b));
}
ATH_INLINE vf_mask vf_between(int t, int lo, int hi) {
    static const int32_t first[4] = {0, 1, 2, 3};
    int32x4_t lane = vaddq_s32(vld1q_s32(first), vdupq_n_s32(t));
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo)), vcltq_s32(lane, vdupq_n_s32(hi)));
}
ATH_INLINE vf vf_keep(vf_mask m, vf x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), m));
}
ATH_INLINE vf vf_where(vf_mask m, vf a, vf b) {
    return vbslq_f32(m, a, b);
}
ATH_INLINE vf vf_max_where(vf_mask m, vf a, vf b) {
    return vf_max_known(a, vf_where(m, b, a));
}

ATH_INLINE float vf_sum_16(const vf *x) {
    float32x4_t y = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
    float32x2_t z = vadd_f32(vget_low_f32(y), vget_high_f32(y));
    return vget_lane_f32(z, 0) + vget_lane_f32(z, 1);
}
ATH_INLINE float vf_top(vf x) {
    return vmaxvq_f32(x);
}

ATH_INLINE vf vf_sqrt(vf x) {
    return vsqrtq_f32(x);
}
ATH_INLINE vf_mask vf_not_lt(vf a, vf b) {
    return vmvnq_u32(vcltq_f32(a, b));
}
ATH_INLINE void vf_store_bf16(void *p, vf x) {
    uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    vst1_u16((uint16_t *)p, vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}
ATH_INLINE void vf_store_i16(void *p, vf x) {
    vst1_s16((int16_t *)p, vmovn_s32(vcvtnq_s32_f32(x)));
}

ATH_INLINE vi vi_load(const int32_t *p) {
    return vld1q_s32(p);
}
ATH_INLINE vi vi_set(int32_t x) {
    return vdupq_n_s32(x);
}
ATH_INLINE vf vf_of_vi(vi x) {
    return vcvtq_f32_s32(x);
}

#endif
