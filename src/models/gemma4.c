/* Gemma 4 (text), dense and mixture of experts. Google DeepMind 2026; per-layer embeddings as in Gemma 3n.
 *
 *     x += norm(Wo attend(rope(norm(Wq h)), rope(norm(Wk h)), norm(Wv h)))    h = norm(x)
 *     x += norm(Wd (gelu(Wg h) * Wu h))                                       h = norm(x)
 *     x += norm(Wp (gelu(Wi x) * e_il))                                       the smaller sizes
 *     x *= s_il
 *
 * e_il is a part of the token's own for this layer: (norm(We x0) + embedding of the layer) / sqrt(2), x0 the
 * scaled token embedding. With experts the second line is
 *
 *     x += norm(norm(Wd (gelu(Wg h) * Wu h)) + norm(sum of p_e expert_e(norm(x))))    p by the router from
 * norm(x)
 *
 * Layers with a window have other heads and another rotation than those that see
 * everything, which rotate some of their pairs only; some have no V matrix (V is K's projection) and the last
 * ones read K and V of the last layer of their kind that has its own. Scores are not scaled: the norms of q
 * and k carry that. */
#include <math.h>

#include "models/model.h"

typedef struct gemma4_layer_weights {
    float *output_scale; /* [1] */
    /* Beside experts (ath_layer.ffn) the dense feed-forward is ath_layer.shared. */
    float *router_norm;       /* [n_embd] */
    ath_norm dense_post_norm; /* [n_embd] */
    ath_norm expert_norm, expert_post_norm;
} gemma4_layer_weights;

typedef struct gemma4 {
    ath_parts parts;
    gemma4_layer_weights *layers;
} gemma4;

/* ---- loading */

static void load_feed_forward(ath_loader *in, ath_model *m, ath_layer *l, gemma4_layer_weights *own, int il) {
    int64_t n_embd = m->n_embd;
    l->ffn_norm = ath_load_norm(in, n_embd, "blk.%d.ffn_norm", il);
    ath_load_ffn(in, l, il);
    ath_load_post_norms(in, l, il);
    if (!m->router.n_experts) return;
    l->shared = l->ffn;
    l->ffn = (ath_ffn){0};
    ath_load_experts(in, l, il);
    own->router_norm = ath_load_vector(in, n_embd, 0, "blk.%d.ffn_gate_inp.scale", il);
    for (int64_t i = 0; own->router_norm && i < n_embd; i++) own->router_norm[i] /= sqrtf((float)n_embd);
    own->dense_post_norm = ath_load_norm(in, n_embd, "blk.%d.post_ffw_norm_1", il);
    own->expert_norm = ath_load_norm(in, n_embd, "blk.%d.pre_ffw_norm_2", il);
    own->expert_post_norm = ath_load_norm(in, n_embd, "blk.%d.post_ffw_norm_2", il);
}

static void gemma4_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_windows(in, 6);
    ath_load_window_rope(in, 10000);
    ath_load_shared_kv(in, 0);
    m->act = ATH_ACT_GELU_TANH;
    m->embd_scale = sqrtf((float)m->n_embd);
    m->final_softcap = ath_load_f32(in, "final_logit_softcapping", 0);
    m->attn_scale = 1;
    m->v_norm = true;
    gemma4 *own = m->own = ath_load_alloc(in, 1, sizeof *own);
    gemma4_layer_weights *layers = ath_load_alloc(in, (size_t)m->n_layers, sizeof *layers);
    if (in->status != ATH_OK) return;
    own->layers = layers;
    ath_load_layer_parts(in, &own->parts);
    m->n_scratch = own->parts.n_scratch + (m->router.n_experts ? 2 * m->n_embd : 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        l->v_may_be_k = true;
        ath_load_attention(in, l, il);
        ath_load_head_norms(in, l, il);
        load_feed_forward(in, m, l, &layers[il], il);
        layers[il].output_scale =
            ath_load_vector(in, 1, ATH_LOAD_OPTIONAL, "blk.%d.layer_output_scale.weight", il);
    }
}

/* ---- evaluation */

/* x += norm(norm(dense(h)) + norm(experts(...))) */
static void feed_forward_with_experts(const ath_model *m, ath_pass *p, const gemma4 *own, int il) {
    const ath_layer *l = &m->layers[il];
    const gemma4_layer_weights *w = &own->layers[il];
    float *dense = p->scratch + p->rows * own->parts.n_scratch, *router_h = dense + p->rows * m->n_embd;
    ath_block_dense(m, p, &l->shared, ath_block_norm(m, p, p->x, &l->ffn_norm, p->h, p->rows), dense);
    ath_block_norm(m, p, dense, &w->dense_post_norm, dense, p->rows);
    ath_op_rms_norm(p->dev, p->x, w->router_norm, m->norm_eps, router_h, m->n_embd, 1, p->rows);
    ath_block_experts(m, p, il, ath_block_norm(m, p, p->x, &w->expert_norm, p->h, p->rows), router_h);
    ath_block_norm(m, p, p->proj, &w->expert_post_norm, p->proj, p->rows);
    ath_op_add(p->dev, p->proj, dense, p->rows * m->n_embd);
    ath_block_norm(m, p, p->proj, &l->post_ffn_norm, p->proj, p->rows);
    ath_block_add(m, p);
}

static void gemma4_layer(const ath_model *m, ath_pass *p, int il) {
    const gemma4 *own = m->own;
    if (il == 0 && own->parts.n_each) ath_block_make_parts(m, p, &own->parts);
    if (m->router.n_experts) {
        ath_layer_attention(m, p, il);
        feed_forward_with_experts(m, p, own, il);
    } else {
        ath_layer_sequential(m, p, il);
    }
    if (own->parts.n_each) {
        ath_block_part(m, p, &own->parts, il, p->x);
        ath_block_add(m, p);
    }
    const float *scale = own->layers[il].output_scale;
    if (scale) ath_op_scale(p->dev, p->x, *scale, p->rows * m->n_embd);
}

const ath_arch ath_arch_gemma4 = {gemma4_load, gemma4_layer, false};
