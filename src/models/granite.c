/* Granite 3.x, dense and mixture of experts ("granitemoe"). IBM Granite team 2024.
 *
 *     x += r Wo attend(rope(Wq h), rope(Wk h), Wv h)    h = rms_norm(x)
 *     x += r Wd (silu(Wg h) * Wu h)                     h = rms_norm(x)
 *
 * Llama's layer with four multipliers of the file: on embeddings, on what a block adds (r), in place of
 * 1/sqrt(head_dim), and one that divides the logits. */
#include "models/model.h"

static void granite_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    m->attn_scale = ath_load_f32(in, "attention.scale", 0);
    m->embd_scale = ath_load_f32(in, "embedding_scale", 1);
    m->residual_scale = ath_load_f32(in, "residual_scale", 1);
    float divisor = ath_load_f32(in, "logit_scale", 1);
    if (divisor == 0) ath_load_fail(in, ATH_ERR_FORMAT, "key %s.logit_scale is zero", in->arch);
    m->logit_scale = 1 / divisor;
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_granite = {granite_load, ath_layer_sequential, false};
