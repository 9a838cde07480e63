/* Llama 1-3.x, Mistral, SmolLM, Mixtral and all others that convert to "llama".
 * Touvron et al. 2023 (arXiv 2302.13971); Jiang et al. 2024 for Mixtral's experts (arXiv 2401.04088).
 *
 *     x += Wo attend(rope(Wq h), rope(Wk h), Wv h)    h = rms_norm(x)
 *     x += Wd (silu(Wg h) * Wu h)                     h = rms_norm(x)
 *
 * Rotary pairs are neighbours (the converter permuted the rows of Wq and Wk); Llama 3.1 divides frequencies
 * by rope_freqs. With expert_count > 0 the feed-forward is the weighted sum of the top experts. */
#include "models/model.h"

static void llama_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    m->attn_scale = ath_load_f32(in, "attention.scale", 0);
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_llama = {llama_load, ath_layer_sequential, false};
