/* Command R7B, Command A ("cohere2"). Cohere 2024; 2025 (arXiv 2504.00698).
 *
 * Command R's parallel layer. Three of four layers see a sliding window and rotate; each fourth sees
 * everything and has no positions. */
#include "models/model.h"

static void cohere2_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    ath_load_windows(in, 4);
    m->logit_scale = ath_load_f32(in, "logit_scale", 1);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        ath_load_parallel_layer(in, l, il);
        if (!l->window) l->rope = NULL;
    }
}

const ath_arch ath_arch_cohere2 = {cohere2_load, ath_layer_parallel, true};
