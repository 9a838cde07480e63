/* Element-wise kernels in vector lanes. The last n % VF_LANES values go through a zero-filled vector. */
#ifndef ATH_KERNELS_ELEMENTWISE_LANES_H
#define ATH_KERNELS_ELEMENTWISE_LANES_H

#include <string.h>

#include "kernels/elementwise.h"
#include "kernels/vector_math_lanes.h"

/* x / (1 + exp(-t)) */
ATH_INLINE vf gated(vf x, vf minus_t) {
    return vf_div(x, vf_add(vf_set(1.0f), vf_exp(minus_t)));
}

ATH_INLINE vf silu(vf x) {
    return gated(x, vf_neg(x));
}

ATH_INLINE vf sigmoid(vf x) {
    return gated(vf_set(1.0f), vf_neg(x));
}

ATH_INLINE vf gelu(vf x) {
    vf t = vf_fma(vf_mul(x, x), vf_set(ATH_GELU_B), vf_set(ATH_GELU_A));
    return gated(x, vf_mul(vf_neg(x), t));
}

ATH_INLINE vf swiglu_gate(vf x) {
    vf g = vf_min(vf_set(ATH_SWIGLU_LIMIT), x);
    return gated(g, vf_mul(vf_set(-ATH_SWIGLU_ALPHA), g));
}

ATH_INLINE vf swiglu_up(vf x) {
    vf u = vf_min(vf_set(ATH_SWIGLU_LIMIT), x);
    return vf_add(vf_max(vf_set(-ATH_SWIGLU_LIMIT), u), vf_set(1.0f));
}

ATH_INLINE vf as_is(vf x) {
    return x;
}

ATH_INLINE void gate_with(vf (*act)(vf), vf (*other)(vf), float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(gate + i, vf_mul(act(vf_load(gate + i)), other(vf_load(up + i))));
    if (i == n) return;
    float g[VF_LANES] = {0}, u[VF_LANES] = {0};
    memcpy(g, gate + i, (size_t)(n - i) * sizeof(float));
    memcpy(u, up + i, (size_t)(n - i) * sizeof(float));
    vf_store(g, vf_mul(act(vf_load(g)), other(vf_load(u))));
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

ATH_INLINE void elementwise_kernels(ath_elementwise_kernels *k) {
    k->gate_silu = gate_silu;
    k->gate_gelu = gate_gelu;
    k->gate_sigmoid = gate_sigmoid;
    k->gate_swiglu_oai = gate_swiglu_oai;
}

#endif
