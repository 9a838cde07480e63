/* OLMoE. Muennighoff et al. 2024 (arXiv 2409.02060).
 *
 *     x += Wo attend(rope(norm(Wq h)), rope(norm(Wk h)), Wv h)                    h = rms_norm(x)
 *     x += sum over the top experts of p_e Wd_e (silu(Wg_e h) * Wu_e h)           h = rms_norm(x)
 *
 * The norms of Q and K run over the whole projection, as in OLMo 2. The p_e are softmax probabilities over
 * all experts and are not made to sum to 1. */
#include "models/model.h"

static void olmoe_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    m->qk_norm_whole = true;
    m->router.renormalise = false;
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_head_norms(in, &m->layers[il], il);
    }
}

const ath_arch ath_arch_olmoe = {olmoe_load, ath_layer_sequential, false};
