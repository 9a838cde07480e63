/* Gemma (1). Gemma team 2024 (arXiv 2403.08295).
 *
 *     x += Wo attend(rope(Wq h), rope(Wk h), Wv h)    h = rms_norm(x)
 *     x += Wd (gelu(Wg h) * Wu h)                     h = rms_norm(x)
 *
 * Norm weights are stored as 1 + w; embeddings are scaled by sqrt(n_embd); heads have 256 channels. */
#include <math.h>

#include "models/model.h"

static void gemma_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    m->act = ATH_ACT_GELU_TANH;
    m->embd_scale = sqrtf((float)m->n_embd);
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_gemma = {gemma_load, ath_layer_sequential, false};
