/* Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464), as hybrids have it in most of their layers.
 *
 *     q, k, v = silu(conv(Wqkv h))       a causal convolution of each channel over the last few tokens
 *     M = decay M + k (beta (v - decay M^T k))^T;   o = M^T q      per value head; device/recurrent_args.h
 *     proj = Wo (norm(o) * silu(Wz h))   one norm weight for all heads
 *
 * A layer's state per sequence: the inputs that the convolution still needs, and M of each value head. */
#include <string.h>

#include "models/model.h"

typedef struct delta_net {    /* of a layer; ath_model.own is [n_layers] of them */
    int n_k_heads, n_v_heads, head_dim, n_taps;
    ath_weight qkv, z, out;   /* [channels, n_embd], [n_v_heads*head_dim, n_embd], [n_embd, n_v_heads*head_dim] */
    ath_weight beta, alpha;   /* [n_v_heads, n_embd] x 2 */
    ath_weight beta_alpha;    /* [2 n_v_heads, n_embd] in their place: of each key head its betas, its alphas */
    float *conv;              /* [n_taps][channels of qkv] */
    float *rate, *dt_bias;    /* [n_v_heads] */
    float *norm;              /* [head_dim] */
    bool grouped;             /* ath_delta_args */
} delta_net;

/* ---- loading */

static void load_shape(ath_loader *in, delta_net *d) {
    uint32_t dim = ath_load_u32(in, "ssm.state_size", 0), n_k = ath_load_u32(in, "ssm.group_count", 0);
    uint32_t n_v = ath_load_u32(in, "ssm.time_step_rank", 0), taps = ath_load_u32(in, "ssm.conv_kernel", 0);
    uint32_t inner = ath_load_u32(in, "ssm.inner_size", 0);
    if (n_k < 1 || n_v < 1 || n_v > 4096 || n_v % n_k || taps < 1 || taps > ATH_MAX_TAPS ||
        inner != (uint64_t)n_v * dim)
        ath_load_fail(in, ATH_ERR_FORMAT,
                      "keys %s.ssm: %u key heads, %u value heads of %u channels, %u inner channels, %u taps make no sense",
                      in->arch, n_k, n_v, dim, inner, taps);
    if (dim < ATH_DELTA_BLOCK || dim % ATH_DELTA_BLOCK || dim > 1024)
        ath_load_fail(in, ATH_ERR_UNSUPPORTED, "key %s.ssm.state_size is %u: multiples of %d up to 1024 are possible",
                      in->arch, dim, ATH_DELTA_BLOCK);
    if (in->status != ATH_OK) return;
    d->n_k_heads = (int)n_k, d->n_v_heads = (int)n_v, d->head_dim = (int)dim, d->n_taps = (int)taps;
}

static void load_gate_logits(ath_loader *in, delta_net *d, int il) {
    int64_t n_embd = in->model->n_embd;
    ath_load_matrix(in, &d->beta_alpha, n_embd, 2 * d->n_v_heads, 1, ATH_LOAD_OPTIONAL, "blk.%d.ssm_ba.weight", il);
    if (d->beta_alpha.data) return;
    ath_load_matrix(in, &d->beta, n_embd, d->n_v_heads, 1, 0, "blk.%d.ssm_beta.weight", il);
    ath_load_matrix(in, &d->alpha, n_embd, d->n_v_heads, 1, 0, "blk.%d.ssm_alpha.weight", il);
}

static void load_delta_net(ath_loader *in, ath_layer *l, delta_net *d, int il, bool grouped) {
    l->n_heads = l->n_kv_heads = l->head_dim_k = l->head_dim_v = 0;
    l->rope = NULL;
    d->grouped = grouped;
    load_shape(in, d);
    if (in->status != ATH_OK) return;
    int64_t n_embd = in->model->n_embd, values = (int64_t)d->n_v_heads * d->head_dim;
    int64_t channels = 2 * (int64_t)d->n_k_heads * d->head_dim + values;
    ath_load_matrix(in, &d->qkv, n_embd, channels, 1, 0, "blk.%d.attn_qkv.weight", il);
    ath_load_matrix(in, &d->z, n_embd, values, 1, 0, "blk.%d.attn_gate.weight", il);
    ath_load_matrix(in, &d->out, values, n_embd, 1, 0, "blk.%d.ssm_out.weight", il);
    load_gate_logits(in, d, il);
    d->conv = ath_load_conv(in, d->n_taps, channels, "blk.%d.ssm_conv1d.weight", il);
    d->rate = ath_load_vector(in, d->n_v_heads, 0, "blk.%d.ssm_a", il);
    d->dt_bias = ath_load_vector(in, d->n_v_heads, 0, "blk.%d.ssm_dt.bias", il);
    d->norm = ath_load_vector(in, d->head_dim, 0, "blk.%d.ssm_norm.weight", il);
    l->n_state = (d->n_taps - 1) * channels + values * d->head_dim;
    int64_t scratch = channels + 2 * values + 4 * d->n_v_heads + d->n_k_heads;
    if (scratch > in->model->n_scratch) in->model->n_scratch = scratch;
}

static void load_gated_attention(ath_loader *in, ath_layer *l, int il) {
    l->gated = true;
    if (l->head_dim_k != l->head_dim_v)
        ath_load_fail(in, ATH_ERR_UNSUPPORTED, "layer %d: heads of %d (K) and %d (V) can't share a gate", il,
                      l->head_dim_k, l->head_dim_v);
    ath_load_attention(in, l, il);
    ath_load_head_norms(in, l, il);
    int64_t scratch = 3 * (int64_t)l->n_heads * l->head_dim_k;
    if (scratch > in->model->n_scratch) in->model->n_scratch = scratch;
}

