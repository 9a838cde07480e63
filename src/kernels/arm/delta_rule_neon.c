/* The gated delta rule with NEON. */
#include <arm_neon.h>

#include "kernels/delta_rule.h"
#include "kernels/unroll.h"

enum { LANES = 4, COLUMNS = 16 };
typedef float32x4_t lanes_t;

ATH_INLINE lanes_t lanes_load(const float *p) {
    return vld1q_f32(p);
}
ATH_INLINE lanes_t lanes_loadu(const float *p) {
    return vld1q_f32(p);
}
ATH_INLINE void lanes_store(float *p, lanes_t x) {
    vst1q_f32(p, x);
}
ATH_INLINE void lanes_storeu(float *p, lanes_t x) {
    vst1q_f32(p, x);
}
ATH_INLINE lanes_t lanes_set(float x) {
    return vdupq_n_f32(x);
}
ATH_INLINE lanes_t lanes_add(lanes_t a, lanes_t b) {
    return vaddq_f32(a, b);
}
ATH_INLINE lanes_t lanes_mul(lanes_t a, lanes_t b) {
    return vmulq_f32(a, b);
}
ATH_INLINE lanes_t lanes_fma(lanes_t a, lanes_t b, lanes_t c) {
    return vfmaq_f32(c, a, b);
}
ATH_INLINE lanes_t lanes_fnma(lanes_t a, lanes_t b, lanes_t c) {
    return vfmsq_f32(c, a, b);
}

#include "kernels/delta_lanes.h"

void ath_delta_rule_neon(const ath_delta_block *block) {
    delta_rule(block);
}
