/* Element-wise kernels that contain an exp; all versions give the same bits. */
#ifndef ATH_KERNELS_ELEMENTWISE_H
#define ATH_KERNELS_ELEMENTWISE_H

#include <stdint.h>

/* gate[i] = act(gate[i]) * up[i]. Any n, no alignment. */
typedef void (*ath_gate_fn)(float *gate, const float *up, int64_t n);

typedef struct ath_elementwise_kernels {
    ath_gate_fn gate_silu; /* x / (1 + exp(-x)) */
    ath_gate_fn gate_gelu; /* GELU in its tanh form: x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))) */
    ath_gate_fn gate_sigmoid; /* 1 / (1 + exp(-x)) */
    ath_gate_fn gate_swiglu_oai; /* g / (1 + exp(-1.702 g)) * (u + 1), g = min(gate, 7), u = clamp(up, -7, 7) */
} ath_elementwise_kernels;

/* 2 sqrt(2/pi) and 0.044715 times that */
#define ATH_GELU_A 1.5957691216f
#define ATH_GELU_B 0.0713548162726f

#define ATH_SWIGLU_ALPHA 1.702f
#define ATH_SWIGLU_LIMIT 7.0f

/* The best kernels for a set of CPU flags (cpu_flags.h). */
void ath_elementwise_kernels_init(ath_elementwise_kernels *k, uint32_t flags);

void ath_elementwise_kernels_c(ath_elementwise_kernels *k);
void ath_elementwise_kernels_avx2(ath_elementwise_kernels *k);
void ath_elementwise_kernels_avx512(ath_elementwise_kernels *k);
void ath_elementwise_kernels_neon(ath_elementwise_kernels *k);

#endif
