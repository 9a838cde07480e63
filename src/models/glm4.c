/* GLM-4 (0414). GLM team 2024 (arXiv 2406.12793).
 *
 *     x += norm(Wo attend(rope(Wq h), rope(Wk h), Wv h))    h = norm(x)
 *     x += norm(Wd (silu(Wg h) * Wu h))                     h = norm(x)
 *
 * Biases on Q, K and V; gate and up in one tensor; rotary pairs are neighbours and cover half of the head. */
#include "models/model.h"

static void glm4_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_post_norms(in, &m->layers[il], il);
    }
}

const ath_arch ath_arch_glm4 = {glm4_load, ath_layer_sequential, false};
