/* The blocks that architectures are built from: attention, feed-forward, mixture of experts. */
#include <math.h>

#include "kernels/vector_math.h"
#include "models/model.h"

const float *ath_block_norm(const ath_model *m, const ath_pass *p, const float *x, const ath_norm *norm,
                            float *y, int64_t rows) {
    if (!norm->weight) return x;
    if (m->arch->layer_norm)
        ath_op_layer_norm(p->dev, x, norm->weight, norm->bias, m->norm_eps, y, m->n_embd, rows);
    else
        ath_op_rms_norm(p->dev, x, norm->weight, m->norm_eps, y, m->n_embd, 1, rows);
    return y;
}

void ath_block_add(const ath_model *m, ath_pass *p) {
    int64_t n = p->rows * m->n_embd;
    if (m->residual_scale != 1) ath_op_scale(p->dev, p->proj, m->residual_scale, n);
    ath_op_add(p->dev, p->x, p->proj, n);
}

static void add_bias(const ath_pass *p, float *x, const float *bias, int64_t n) {
    if (bias) ath_op_add_bias(p->dev, x, bias, n, p->rows);
}

void ath_block_product(const ath_pass *p, const ath_weight *w, const float *x, float *out) {
    ath_op_matmul(p->dev, &w, &out, 1, x, p->rows);
}

float *ath_block_take(float **at, int64_t n) {
    float *taken = *at;
    *at += n;
    return taken;
}

/* ---- attention */

static void norm_heads(const ath_model *m, const ath_pass *p, float *x, const float *weight, int64_t head_dim,
                       int n_heads) {
    if (!weight) return;
    if (m->qk_norm_whole)
        ath_op_rms_norm(p->dev, x, weight, m->norm_eps, x, head_dim * n_heads, 1, p->rows);
    else
        ath_op_rms_norm(p->dev, x, weight, m->norm_eps, x, head_dim, n_heads, p->rows);
}

static void scale_queries(const ath_model *m, ath_pass *p, int64_t n) {
    for (int64_t row = 0; row < p->rows; row++)
        p->row_scale[row] =
            1 + m->attn_temperature * (float)log1p((double)(p->pos[row] / m->attn_temperature_len));
    ath_op_scale_rows(p->dev, p->q, p->row_scale, n, p->rows);
}

/* q, or k, of a layer from its projection: norm, rotation. */
static void finish_heads(const ath_model *m, const ath_pass *p, const ath_layer *l, float *x,
                         const float *norm, int n_heads) {
    if (!m->qk_norm_last) norm_heads(m, p, x, norm, l->head_dim_k, n_heads);
    const ath_rope *rope = l->rope;
    if (p->long_context && rope == &m->rope[ATH_ROPE_FULL]) rope = &m->rope[ATH_ROPE_LONG];
    if (rope) ath_op_rope(p->dev, rope, x, p->pos, n_heads, l->head_dim_k, p->rows);
    if (m->qk_norm_last) norm_heads(m, p, x, norm, l->head_dim_k, n_heads);
}

/* Gated queries come into scratch, and their gates behind them. */
static float *gates_of(const ath_pass *p, const ath_layer *l) {
    return p->scratch + p->rows * l->wq.n_out;
}

static void split_gates(const ath_pass *p, const ath_layer *l) {
    int64_t hd = l->head_dim_k, n = p->rows * l->n_heads;
    ath_op_copy(p->dev, p->q, hd, p->scratch, 2 * hd, hd, n);
    ath_op_copy(p->dev, gates_of(p, l), hd, p->scratch + hd, 2 * hd, hd, n);
}

/* V is K's projection where it has no matrix. */
static void project(const ath_pass *p, const ath_layer *l, const float *h, bool with_kv) {
    const ath_weight *w[] = {&l->wq, &l->wk, &l->wv};
    float *out[] = {l->gated ? p->scratch : p->q, p->k, p->v};
    bool k_is_v = with_kv && !l->wv.data;
    ath_op_matmul(p->dev, w, out, !with_kv ? 1 : k_is_v ? 2 : 3, h, p->rows);
    add_bias(p, out[0], l->bq, l->wq.n_out);
    if (l->gated) split_gates(p, l);
    if (!with_kv) return;
    add_bias(p, p->k, l->bk, l->wk.n_out);
    add_bias(p, p->v, l->bv, l->wv.n_out);
    if (k_is_v) ath_op_copy(p->dev, p->v, l->wk.n_out, p->k, l->wk.n_out, l->wk.n_out, p->rows);
}

void ath_block_qkv(const ath_model *m, ath_pass *p, int il, const float *h) {
    const ath_layer *l = &m->layers[il];
    bool with_kv = l->kv_layer == il;
    project(p, l, h, with_kv);
    finish_heads(m, p, l, p->q, l->q_norm, l->n_heads);
    if (with_kv) finish_heads(m, p, l, p->k, l->k_norm, l->n_kv_heads);
    if (with_kv && m->v_norm)
        ath_op_rms_norm(p->dev, p->v, NULL, m->norm_eps, p->v, l->head_dim_v, l->n_kv_heads, p->rows);
    if (m->attn_temperature != 0) scale_queries(m, p, (int64_t)l->n_heads * l->head_dim_k);
}

void ath_block_attention(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    if (l->kv_layer == il) {
        if (p->k_bias)
            ath_op_add_bias(p->dev, p->k, p->k_bias + il * p->k_width, (int64_t)l->n_kv_heads * l->head_dim_k, p->rows);
        ath_kv_append(p->kv, il, p->k, p->v);
    }
    ath_attn_args args = {
        .n_heads = l->n_heads,
        .scale = m->attn_scale != 0 ? m->attn_scale : 1 / sqrtf((float)l->head_dim_k),
        .softcap = m->attn_softcap,
        .sink_logits = l->sinks,
        .q = p->q,
        .out = p->att,
    };
    ath_kv_attend(p->kv, il, &args);
}

