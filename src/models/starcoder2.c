/* StarCoder 2. Lozhkov et al. 2024 (arXiv 2402.19173).
 *
 *     x += Wo attend(rope(Wq h), rope(Wk h), Wv h)    h = layer_norm(x)
 *     x += Wd gelu(Wu h)                              h = layer_norm(x)
 *
 * Biases everywhere, no gate. */
#include "models/model.h"

static void starcoder2_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        ath_load_attention(in, l, il);
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.ffn_norm", il);
        ath_load_plain_ffn(in, l, il);
    }
}

const ath_arch ath_arch_starcoder2 = {starcoder2_load, ath_layer_sequential, true};
