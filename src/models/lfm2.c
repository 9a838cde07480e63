/* LFM2, dense and mixture of experts ("lfm2moe"). Liquid AI 2025 (arXiv 2511.23404).
 *
 *     x += mixer(norm(x));   x += feed_forward(norm(x))
 *
 * The mixer is attention where the file gives a layer heads of K and V, each head of Q and K normed before
 * the rotation. In all other layers it is a gated convolution, of each channel over the last few tokens:
 *
 *     b, c, u = Win h;   mixer = Wout (c * conv(b * u))
 *
 * Its state per sequence are the inputs that are still needed. Experts are chosen as in DeepSeek V3. */
#include "models/model.h"

typedef struct short_conv { /* of a layer; ath_model.own is [n_layers] of them */
    int n_taps;
    ath_weight b, c, u, out; /* [n_embd, n_embd] */
    float *taps;             /* [n_taps][n_embd] */
} short_conv;

/* ---- loading */

static void load_short_conv(ath_loader *in, ath_layer *l, short_conv *s, int il) {
    ath_model *m = in->model;
    int64_t n = m->n_embd, widths[] = {n, n, n};
    uint32_t n_taps = ath_load_u32(in, "shortconv.l_cache", 0);
    if (n_taps < 2 || n_taps > ATH_MAX_TAPS)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.shortconv.l_cache is %u: 2 to %d are possible", in->arch,
                      n_taps, ATH_MAX_TAPS);
    if (in->status != ATH_OK) return;
    l->n_heads = l->n_kv_heads = l->head_dim_k = l->head_dim_v = 0;
    l->rope = NULL;
    s->n_taps = (int)n_taps;
    ath_load_parts(in, (ath_weight *[]){&s->b, &s->c, &s->u}, widths, 3, n, "blk.%d.shortconv.in_proj.weight",
                   il);
    ath_load_matrix(in, &s->out, n, n, 1, 0, "blk.%d.shortconv.out_proj.weight", il);
    s->taps = ath_load_conv(in, s->n_taps, n, "blk.%d.shortconv.conv.weight", il);
    l->n_state = (s->n_taps - 1) * n;
    m->n_scratch = 3 * n;
}

static void lfm2_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    if (m->router.n_experts) ath_load_deepseek_router(in, true);
    m->router.renormalise = true;
    int n_dense = m->router.n_experts ? (int)ath_load_u32(in, "leading_dense_block_count", 0) : m->n_layers;
    uint32_t *kv_heads = ath_load_alloc(in, (size_t)m->n_layers, sizeof *kv_heads);
    short_conv *convs = m->own = ath_load_alloc(in, (size_t)m->n_layers, sizeof *convs);
    if (in->status != ATH_OK) return;
    ath_load_u32_array(in, "attention.head_count_kv", kv_heads, m->n_layers, 1);
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        if (kv_heads[il]) {
            ath_load_attention(in, l, il);
            ath_load_head_norms(in, l, il);
        } else {
            load_short_conv(in, l, &convs[il], il);
        }
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.ffn_norm", il);
        if (il < n_dense)
            ath_load_ffn(in, l, il);
        else
            ath_load_experts(in, l, il);
    }
}

/* ---- evaluation */

static void convolve(const ath_model *m, ath_pass *p, int il, const float *h) {
    const short_conv *s = (const short_conv *)m->own + il;
    int64_t n = p->rows * m->n_embd;
    float *b = p->scratch, *c = b + n, *u = c + n;
    const ath_weight *w[] = {&s->b, &s->c, &s->u}, *out = &s->out;
    ath_op_matmul(p->dev, w, (float *[]){b, c, u}, 3, h, p->rows);
    ath_op_multiply(p->dev, u, b, n);
    const ath_state_seq *seqs;
    int n_seqs = ath_kv_states(p->kv, il, &seqs);
    ath_op_conv(
        p->dev,
        &(ath_conv_args){
            .n = m->n_embd, .n_taps = s->n_taps, .weight = s->taps, .x = u, .seqs = seqs, .n_seqs = n_seqs});
    ath_kv_check_finite(p->kv, il, u, m->n_embd);
    ath_op_multiply(p->dev, u, c, n);
    ath_op_matmul(p->dev, &out, &p->proj, 1, u, p->rows);
    ath_block_add(m, p);
}

static void lfm2_layer(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    if (l->n_state)
        convolve(m, p, il, ath_block_norm(m, p, p->x, &l->attn_norm, p->h, p->rows));
    else
        ath_layer_attention(m, p, il);
    ath_layer_feed_forward(m, p, il);
}

const ath_arch ath_arch_lfm2 = {lfm2_load, lfm2_layer, false};
