/* Phi-3, Phi-3.5 and Phi-4 (dense). Abdin et al. 2024 (arXiv 2404.14219); LongRoPE: Ding et al. 2024 (arXiv
 * 2402.13753).
 *
 * Llama's layer with Q, K, V in one tensor, gate and up in another, and rotary pairs (i, i + n_rot/2) that
 * may cover a part of the head. Files for long contexts carry two sets of frequency divisors. The window that
 * some files name was never trained with and is ignored, as everywhere. */
#include "models/model.h"

static void phi3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_phi3 = {phi3_load, ath_layer_sequential, false};
