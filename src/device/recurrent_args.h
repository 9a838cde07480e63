/* Recurrent layers: what a device gets to see of their states.
 *
 * A sequence has one state per layer, an array of float32 whose inside only the ops below know. Rows of a batch
 * come in runs: a run starts from one state and leaves another. Rows are evaluated one after another, whatever
 * runs they are in, so that a row's bits depend on the tokens before it and not on the cut into batches. */
#ifndef ATH_DEVICE_RECURRENT_ARGS_H
#define ATH_DEVICE_RECURRENT_ARGS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ath_state_run {
    int64_t n_rows;
    const float *from; /* before the first row; NULL: zeros, at a sequence's start */
    float *to;         /* after the last row; never the same as from */
} ath_state_run;

typedef struct ath_state_seq { /* one sequence's rows of the batch */
    int64_t row0;
    const ath_state_run *runs; /* from of each but the first is to of the one before */
    int n_runs;
} ath_state_seq;

/* Causal convolution of each channel by itself, over the last n_taps rows of a sequence, and then SiLU if asked for:
 *     x[t][c] = silu(sum over j of weight[j][c] * x[t - n_taps + 1 + j][c])         in the order of j
 * State: the n_taps - 1 inputs before, [n_taps - 1][n]. */
typedef struct ath_conv_args {
    int64_t n;  /* channels */
    int n_taps; /* 1 to ATH_MAX_TAPS */
    const float *weight; /* [n_taps][n] */
    float *x;            /* [rows][n], overwritten */
    const ath_state_seq *seqs;
    int n_seqs;
    int64_t state_at; /* floats in the layer's state before this one */
    bool silu;
} ath_conv_args;
enum { ATH_MAX_TAPS = 16 };

/* The gated delta rule (Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464). Per value head, with a state M of
 * head_dim x head_dim, and per row:
 *     q, k = q / |q| / sqrt(head_dim), k / |k|       |x| = sqrt(sum x^2 + norm_eps)
 *     M = decay M;   M = M + k (beta (v - M^T k))^T;   out = M^T q
 *     beta = sigmoid(beta logit);   decay = exp(rate * softplus(decay logit + bias))
 * State: [n_v_heads][head_dim / 32][head_dim][32], columns of M in blocks of 32. */
typedef struct ath_delta_args {
    int n_k_heads, n_v_heads; /* n_v_heads: a multiple of n_k_heads */
    int head_dim;             /* a multiple of ATH_DELTA_BLOCK */
    bool grouped; /* value head h has key head h / (n_v_heads / n_k_heads); else h % n_k_heads */
    float norm_eps;
    const float *rate, *bias; /* [n_v_heads] */
    float *qkv;   /* [rows][(2 n_k_heads + n_v_heads) head_dim]; q and k are normed in place */
    float *beta;  /* [rows][n_v_heads] logits, overwritten */
    float *decay; /* [rows][n_v_heads] logits, overwritten */
    float *qk;    /* [rows][n_k_heads] scratch: q . k */
    float *out;   /* [rows][n_v_heads * head_dim] */
    int64_t rows; /* of all sequences */
    const ath_state_seq *seqs;
    int n_seqs;
    int64_t state_at; /* floats in the layer's state before this one */
} ath_delta_args;
enum { ATH_DELTA_BLOCK = 32 };

#endif