void ath_block_attend(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    float *att = p->att;
    ath_block_attention(m, p, il);
    if (l->gated) {
        att = gates_of(p, l);
        ath_op_gate(p->dev, ATH_ACT_SIGMOID, att, p->att, p->rows * l->n_heads * l->head_dim_v);
    }
    ath_block_product(p, &l->wo, att, p->proj);
    add_bias(p, p->proj, l->bo, m->n_embd);
}

/* ---- feed-forward */

void ath_block_dense(const ath_model *m, ath_pass *p, const ath_ffn *f, const float *h, float *result) {
    int64_t n_ff = f->up.n_out;
    float *inner = f->gate.data ? p->gate : p->up;
    if (f->gate.data) {
        const ath_weight *w[] = {&f->gate, &f->up};
        float *out[] = {p->gate, p->up};
        ath_op_matmul(p->dev, w, out, 2, h, p->rows);
        add_bias(p, p->gate, f->b_gate, n_ff);
        add_bias(p, p->up, f->b_up, n_ff);
        if (f->sparse) ath_op_keep_upper(p->dev, p->gate, f->sparse_above, n_ff, p->rows);
        ath_op_gate(p->dev, m->act, p->gate, p->up, p->rows * n_ff);
    } else {
        ath_block_product(p, &f->up, h, p->up);
        add_bias(p, p->up, f->b_up, n_ff);
        ath_op_gelu(p->dev, p->up, p->rows * n_ff);
    }
    ath_block_product(p, &f->down, inner, result);
    add_bias(p, result, f->b_down, m->n_embd);
}

static void add_expert_bias(const ath_model *m, const ath_pass *p, float *x, const float *bias, int64_t n) {
    if (bias) ath_op_add_expert_bias(p->dev, x, bias, p->expert, n, p->rows * m->router.n_used);
}

void ath_block_experts(const ath_model *m, ath_pass *p, int il, const float *h, const float *router_h) {
    const ath_layer *l = &m->layers[il];
    const ath_ffn *f = &l->ffn;
    int n_used = m->router.n_used;
    int64_t n_ff = f->up.n_out;
    ath_block_product(p, &l->router, router_h, p->router);
    add_bias(p, p->router, l->b_router, m->router.n_experts);
    ath_router choice = m->router;
    choice.bias = l->b_choice;
    ath_op_route(p->dev, &choice, p->router, p->expert, p->expert_weight, p->rows);
    const ath_weight *w[] = {&f->gate, &f->up}, *down = &f->down;
    float *out[] = {p->gate, p->up};
    ath_op_matmul_experts(p->dev, w, out, 2, h, 1, p->expert, n_used, p->rows);
    add_expert_bias(m, p, p->gate, f->b_gate, n_ff);
    add_expert_bias(m, p, p->up, f->b_up, n_ff);
    ath_op_gate(p->dev, m->act, p->gate, p->up, p->rows * n_used * n_ff);
    ath_op_matmul_experts(p->dev, &down, &p->expert_out, 1, p->gate, n_used, p->expert, n_used, p->rows);
    add_expert_bias(m, p, p->expert_out, f->b_down, m->n_embd);
    ath_op_mix_experts(p->dev, p->expert_out, p->expert_weight, n_used, p->proj, m->n_embd, p->rows);
}

/* proj += the expert that every token takes. */
static void feed_shared(const ath_model *m, ath_pass *p, const ath_layer *l, const float *h) {
    ath_block_dense(m, p, &l->shared, h, p->expert_out);
    if (l->shared_router.data) {
        ath_block_product(p, &l->shared_router, h, p->row_scale);
        for (int64_t row = 0; row < p->rows; row++)
            p->row_scale[row] = 1 / (1 + ath_expf(-p->row_scale[row]));
        ath_op_scale_rows(p->dev, p->expert_out, p->row_scale, m->n_embd, p->rows);
    }
    ath_op_add(p->dev, p->proj, p->expert_out, p->rows * m->n_embd);
}

void ath_block_ffn(const ath_model *m, ath_pass *p, int il, const float *h) {
    const ath_layer *l = &m->layers[il];
    if (!l->router.data) {
        ath_block_dense(m, p, &l->ffn, h, p->proj);
        return;
    }
    ath_block_experts(m, p, il, h, h);
    if (l->shared.up.data) feed_shared(m, p, l, h);
}

/* ---- whole layers */

void ath_layer_attention(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    ath_block_qkv(m, p, il, ath_block_norm(m, p, p->x, &l->attn_norm, p->h, p->rows));
    ath_block_attend(m, p, il);
    ath_block_norm(m, p, p->proj, &l->post_attn_norm, p->proj, p->rows);
    ath_block_add(m, p);
}

void ath_layer_feed_forward(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    ath_block_ffn(m, p, il, ath_block_norm(m, p, p->x, &l->ffn_norm, p->h, p->rows));
    ath_block_norm(m, p, p->proj, &l->post_ffn_norm, p->proj, p->rows);
    ath_block_add(m, p);
}

void ath_layer_sequential(const ath_model *m, ath_pass *p, int il) {
    ath_layer_attention(m, p, il);
    ath_layer_feed_forward(m, p, il);
}

void ath_layer_parallel(const ath_model *m, ath_pass *p, int il) {
    const float *h = ath_block_norm(m, p, p->x, &m->layers[il].attn_norm, p->h, p->rows);
    ath_block_qkv(m, p, il, h);
    ath_block_attend(m, p, il);
    ath_block_add(m, p);
    ath_block_ffn(m, p, il, h);
    ath_block_add(m, p);
}
