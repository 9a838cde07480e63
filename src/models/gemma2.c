/* Gemma 2. Gemma team 2024 (arXiv 2408.00118).
 *
 *     x += norm(Wo attend(rope(Wq h), rope(Wk h), Wv h))    h = norm(x)
 *     x += norm(Wd (gelu(Wg h) * Wu h))                     h = norm(x)
 *
 * Even layers see a sliding window. Attention scores and logits are soft-capped: cap tanh(s / cap). Norm
 * weights are stored as 1 + w; embeddings are scaled by sqrt(n_embd). */
#include <math.h>

#include "models/model.h"

enum { GEMMA2_27B_LAYERS = 46 };

static void gemma2_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_windows(in, 2);
    m->act = ATH_ACT_GELU_TANH;
    m->embd_scale = sqrtf((float)m->n_embd);
    m->attn_softcap = ath_load_f32(in, "attn_logit_softcapping", 50);
    m->final_softcap = ath_load_f32(in, "final_logit_softcapping", 30);
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_post_norms(in, &m->layers[il], il);
    }
    /* The 27B scales queries by the width of a head in the residual stream, and no key of the file says so.
     */
    if (m->n_layers == GEMMA2_27B_LAYERS) m->attn_scale = 1 / sqrtf((float)m->n_embd / m->layers[0].n_heads);
}

const ath_arch ath_arch_gemma2 = {gemma2_load, ath_layer_sequential, false};
