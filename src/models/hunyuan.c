/* Hunyuan, dense ("hunyuan-dense") and mixture of experts ("hunyuan-moe"). Tencent Hunyuan team 2025.
 *
 *     x += Wo attend(norm(rope(Wq h)), norm(rope(Wk h)), Wv h)    h = rms_norm(x)
 *     x += Wd (silu(Wg h) * Wu h)                                 h = rms_norm(x)
 *
 * Each head of Q and K is normed after the rotation. Experts: softmax over all, the top ones' weights
 * renormalised, and one expert that every token takes. */
#include "models/model.h"

static void hunyuan_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    m->qk_norm_last = true;
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_head_norms(in, &m->layers[il], il);
    }
}

const ath_arch ath_arch_hunyuan = {hunyuan_load, ath_layer_sequential, false};
