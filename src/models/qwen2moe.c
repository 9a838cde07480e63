/* Qwen1.5-MoE and Qwen2-57B-A14B. Yang et al. 2024 (arXiv 2407.10671).
 *
 *     x += attention(h)                                                     h = rms_norm(x)
 *     x += sum over the top experts of p_e expert_e(h) + sigmoid(w h) shared(h)
 *
 * Qwen2's attention. The p_e are softmax probabilities over all experts and are not made to sum to 1. */
#include "models/model.h"

static void qwen2moe_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    m->router.renormalise = false;
    if (m->router.n_used)
        m->n_ff_expert =
            ath_load_u32(in, "expert_feed_forward_length", (uint32_t)(m->n_ff / m->router.n_used));
    m->n_ff_shared = ath_load_u32(in, "expert_shared_feed_forward_length", (uint32_t)m->n_ff);
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_qwen2moe = {qwen2moe_load, ath_layer_sequential, false};
