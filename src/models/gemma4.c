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
    ath_weight inp_gate, proj; /* [n_each, n_embd], [n_embd, n_each] */
    ath_norm post_norm;        /* [n_embd] */
    float *output_scale;       /* [1] */
    /* Beside experts (ath_layer.ffn) the dense feed-forward is ath_layer.shared. */
    float *router_norm;       /* [n_embd] */
    ath_norm dense_post_norm; /* [n_embd] */
    ath_norm expert_norm, expert_post_norm;
} gemma4_layer_weights;

typedef struct gemma4 {
    int64_t n_each;        /* width of a layer's part of a token; 0: there are none */
    ath_weight embd;       /* [n_vocab, n_layers * n_each], file layout */
    ath_weight model_proj; /* [n_layers * n_each, n_embd] */
    float *proj_norm;      /* [n_each] */
    int64_t parts_width;   /* of scratch, floats per row */
    gemma4_layer_weights *layers;
} gemma4;

/* ---- loading */

static void share_kv(ath_loader *in, ath_model *m) {
    uint32_t n_shared = ath_load_u32(in, "attention.shared_kv_layers", 0);
    if (n_shared >= (uint32_t)m->n_layers) {
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.attention.shared_kv_layers is %u of %d layers", in->arch,
                      n_shared, m->n_layers);
        return;
    }
    int n_own = m->n_layers - (int)n_shared;
    for (int il = n_own; il < m->n_layers; il++) {
        int source = n_own - 1;
        while (source >= 0 && m->layers[source].window != m->layers[il].window) source--;
        if (source < 0)
            ath_load_fail(in, ATH_ERR_FORMAT, "layer %d shares the K and V of a layer that isn't there", il);
        m->layers[il].kv_layer = source;
    }
}

static void load_attention(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd, n_heads = l->n_heads, n_kv = l->n_kv_heads;
    ath_load_matrix(in, &l->wq, n_embd, n_heads * l->head_dim_k, 1, 0, "blk.%d.attn_q.weight", il);
    l->q_norm = ath_load_vector(in, l->head_dim_k, 0, "blk.%d.attn_q_norm.weight", il);
    ath_load_matrix(in, &l->wo, n_heads * l->head_dim_v, n_embd, 1, 0, "blk.%d.attn_output.weight", il);
    if (l->kv_layer != il) return;
    unsigned v_flags = l->head_dim_k == l->head_dim_v ? ATH_LOAD_OPTIONAL : 0;
    ath_load_matrix(in, &l->wk, n_embd, n_kv * l->head_dim_k, 1, 0, "blk.%d.attn_k.weight", il);
    ath_load_matrix(in, &l->wv, n_embd, n_kv * l->head_dim_v, 1, v_flags, "blk.%d.attn_v.weight", il);
    l->k_norm = ath_load_vector(in, l->head_dim_k, 0, "blk.%d.attn_k_norm.weight", il);
}

