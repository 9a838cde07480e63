/* Qwen3 (dense). Yang et al. 2025 (arXiv 2505.09388).
 *
 * Qwen2's layer without biases; each head of Q and K is normed before the rotation (one weight vector of head_dim for
 * all heads), and head_dim is 128 whatever n_embd / n_heads is. */
#include "models/model.h"

static void qwen3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, true);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        ath_load_pre_norm_layer(in, l, il);
        l->q_norm = ath_load_vector(in, l->head_dim_k, 0, "blk.%d.attn_q_norm.weight", il);
        l->k_norm = ath_load_vector(in, l->head_dim_k, 0, "blk.%d.attn_k_norm.weight", il);
    }
}

const ath_arch ath_arch_qwen3 = {"qwen3", qwen3_load, ath_layer_pre_norm};
