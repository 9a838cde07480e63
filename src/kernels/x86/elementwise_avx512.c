/* Element-wise kernels for AVX-512. The last n % 16 values go through a zero-filled vector. */
#include <string.h>

#include "kernels/elementwise.h"
#include "kernels/vector_math_avx512.h"

static __m512 silu(__m512 x) {
    __m512 e = ath_exp_avx512(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static __m512 sigmoid(__m512 x) {
    __m512 e = ath_exp_avx512(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)));
    return _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static __m512 gelu(__m512 x) {
    __m512 t = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(ATH_GELU_B), _mm512_set1_ps(ATH_GELU_A));
    t = _mm512_mul_ps(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)), t);
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), ath_exp_avx512(t)));
}

/* min and max give their second operand for a NaN. */
static __m512 swiglu_gate(__m512 x) {
    __m512 g = _mm512_min_ps(_mm512_set1_ps(ATH_SWIGLU_LIMIT), x);
    __m512 e = ath_exp_avx512(_mm512_mul_ps(_mm512_set1_ps(-ATH_SWIGLU_ALPHA), g));
    return _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static __m512 swiglu_up(__m512 x) {
    __m512 u = _mm512_min_ps(_mm512_set1_ps(ATH_SWIGLU_LIMIT), x);
    return _mm512_add_ps(_mm512_max_ps(_mm512_set1_ps(-ATH_SWIGLU_LIMIT), u), _mm512_set1_ps(1.0f));
}

static __m512 as_is(__m512 x) {
    return x;
}

static inline __attribute__((always_inline)) void gate_with(__m512 (*act)(__m512), __m512 (*other)(__m512),
                                                            float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(gate + i,
                         _mm512_mul_ps(act(_mm512_loadu_ps(gate + i)), other(_mm512_loadu_ps(up + i))));
    }
    if (i == n) return;
    float g[16] = {0}, u[16] = {0};
    memcpy(g, gate + i, (size_t)(n - i) * sizeof(float));
    memcpy(u, up + i, (size_t)(n - i) * sizeof(float));
    _mm512_storeu_ps(g, _mm512_mul_ps(act(_mm512_loadu_ps(g)), other(_mm512_loadu_ps(u))));
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

void ath_elementwise_kernels_avx512(ath_elementwise_kernels *k) {
    k->gate_silu = gate_silu;
    k->gate_gelu = gate_gelu;
    k->gate_sigmoid = gate_sigmoid;
    k->gate_swiglu_oai = gate_swiglu_oai;
}
