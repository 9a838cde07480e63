/* Gemma 3 (text). Gemma team 2025 (arXiv 2503.19786).
 *
 *     x += norm(Wo attend(rope(norm(Wq h)), rope(norm(Wk h)), Wv h))    h = norm(x)
 *     x += norm(Wd (gelu(Wg h) * Wu h))                                 h = norm(x)
 *
 * Five of six layers see a sliding window and rotate with base 10000; each sixth sees everything, with base
 * 1e6 and, in the larger sizes, linear position scaling. Norm weights are stored as 1 + w. Embeddings are
 * scaled by sqrt(n_embd). */
#include <math.h>

#include "models/model.h"

enum { GEMMA3_27B_LAYERS = 62 };

static void gemma3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_windows(in, 6);
    ath_load_window_rope(in, 10000);
    m->act = ATH_ACT_GELU_TANH;
    m->embd_scale = sqrtf((float)m->n_embd);
    m->final_softcap = ath_load_f32(in, "final_logit_softcapping", 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_head_norms(in, &m->layers[il], il);
        ath_load_post_norms(in, &m->layers[il], il);
    }
    /* The 27B scales queries by the width of a head in the residual stream, and no key of the file says so.
     */
    if (m->n_layers == GEMMA3_27B_LAYERS) m->attn_scale = 1 / sqrtf((float)m->n_embd / m->layers[0].n_heads);
}

const ath_arch ath_arch_gemma3 = {gemma3_load, ath_layer_sequential, false};
