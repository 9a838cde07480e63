/* Seed-OSS ("seed_oss"). ByteDance Seed team 2025.
 *
 *     x += Wo attend(rope(Wq h), rope(Wk h), Wv h)    h = rms_norm(x)
 *     x += Wd (silu(Wg h) * Wu h)                     h = rms_norm(x)
 *
 * Qwen2's layer, biases on Q, K and V included; files call the second norm post_attention_norm. */
#include "models/model.h"

static void seed_oss_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        ath_load_attention(in, l, il);
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.post_attention_norm", il);
        ath_load_ffn(in, l, il);
    }
}

const ath_arch ath_arch_seed_oss = {seed_oss_load, ath_layer_sequential, false};
