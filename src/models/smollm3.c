/* SmolLM3. Bakouch et al. 2025. Llama's layer; every fourth layer has no positions (NoPE; Kazemnejad et al.
 * 2023, arXiv 2305.19466). */
#include "models/model.h"

enum { SMOLLM3_NOPE_PERIOD = 4 };

static void smollm3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        if (il % SMOLLM3_NOPE_PERIOD == SMOLLM3_NOPE_PERIOD - 1) m->layers[il].rope = NULL;
    }
}

const ath_arch ath_arch_smollm3 = {smollm3_load, ath_layer_sequential, false};
