/* GLM-4.5, GLM-4.6. GLM-4.5 team 2025 (arXiv 2508.06471).
 *
 *     x += Wo attend(rope(norm(Wq h)), rope(norm(Wk h)), Wv h)                h = norm(x)
 *     x += sum over the top experts of p_e expert_e(h) + shared(h)            h = norm(x)
 *
 * Biases on Q, K and V; the larger size norms each head of Q and K; rotary pairs are (i, i + n_rot/2) and
 * cover half of the head. The first layers are dense. Experts are chosen as in DeepSeek V3: sigmoid, a bias
 * for the choice alone. The last block of the files guesses further tokens and isn't run. */
#include "models/model.h"

static void glm4moe_load(ath_loader *in, ath_model *m) {
    ath_load_drop_predicting_layers(in);
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_deepseek_router(in, true);
    int n_dense = (int)ath_load_u32(in, "leading_dense_block_count", 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        ath_load_attention(in, l, il);
        l->q_norm = ath_load_vector(in, l->head_dim_k, ATH_LOAD_OPTIONAL, "blk.%d.attn_q_norm.weight", il);
        l->k_norm = ath_load_vector(in, l->head_dim_k, l->q_norm ? 0 : ATH_LOAD_OPTIONAL,
                                    "blk.%d.attn_k_norm.weight", il);
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.post_attention_norm", il);
        if (il < n_dense)
            ath_load_ffn(in, l, il);
        else
            ath_load_experts(in, l, il);
    }
}

const ath_arch ath_arch_glm4moe = {glm4moe_load, ath_layer_sequential, false};
