/* gpt-oss ("gpt-oss"). OpenAI 2025 (arXiv 2508.10925).
 *
 *     x += Wo attend(rope(Wq h), rope(Wk h), Wv h)                             h = rms_norm(x)
 *     x += sum over the top experts of p_e Wd_e ((u + 1) g sigmoid(1.702 g))   h = rms_norm(x)
 *          g = min(Wg_e h, 7)   u = clamp(Wu_e h, -7, 7)
 *
 * Biases everywhere; each head has a sink, a logit that takes part in the softmax and has no value; even
 * layers see a sliding window. The p_e are the softmax over the chosen logits, which is that over all of
 * them, renormalised. */
#include "models/model.h"

/* The released checkpoints don't round YaRN's correction range. No key says so; their factor of 32 tells them
 * apart. */
enum { GPT_OSS_RELEASED_FACTOR = 32 };

static void gpt_oss_load(ath_loader *in, ath_model *m) {
    bool released = ath_load_f32(in, "rope.scaling.factor", 0) == GPT_OSS_RELEASED_FACTOR;
    ath_load_rope(in, ATH_LOAD_NEOX | (released ? ATH_LOAD_UNROUNDED : 0));
    ath_load_windows(in, 2);
    m->act = ATH_ACT_SWIGLU_OAI;
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        ath_load_attention(in, l, il);
        l->sinks = ath_load_vector(in, l->n_heads, 0, "blk.%d.attn_sinks.weight", il);
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.post_attention_norm", il);
        ath_load_experts(in, l, il);
    }
}

const ath_arch ath_arch_gpt_oss = {gpt_oss_load, ath_layer_sequential, false};
