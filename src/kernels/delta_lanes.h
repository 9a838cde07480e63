/* The gated delta rule with columns in lanes (delta_rule.h says the order of operations). An instruction set's
 * file defines the vector type and its operations, then includes this.
 *
 *   lanes_t, LANES                      vector of LANES floats
 *   COLUMNS                             columns at a time: their sums, 4 * COLUMNS / LANES, must fit into registers
 *   lanes_load, lanes_store, lanes_set  aligned, aligned, of one float in all lanes
 *   lanes_loadu, lanes_storeu           unaligned
 *   lanes_add, lanes_mul
 *   lanes_fma(a, b, c), lanes_fnma      a * b + c, -a * b + c */
#ifndef ATH_KERNELS_DELTA_LANES_H
#define ATH_KERNELS_DELTA_LANES_H

#include "kernels/delta_rule.h"
#include "kernels/unroll.h"

enum { BLOCK = 32, VECTORS = COLUMNS / LANES };

/* M^T k and M^T q, of columns from the state's first on. */
ATH_INLINE void multiply(const float *state, int dim, const float *k, const float *q, lanes_t *u, lanes_t *w) {
    lanes_t sum[2][2][VECTORS];
    ATH_UNROLL
    for (int n = 0; n < VECTORS; n++)
        sum[0][0][n] = sum[0][1][n] = sum[1][0][n] = sum[1][1][n] = lanes_set(0);
    for (int i = 0; i < dim; i += 2) {
        ATH_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            lanes_t a = lanes_set(k[i + odd]), b = lanes_set(q[i + odd]);
            ATH_UNROLL
            for (int n = 0; n < VECTORS; n++) {
                lanes_t m = lanes_load(state + (i + odd) * BLOCK + n * LANES);
                sum[odd][0][n] = lanes_fma(m, a, sum[odd][0][n]);
                sum[odd][1][n] = lanes_fma(m, b, sum[odd][1][n]);
            }
        }
    }
    ATH_UNROLL
    for (int n = 0; n < VECTORS; n++) {
        u[n] = lanes_add(sum[0][0][n], sum[1][0][n]);
        w[n] = lanes_add(sum[0][1][n], sum[1][1][n]);
    }
}

/* M = decay M + k d^T */
ATH_INLINE void update(float *state, int dim, const float *k, lanes_t decay, const lanes_t *d) {
    for (int i = 0; i < dim; i++) {
        lanes_t a = lanes_set(k[i]);
        ATH_UNROLL
        for (int n = 0; n < VECTORS; n++) {
            float *m = state + i * BLOCK + n * LANES;
            lanes_store(m, lanes_fma(a, d[n], lanes_mul(decay, lanes_load(m))));
        }
    }
}

ATH_INLINE void delta_columns(const ath_delta_block *b, int64_t row, int column) {
    const float *q = b->q + row * b->stride, *k = b->k + row * b->stride, *v = b->v + row * b->stride + column;
    float *state = b->state + column, *out = b->out + row * b->out_stride + column;
    lanes_t beta = lanes_set(b->beta[row * b->gate_stride]), decay = lanes_set(b->decay[row * b->gate_stride]);
    lanes_t qk = lanes_set(b->qk[row * b->qk_stride]), u[VECTORS], w[VECTORS], d[VECTORS];
    multiply(state, b->dim, k, q, u, w);
    ATH_UNROLL
    for (int n = 0; n < VECTORS; n++) {
        d[n] = lanes_mul(beta, lanes_fnma(decay, u[n], lanes_loadu(v + n * LANES)));
        lanes_storeu(out + n * LANES, lanes_fma(d[n], qk, lanes_mul(decay, w[n])));
    }
    update(state, b->dim, k, decay, d);
}

ATH_INLINE void delta_rule(const ath_delta_block *b) {
    for (int64_t row = 0; row < b->n_rows; row++)
        for (int column = 0; column < BLOCK; column += COLUMNS) delta_columns(b, row, column);
}

#endif
