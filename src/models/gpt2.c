/* GPT-2. Radford et al. 2019.
 *
 *     x  = token embedding + position embedding
 *     x += Wo attend(Wq h, Wk h, Wv h)    h = layer_norm(x)
 *     x += Wd gelu(Wu h)                  h = layer_norm(x)
 *
 * Biases everywhere, no gate, Q, K, V in one tensor. Positions are learned, so the context ends where their
 * table does. */
#include "models/model.h"

static void gpt2_load(ath_loader *in, ath_model *m) {
    m->n_ctx_max = m->n_ctx_train;
    ath_load_rows(in, &m->pos_embd, m->n_embd, m->n_ctx_max, "position_embd.weight");
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        ath_load_attention(in, l, il);
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.ffn_norm", il);
        ath_load_plain_ffn(in, l, il);
    }
}

const ath_arch ath_arch_gpt2 = {gpt2_load, ath_layer_sequential, true};
