/* The gated delta rule with columns in vector lanes (delta_rule.h says the order of operations). */
#ifndef ATH_KERNELS_DELTA_LANES_H
#define ATH_KERNELS_DELTA_LANES_H

#include "kernels/delta_rule.h"
#include "kernels/lanes.h"

/* Columns at a time: their sums, 4 * VECTORS, must fit into registers. */
enum { BLOCK = 32, COLUMNS = VF_LANES == 4 ? 16 : 32, VECTORS = COLUMNS / VF_LANES };

/* M^T k and M^T q, of columns from the state's first on. */
ATH_INLINE void multiply(const float *state, int dim, const float *k, const float *q, vf *u, vf *w) {
    vf sum[2][2][VECTORS];
    ATH_UNROLL
    for (int n = 0; n < VECTORS; n++) sum[0][0][n] = sum[0][1][n] = sum[1][0][n] = sum[1][1][n] = vf_set(0);
    for (int i = 0; i < dim; i += 2) {
        ATH_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            vf a = vf_set(k[i + odd]), b = vf_set(q[i + odd]);
            ATH_UNROLL
            for (int n = 0; n < VECTORS; n++) {
                vf m = vf_load(state + (i + odd) * BLOCK + n * VF_LANES);
                sum[odd][0][n] = vf_fma(m, a, sum[odd][0][n]);
                sum[odd][1][n] = vf_fma(m, b, sum[odd][1][n]);
            }
        }
    }
    ATH_UNROLL
    for (int n = 0; n < VECTORS; n++) {
        u[n] = vf_add(sum[0][0][n], sum[1][0][n]);
        w[n] = vf_add(sum[0][1][n], sum[1][1][n]);
    }
}

/* M = decay M + k d^T */
ATH_INLINE void update(float *state, int dim, const float *k, vf decay, const vf *d) {
    for (int i = 0; i < dim; i++) {
        vf a = vf_set(k[i]);
        ATH_UNROLL
        for (int n = 0; n < VECTORS; n++) {
            float *m = state + i * BLOCK + n * VF_LANES;
            vf_store(m, vf_fma(a, d[n], vf_mul(decay, vf_load(m))));
        }
    }
}

ATH_INLINE void delta_columns(const ath_delta_block *b, int64_t row, int column) {
    const float *q = b->q + row * b->stride, *k = b->k + row * b->stride,
                *v = b->v + row * b->stride + column;
    float *state = b->state + column, *out = b->out + row * b->out_stride + column;
    vf beta = vf_set(b->beta[row * b->gate_stride]), decay = vf_set(b->decay[row * b->gate_stride]);
    vf qk = vf_set(b->qk[row * b->qk_stride]), u[VECTORS], w[VECTORS], d[VECTORS];
    multiply(state, b->dim, k, q, u, w);
    ATH_UNROLL
    for (int n = 0; n < VECTORS; n++) {
        d[n] = vf_mul(beta, vf_fnma(decay, u[n], vf_load(v + n * VF_LANES)));
        vf_store(out + n * VF_LANES, vf_fma(d[n], qk, vf_mul(decay, w[n])));
    }
    update(state, b->dim, k, decay, d);
}

ATH_INLINE void delta_rule(const ath_delta_block *b) {
    for (int64_t row = 0; row < b->n_rows; row++)
        for (int column = 0; column < BLOCK; column += COLUMNS) delta_columns(b, row, column);
}

#endif
