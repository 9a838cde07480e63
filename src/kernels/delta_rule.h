/* The gated delta rule on 32 columns of one head's state, row by row; all versions give the same bits.
 *
 * Columns of the state don't know of each other, so lanes are columns and nothing is added across lanes. Per
 * row t and column j, each line in the order of i, sums of even and of odd i apart (u = u0 + u1, w likewise):
 *     u = sum of fma(M[i][j], k[i]);   w = sum of fma(M[i][j], q[i])
 *     d = beta * fma(-decay, u, v[j])
 *     out[j] = fma(d, qk, decay * w)
 *     M[i][j] = fma(k[i], d, decay * M[i][j])
 * 32 columns of 128 rows are 16 KiB: they stay in the first cache for all rows of a batch. */
#ifndef ATH_KERNELS_DELTA_RULE_H
#define ATH_KERNELS_DELTA_RULE_H

#include <stdint.h>

typedef struct ath_delta_block {
    float *state;           /* [dim][32], overwritten; 64-byte aligned */
    int dim;                /* even */
    int64_t n_rows;
    const float *q, *k, *v; /* [n_rows][dim], [n_rows][dim], [n_rows][32], rows `stride` apart */
    int64_t stride;
    const float *beta, *decay; /* [n_rows], gate_stride apart */
    int64_t gate_stride;
    const float *qk; /* [n_rows], qk_stride apart */
    int64_t qk_stride;
    float *out; /* [n_rows][32], rows out_stride apart */
    int64_t out_stride;
} ath_delta_block;

typedef void (*ath_delta_fn)(const ath_delta_block *block);

/* The best version for a set of CPU flags (cpu_flags.h). */
ath_delta_fn ath_delta_kernel(uint32_t flags);

void ath_delta_rule_c(const ath_delta_block *block);
void ath_delta_rule_avx2(const ath_delta_block *block);
void ath_delta_rule_avx512(const ath_delta_block *block);
void ath_delta_rule_neon(const ath_delta_block *block);

#endif