/* Each interval's last layer has attention, or the file says which layers are recurrent. */
static void load_layers(ath_loader *in, ath_model *m, delta_net *nets, bool grouped) {
    enum { UNSET = 2 };
    uint32_t *recurrent = ath_load_alloc(in, (size_t)m->n_layers, sizeof *recurrent);
    uint32_t interval = ath_load_u32(in, "full_attention_interval", 4);
    if (interval < 1) ath_load_fail(in, ATH_ERR_FORMAT, "key %s.full_attention_interval is 0", in->arch);
    if (recurrent) ath_load_u32_array(in, "attention.recurrent_layers", recurrent, m->n_layers, UNSET);
    for (int il = 0; il < m->n_layers && in->status == ATH_OK; il++) {
        ath_layer *l = &m->layers[il];
        bool attends = recurrent[il] == UNSET ? (uint32_t)(il + 1) % interval == 0 : recurrent[il] == 0;
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        if (attends)
            load_gated_attention(in, l, il);
        else
            load_delta_net(in, l, &nets[il], il, grouped);
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.post_attention_norm", il);
        ath_load_feed_forward(in, l, il);
    }
}

void ath_load_hybrid(ath_loader *in, ath_model *m, bool grouped) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_drop_predicting_layers(in);
    m->own = ath_load_alloc(in, (size_t)m->n_layers, sizeof(delta_net));
    if (m->own) load_layers(in, m, m->own, grouped);
}

/* ---- evaluation */

typedef struct activations { /* of a pass: [rows][...] in its scratch */
    float *qkv, *z, *out, *beta, *alpha, *beta_alpha, *qk;
} activations;

static activations activations_of(const ath_pass *p, const delta_net *d) {
    float *at = p->scratch;
    activations a;
    a.qkv = ath_block_take(&at, p->rows * d->qkv.n_out);
    a.z = ath_block_take(&at, p->rows * d->z.n_out);
    a.out = ath_block_take(&at, p->rows * d->z.n_out);
    a.beta = ath_block_take(&at, p->rows * d->n_v_heads);
    a.alpha = ath_block_take(&at, p->rows * d->n_v_heads);
    a.beta_alpha = ath_block_take(&at, p->rows * 2 * d->n_v_heads);
    a.qk = ath_block_take(&at, p->rows * d->n_k_heads);
    return a;
}

static void project(const ath_pass *p, const delta_net *d, const activations *a, const float *h) {
    bool together = d->beta_alpha.data != NULL;
    const ath_weight *w[] = {&d->qkv, &d->z, together ? &d->beta_alpha : &d->beta, &d->alpha};
    float *out[] = {a->qkv, a->z, together ? a->beta_alpha : a->beta, a->alpha};
    ath_op_matmul(p->dev, w, out, together ? 3 : 4, h, p->rows);
    if (!together) return;
    int64_t n = d->n_v_heads / d->n_k_heads, groups = p->rows * d->n_k_heads;
    ath_op_copy(p->dev, a->beta, n, a->beta_alpha, 2 * n, n, groups);
    ath_op_copy(p->dev, a->alpha, n, a->beta_alpha + n, 2 * n, n, groups);
}

/* proj = the mixer's output. */
static void mix(const ath_model *m, ath_pass *p, int il, const float *h) {
    const delta_net *d = (const delta_net *)m->own + il;
    activations a = activations_of(p, d);
    project(p, d, &a, h);
    const ath_state_seq *seqs;
    int n_seqs = ath_kv_states(p->kv, il, &seqs);
    ath_op_conv(p->dev, &(ath_conv_args){.n = d->qkv.n_out,
                                         .n_taps = d->n_taps,
                                         .weight = d->conv,
                                         .x = a.qkv,
                                         .silu = true,
                                         .seqs = seqs,
                                         .n_seqs = n_seqs});
    ath_op_delta_rule(p->dev, &(ath_delta_args){.n_k_heads = d->n_k_heads,
                                                .n_v_heads = d->n_v_heads,
                                                .head_dim = d->head_dim,
                                                .grouped = d->grouped,
                                                .norm_eps = m->norm_eps,
                                                .rate = d->rate,
                                                .bias = d->dt_bias,
                                                .qkv = a.qkv,
                                                .beta = a.beta,
                                                .decay = a.alpha,
                                                .qk = a.qk,
                                                .out = a.out,
                                                .rows = p->rows,
                                                .seqs = seqs,
                                                .n_seqs = n_seqs,
                                                .state_at = (d->n_taps - 1) * d->qkv.n_out});
    ath_kv_check_finite(p->kv, il, a.out, d->z.n_out);
    ath_op_rms_norm(p->dev, a.out, d->norm, m->norm_eps, a.out, d->head_dim, d->n_v_heads, p->rows);
    ath_op_gate(p->dev, ATH_ACT_SILU, a.z, a.out, p->rows * d->z.n_out);
    const ath_weight *w = &d->out;
    ath_op_matmul(p->dev, &w, &p->proj, 1, a.z, p->rows);
}

void ath_layer_hybrid(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    if (l->n_state) {
        mix(m, p, il, ath_block_norm(m, p, p->x, &l->attn_norm, p->h, p->rows));
        ath_block_add(m, p);
    } else {
        ath_layer_attention(m, p, il);
    }
    ath_layer_feed_forward(m, p, il);
}
