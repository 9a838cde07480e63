/* Element-wise kernels for AVX2. The last n % 8 values go through a zero-filled vector. */
#include <string.h>

#include "kernels/elementwise.h"
#include "kernels/vector_math_avx2.h"

static __m256 silu(__m256 x) {
    __m256 e = ath_exp_avx2(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static __m256 sigmoid(__m256 x) {
    __m256 e = ath_exp_avx2(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static __m256 gelu(__m256 x) {
    __m256 t = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(ATH_GELU_B), _mm256_set1_ps(ATH_GELU_A));
    t = _mm256_mul_ps(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)), t);
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), ath_exp_avx2(t)));
}

/* min and max give their second operand for a NaN. */
static __m256 swiglu_gate(__m256 x) {
    __m256 g = _mm256_min_ps(_mm256_set1_ps(ATH_SWIGLU_LIMIT), x);
    __m256 e = ath_exp_avx2(_mm256_mul_ps(_mm256_set1_ps(-ATH_SWIGLU_ALPHA), g));
    return _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static __m256 swiglu_up(__m256 x) {
    __m256 u = _mm256_min_ps(_mm256_set1_ps(ATH_SWIGLU_LIMIT), x);
    return _mm256_add_ps(_mm256_max_ps(_mm256_set1_ps(-ATH_SWIGLU_LIMIT), u), _mm256_set1_ps(1.0f));
}

static __m256 as_is(__m256 x) {
    return x;
}

static inline __attribute__((always_inline)) void gate_with(__m256 (*act)(__m256), __m256 (*other)(__m256),
                                                            float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(gate + i,
                         _mm256_mul_ps(act(_mm256_loadu_ps(gate + i)), other(_mm256_loadu_ps(up + i))));
    }
    if (i == n) return;
    float g[8] = {0}, u[8] = {0};
    memcpy(g, gate + i, (size_t)(n - i) * sizeof(float));
    memcpy(u, up + i, (size_t)(n - i) * sizeof(float));
    _mm256_storeu_ps(g, _mm256_mul_ps(act(_mm256_loadu_ps(g)), other(_mm256_loadu_ps(u))));
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

void ath_elementwise_kernels_avx2(ath_elementwise_kernels *k) {
    k->gate_silu = gate_silu;
    k->gate_gelu = gate_gelu;
    k->gate_sigmoid = gate_sigmoid;
    k->gate_swiglu_oai = gate_swiglu_oai;
}
