/* Gemma 3 (text). Gemma team 2025 (arXiv 2503.19786).
 *
 *     x += norm(Wo attend(rope(norm(Wq h)), rope(norm(Wk h)), Wv h))    h = norm(x)
 *     x += norm(Wd (gelu(Wg h) * Wu h))                                 h = norm(x)
 *
 * Five of six layers see a sliding window and rotate with base 10000; each sixth sees everything, with base 1e6 and,
 * in the larger sizes, linear position scaling. Norm weights are stored as 1 + w. Embeddings are scaled by
 * sqrt(n_embd). */
#include <math.h>

#include "models/model.h"

enum { GEMMA3_27B_LAYERS = 62 };

static void gemma3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, true);
    ath_load_windows(in, 6);
    m->embd_scale = sqrtf((float)m->n_embd);
    m->final_softcap = ath_load_f32(in, "final_logit_softcapping", 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        ath_load_pre_norm_layer(in, l, il);
        l->q_norm = ath_load_vector(in, l->head_dim_k, 0, "blk.%d.attn_q_norm.weight", il);
        l->k_norm = ath_load_vector(in, l->head_dim_k, 0, "blk.%d.attn_k_norm.weight", il);
        l->post_attn_norm = ath_load_vector(in, m->n_embd, 0, "blk.%d.post_attention_norm.weight", il);
        l->post_ffn_norm = ath_load_vector(in, m->n_embd, 0, "blk.%d.post_ffw_norm.weight", il);
    }
    /* The 27B scales queries by the width of a head in the residual stream, and no key of the file says so. */
    if (m->n_layers == GEMMA3_27B_LAYERS) m->attn_scale = 1 / sqrtf((float)m->n_embd / m->layers[0].n_heads);
}

static void gemma3_layer(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    ath_block_norm(m, p, p->x, l->attn_norm, p->h);
    ath_block_qkv(m, p, il);
    ath_block_attend(m, p, il);
    ath_block_norm(m, p, p->proj, l->post_attn_norm, p->proj);
    ath_block_add(m, p, p->proj);

    ath_block_norm(m, p, p->x, l->ffn_norm, p->h);
    ath_block_ffn(m, p, il, ATH_ACT_GELU_TANH);
    ath_block_norm(m, p, p->proj, l->post_ffn_norm, p->proj);
    ath_block_add(m, p, p->proj);
}

const ath_arch ath_arch_gemma3 = {"gemma3", gemma3_load, gemma3_layer};
