/* Element-wise kernels in plain C, and the choice of versions. */
#include "kernels/cpu_flags.h"
#include "kernels/elementwise.h"
#include "kernels/vector_math.h"

static void gate_silu(float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) gate[i] = gate[i] / (1.0f + ath_expf(-gate[i])) * up[i];
}

static void gate_gelu(float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = gate[i], t = -x * fmaf(x * x, ATH_GELU_B, ATH_GELU_A);
        gate[i] = x / (1.0f + ath_expf(t)) * up[i];
    }
}

static void gate_sigmoid(float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) gate[i] = 1.0f / (1.0f + ath_expf(-gate[i])) * up[i];
}

/* Comparisons that leave a NaN as it is. */
static void gate_swiglu_oai(float *gate, const float *up, int64_t n) {
    const float limit = ATH_SWIGLU_LIMIT;
    for (int64_t i = 0; i < n; i++) {
        float g = limit < gate[i] ? limit : gate[i], u = limit < up[i] ? limit : up[i];
        u = -limit > u ? -limit : u;
        gate[i] = g / (1.0f + ath_expf(-ATH_SWIGLU_ALPHA * g)) * (u + 1.0f);
    }
}

void ath_elementwise_kernels_c(ath_elementwise_kernels *k) {
    k->gate_swiglu_oai = gate_swiglu_oai;
    k->gate_silu = gate_silu;
    k->gate_gelu = gate_gelu;
    k->gate_sigmoid = gate_sigmoid;
}

void ath_elementwise_kernels_init(ath_elementwise_kernels *k, uint32_t flags) {
    ath_elementwise_kernels_c(k);
#if defined(__x86_64__)
    if (flags & ATH_CPU_AVX2) ath_elementwise_kernels_avx2(k);
    if ((flags & ATH_CPU_AVX512_ALL) == ATH_CPU_AVX512_ALL) ath_elementwise_kernels_avx512(k);
#elif defined(__aarch64__)
    if (flags & ATH_CPU_NEON) ath_elementwise_kernels_neon(k);
#else
    (void)flags;
#endif
}
