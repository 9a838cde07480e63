/* Command R ("command-r"). Cohere 2024.
 *
 *     x += Wo attend(rope(Wq h), rope(Wk h), Wv h) + Wd (silu(Wg h) * Wu h)    h = layer_norm(x)
 *
 * Attention and feed-forward read the same norm, which has no bias; logits are multiplied by logit_scale. */
#include "models/model.h"

static void command_r_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    m->logit_scale = ath_load_f32(in, "logit_scale", 1);
    if (ath_gguf_find_tensor(in->gguf, "blk.0.attn_q_norm.weight"))
        ath_load_fail(in, ATH_ERR_UNSUPPORTED, "Command R+ (norms per head of Q and K) is not known");
    for (int il = 0; il < m->n_layers; il++) ath_load_parallel_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_command_r = {command_r_load, ath_layer_parallel, true};
