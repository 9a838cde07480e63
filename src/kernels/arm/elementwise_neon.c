/* Element-wise kernels for NEON. The last n % 4 values go through a zero-filled vector. */
#include <string.h>

#include "kernels/elementwise.h"
#include "kernels/unroll.h"
#include "kernels/vector_math_neon.h"

/* x / (1 + exp(-t)) */
ATH_INLINE float32x4_t gated(float32x4_t x, float32x4_t minus_t) {
    return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), ath_exp_neon(minus_t)));
}

ATH_INLINE float32x4_t silu(float32x4_t x) {
    return gated(x, vnegq_f32(x));
}

ATH_INLINE float32x4_t sigmoid(float32x4_t x) {
    return gated(vdupq_n_f32(1.0f), vnegq_f32(x));
}

ATH_INLINE float32x4_t gelu(float32x4_t x) {
    float32x4_t t = vfmaq_f32(vdupq_n_f32(ATH_GELU_A), vmulq_f32(x, x), vdupq_n_f32(ATH_GELU_B));
    return gated(x, vmulq_f32(vnegq_f32(x), t));
}

/* min and max keep a NaN. */
ATH_INLINE float32x4_t swiglu_gate(float32x4_t x) {
    float32x4_t g = vminq_f32(vdupq_n_f32(ATH_SWIGLU_LIMIT), x);
    return gated(g, vmulq_f32(vdupq_n_f32(-ATH_SWIGLU_ALPHA), g));
}

ATH_INLINE float32x4_t swiglu_up(float32x4_t x) {
    float32x4_t u = vminq_f32(vdupq_n_f32(ATH_SWIGLU_LIMIT), x);
    return vaddq_f32(vmaxq_f32(vdupq_n_f32(-ATH_SWIGLU_LIMIT), u), vdupq_n_f32(1.0f));
}

ATH_INLINE float32x4_t as_is(float32x4_t x) {
    return x;
}

ATH_INLINE void gate_with(float32x4_t (*act)(float32x4_t), float32x4_t (*other)(float32x4_t), float *gate,
                          const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(gate + i, vmulq_f32(act(vld1q_f32(gate + i)), other(vld1q_f32(up + i))));
    if (i == n) return;
    float g[4] = {0}, u[4] = {0};
    memcpy(g, gate + i, (size_t)(n - i) * sizeof(float));
    memcpy(u, up + i, (size_t)(n - i) * sizeof(float));
    vst1q_f32(g, vmulq_f32(act(vld1q_f32(g)), other(vld1q_f32(u))));
    memcpy(gate + i, g, (size_t)(n - i) * sizeof(float));
}

static void gate_silu(float *gate, const float *up, int64_t n) {
    gate_with(silu, as_is, gate, up, n);
}

static void gate_gelu(float *gate, const float *up, int64_t n) {
    gate_with(gelu, as_is, gate, up, n);
}

static void gate_sigmoid(float *gate, const float *up, int64_t n) {
    gate_with(sigmoid, as_is, gate, up, n);
}

static void gate_swiglu_oai(float *gate, const float *up, int64_t n) {
    gate_with(swiglu_gate, swiglu_up, gate, up, n);
}

void ath_elementwise_kernels_neon(ath_elementwise_kernels *k) {
    k->gate_silu = gate_silu;
    k->gate_gelu = gate_gelu;
    k->gate_sigmoid = gate_sigmoid;
    k->gate_swiglu_oai = gate_swiglu_oai;
}
