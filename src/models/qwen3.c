/* Qwen3, dense and mixture of experts ("qwen3moe"). Yang et al. 2025 (arXiv 2505.09388).
 *
 * Qwen2's layer without biases; each head of Q and K is normed before the rotation (one weight vector of
 * head_dim for all heads), and head_dim is 128 whatever n_embd / n_heads is. Experts: softmax over all, the
 * top ones' weights renormalised, no shared expert. */
#include "models/model.h"

static void qwen3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_head_norms(in, &m->layers[il], il);
    }
}

const ath_arch ath_arch_qwen3 = {qwen3_load, ath_layer_sequential, false};
