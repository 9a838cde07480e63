/* The blocks that architectures are built from: attention, feed-forward, mixture of experts. */
#include <math.h>

#include "models/model.h"

void ath_block_norm(const ath_model *m, const ath_pass *p, const float *x, const float *weight, float *y) {
    ath_op_rms_norm(p->dev, x, weight, m->norm_eps, y, m->n_embd, 1, p->rows);
}

void ath_block_add(const ath_model *m, ath_pass *p, const float *y) {
    ath_op_add(p->dev, p->x, y, p->rows * m->n_embd);
}

static void add_bias(const ath_pass *p, float *x, const float *bias, int64_t n) {
    if (bias) ath_op_add_bias(p->dev, x, bias, n, p->rows);
}

void ath_block_qkv(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    const ath_weight *w[] = {&l->wq, &l->wk, &l->wv};
    float *out[] = {p->q, p->k, p->v};
    ath_op_matmul(p->dev, w, out, 3, p->h, p->rows);
    add_bias(p, p->q, l->bq, l->wq.n_out);
    add_bias(p, p->k, l->bk, l->wk.n_out);
    add_bias(p, p->v, l->bv, l->wv.n_out);
    int hd = l->head_dim_k;
    if (l->q_norm) ath_op_rms_norm(p->dev, p->q, l->q_norm, m->norm_eps, p->q, hd, l->n_heads, p->rows);
    if (l->k_norm) ath_op_rms_norm(p->dev, p->k, l->k_norm, m->norm_eps, p->k, hd, l->n_kv_heads, p->rows);
    if (l->rope) {
        ath_op_rope(p->dev, l->rope, p->q, p->pos, l->n_heads, hd, p->rows);
        ath_op_rope(p->dev, l->rope, p->k, p->pos, l->n_kv_heads, hd, p->rows);
    }
}

void ath_block_attend(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    ath_kv_append(p->kv, il, p->k, p->v);
    ath_attn_args args = {
        .n_heads = l->n_heads,
        .scale = m->attn_scale != 0 ? m->attn_scale : 1 / sqrtf((float)l->head_dim_k),
        .q = p->q,
        .out = p->att,
    };
    ath_kv_attend(p->kv, il, &args);
    const ath_weight *w[] = {&l->wo};
    ath_op_matmul(p->dev, w, &p->proj, 1, p->att, p->rows);
    add_bias(p, p->proj, l->bo, m->n_embd);
}

void ath_block_ffn(const ath_model *m, ath_pass *p, int il, ath_act act) {
    const ath_layer *l = &m->layers[il];
    int64_t n_ff = l->gate.n_out;
    const ath_weight *w[] = {&l->gate, &l->up};
    float *out[] = {p->gate, p->up};
    ath_op_matmul(p->dev, w, out, 2, p->h, p->rows);
    add_bias(p, p->gate, l->b_gate, n_ff);
    add_bias(p, p->up, l->b_up, n_ff);
    ath_op_gate(p->dev, act, p->gate, p->up, p->rows * n_ff);
    const ath_weight *down[] = {&l->down};
    ath_op_matmul(p->dev, down, &p->proj, 1, p->gate, p->rows);
    add_bias(p, p->proj, l->b_down, m->n_embd);
}

void ath_block_experts(const ath_model *m, ath_pass *p, int il, ath_act act) {
    const ath_layer *l = &m->layers[il];
    int n_used = m->n_experts_used;
    const ath_weight *router[] = {&l->router};
    ath_op_matmul(p->dev, router, &p->router, 1, p->h, p->rows);
    ath_op_route(p->dev, p->router, m->n_experts, n_used, true, 1, p->expert, p->expert_weight, p->rows);
    const ath_weight *w[] = {&l->gate, &l->up};
    float *out[] = {p->gate, p->up};
    ath_op_matmul_experts(p->dev, w, out, 2, p->h, 1, p->expert, n_used, p->rows);
    ath_op_gate(p->dev, act, p->gate, p->up, p->rows * n_used * l->gate.n_out);
    const ath_weight *down[] = {&l->down};
    ath_op_matmul_experts(p->dev, down, &p->expert_out, 1, p->gate, n_used, p->expert, n_used, p->rows);
    ath_op_mix_experts(p->dev, p->expert_out, p->expert_weight, n_used, p->proj, m->n_embd, p->rows);
}

void ath_layer_pre_norm(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    ath_block_norm(m, p, p->x, l->attn_norm, p->h);
    ath_block_qkv(m, p, il);
    ath_block_attend(m, p, il);
    ath_block_add(m, p, p->proj);

    ath_block_norm(m, p, p->x, l->ffn_norm, p->h);
    if (m->n_experts)
        ath_block_experts(m, p, il, ATH_ACT_SILU);
    else
        ath_block_ffn(m, p, il, ATH_ACT_SILU);
    ath_block_add(m, p, p->proj);
}

void ath_load_pre_norm_layer(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd;
    l->attn_norm = ath_load_vector(in, n_embd, 0, "blk.%d.attn_norm.weight", il);
    ath_load_attention(in, l, il);
    l->ffn_norm = ath_load_vector(in, n_embd, 0, "blk.%d.ffn_norm.weight", il);
    if (in->model->n_experts)
        ath_load_experts(in, l, il);
    else
        ath_load_ffn(in, l, il);
}
