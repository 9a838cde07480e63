/* EXAONE 4.0. LG AI Research 2025 (arXiv 2507.11407).
 *
 *     x += norm(Wo attend(rope(norm(Wq x)), rope(norm(Wk x)), Wv x))
 *     x += norm(Wd (silu(Wg x) * Wu x))
 *
 * Norms after the blocks only; each head of Q and K is normed. Models with windows (32B: three of four
 * layers) have no positions in the layers that see everything. */
#include "models/model.h"

static void exaone4_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_windows(in, 4);
    bool windows = ath_load_u32(in, "attention.sliding_window", 0) > 0;
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        ath_load_attention(in, l, il);
        ath_load_head_norms(in, l, il);
        ath_load_ffn(in, l, il);
        ath_load_post_norms(in, l, il);
        if (windows && !l->window) l->rope = NULL;
    }
}

const ath_arch ath_arch_exaone4 = {exaone4_load, ath_layer_sequential, false};