static void load_per_layer_embeddings(ath_loader *in, ath_model *m, gemma4 *own) {
    own->n_each = ath_load_u32(in, "embedding_length_per_layer_input", 0);
    if (own->n_each > 1 << 16)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.embedding_length_per_layer_input is out of range",
                      in->arch);
    if (in->status != ATH_OK || own->n_each == 0) return;
    int64_t n_all = own->n_each * m->n_layers;
    ath_load_rows(in, &own->embd, n_all, m->n_vocab, "per_layer_token_embd.weight");
    ath_load_matrix(in, &own->model_proj, m->n_embd, n_all, 1, 0, "per_layer_model_proj.weight", 0);
    own->proj_norm = ath_load_vector(in, own->n_each, 0, "per_layer_proj_norm.weight", 0);
    own->parts_width = 2 * (n_all > 2 * own->n_each ? n_all : 2 * own->n_each);
    for (int il = 0; il < m->n_layers; il++) {
        gemma4_layer_weights *l = &own->layers[il];
        ath_load_matrix(in, &l->inp_gate, m->n_embd, own->n_each, 1, 0, "blk.%d.inp_gate.weight", il);
        ath_load_matrix(in, &l->proj, own->n_each, m->n_embd, 1, 0, "blk.%d.proj.weight", il);
        l->post_norm = ath_load_norm(in, m->n_embd, "blk.%d.post_norm", il);
    }
}

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
    share_kv(in, m);
    m->act = ATH_ACT_GELU_TANH;
    m->embd_scale = sqrtf((float)m->n_embd);
    m->final_softcap = ath_load_f32(in, "final_logit_softcapping", 0);
    m->attn_scale = 1;
    m->v_norm = true;
    gemma4 *own = m->own = ath_load_alloc(in, 1, sizeof *own);
    gemma4_layer_weights *layers = ath_load_alloc(in, (size_t)m->n_layers, sizeof *layers);
    if (in->status != ATH_OK) return;
    own->layers = layers;
    load_per_layer_embeddings(in, m, own);
    m->n_scratch = own->parts_width + (m->router.n_experts ? 2 * m->n_embd : 0);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        load_attention(in, l, il);
        load_feed_forward(in, m, l, &layers[il], il);
        layers[il].output_scale =
            ath_load_vector(in, 1, ATH_LOAD_OPTIONAL, "blk.%d.layer_output_scale.weight", il);
    }
}

/* ---- evaluation */

static void product(const ath_pass *p, const ath_weight *w, const float *x, float *out) {
    ath_op_matmul(p->dev, &w, &out, 1, x, p->rows);
}

/* scratch [rows][n_layers][n_each]: what each layer gets of each token, from the embeddings in x. */
static void make_parts(const ath_model *m, ath_pass *p, const gemma4 *own) {
    int64_t n = own->n_each * m->n_layers;
    float *parts = p->scratch, *embd = parts + p->rows * n;
    product(p, &own->model_proj, p->x, parts);
    ath_op_scale(p->dev, parts, 1 / sqrtf((float)m->n_embd), p->rows * n);
    ath_op_rms_norm(p->dev, parts, own->proj_norm, m->norm_eps, parts, own->n_each, m->n_layers, p->rows);
    ath_op_embed(p->dev, &own->embd, p->tokens, sqrtf((float)own->n_each), embd, p->rows);
    ath_op_add(p->dev, parts, embd, p->rows * n);
    ath_op_scale(p->dev, parts, sqrtf(0.5f), p->rows * n);
}

/* x += norm(Wp (gelu(Wi x) * part)) */
static void add_part(const ath_model *m, ath_pass *p, const gemma4 *own, int il) {
    const gemma4_layer_weights *l = &own->layers[il];
    int64_t n = own->n_each, n_all = n * m->n_layers;
    float *gate = p->scratch + p->rows * n_all, *part = gate + p->rows * n;
    product(p, &l->inp_gate, p->x, gate);
    ath_op_copy(p->dev, part, n, p->scratch + il * n, n_all, n, p->rows);
    ath_op_gate(p->dev, m->act, gate, part, p->rows * n);
    product(p, &l->proj, gate, p->proj);
    ath_block_norm(m, p, p->proj, &l->post_norm, p->proj, p->rows);
    ath_block_add(m, p);
}

/* x += norm(norm(dense(h)) + norm(experts(...))) */
static void feed_forward_with_experts(const ath_model *m, ath_pass *p, const gemma4 *own, int il) {
    const ath_layer *l = &m->layers[il];
    const gemma4_layer_weights *w = &own->layers[il];
    float *dense = p->scratch + p->rows * own->parts_width, *router_h = dense + p->rows * m->n_embd;
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
    if (il == 0 && own->n_each) make_parts(m, p, own);
    if (m->router.n_experts) {
        ath_layer_attention(m, p, il);
        feed_forward_with_experts(m, p, own, il);
    } else {
        ath_layer_sequential(m, p, il);
    }
    if (own->n_each) add_part(m, p, own, il);
    const float *scale = own->layers[il].output_scale;
    if (scale) ath_op_scale(p->dev, p->x, *scale, p->rows * m->n_embd);
}

const ath_arch ath_arch_gemma4 = {gemma4_load, gemma4_layer, false};
