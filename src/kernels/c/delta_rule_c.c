/* The gated delta rule in plain C, and the choice of versions. */
#include "kernels/delta_rule.h"

#include <math.h>

#include "kernels/cpu_flags.h"

enum { BLOCK = 32 };

static void delta_row(const ath_delta_block *b, int64_t row) {
    const float *q = b->q + row * b->stride, *k = b->k + row * b->stride, *v = b->v + row * b->stride;
    float beta = b->beta[row * b->gate_stride], decay = b->decay[row * b->gate_stride];
    float qk = b->qk[row * b->qk_stride], *out = b->out + row * b->out_stride;
    for (int j = 0; j < BLOCK; j++) {
        float *column = b->state + j, u[2] = {0, 0}, w[2] = {0, 0};
        for (int i = 0; i < b->dim; i++) {
            u[i & 1] = fmaf(column[i * BLOCK], k[i], u[i & 1]);
            w[i & 1] = fmaf(column[i * BLOCK], q[i], w[i & 1]);
        }
        float d = beta * fmaf(-decay, u[0] + u[1], v[j]);
        out[j] = fmaf(d, qk, decay * (w[0] + w[1]));
        for (int i = 0; i < b->dim; i++) column[i * BLOCK] = fmaf(k[i], d, decay * column[i * BLOCK]);
    }
}

void ath_delta_rule_c(const ath_delta_block *block) {
    for (int64_t row = 0; row < block->n_rows; row++) delta_row(block, row);
}

ath_delta_fn ath_delta_kernel(uint32_t flags) {
#if defined(__x86_64__)
    if ((flags & ATH_CPU_AVX512_ALL) == ATH_CPU_AVX512_ALL) return ath_delta_rule_avx512;
    if (flags & ATH_CPU_AVX2) return ath_delta_rule_avx2;
#elif defined(__aarch64__)
    if (flags & ATH_CPU_NEON) return ath_delta_rule_neon;
#else
    (void)flags;
#endif
    return ath_delta_rule_c;
}
