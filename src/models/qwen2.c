/* Qwen2 and Qwen2.5 (dense). Yang et al. 2024 (arXiv 2407.10671).
 *
 * Llama's layer with biases on Q, K and V and rotary pairs (i, i + n_rot/2). The K bias of real checkpoints
 * is tens of times the rest of K in a few channels: what breaks other 3-bit caches, and why ours stores a
 * mean per page. */
#include "models/model.h"

static void qwen2_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_qwen2 = {qwen2_load, ath_layer_sequential, false};
