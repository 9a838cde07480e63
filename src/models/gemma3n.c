/* Gemma 3n (text). Google DeepMind 2025. AltUp: Baykal et al. 2023 (arXiv 2301.13310); Laurel: Menghani et
 * al. 2024 (arXiv 2411.07501); sparse feed-forwards: You et al. 2025 (arXiv 2506.06644).
 *
 * Each token has n streams s_0 ... s_n-1 instead of one: its embedding, and projections of it as strong as
 * itself. A layer predicts all of them, evaluates the first, and corrects all by how far that was from its
 * prediction:
 *
 *     s_j += sum over i of (Wc r)_ji s_i                                    r = tanh(Wr norm(s_0) / n_embd)
 *     x = s_0 + norm(Wo attend(rope(norm(Wq h)), rope(norm(Wk h)), norm(Wv h)))                h = norm(s_0)
 *     x = (x + h + norm(Wright Wleft h)) / sqrt(2)
 *     x += norm(Wd (gelu(upper(Wg h)) * Wu h))                                                 h = norm(x)
 *     s_j += (1 + (Wk r)_j) (x - s_0)                                       r = tanh(Wr norm(x) / n_embd)
 *     s_j += norm(Wp (gelu(Wi (c * s_0)) * part))     j > 0                 part: parts.c
 *
 * Both mixtures are linear in the streams and x, with coefficients that are affine in r: one op does both.
 * The first layers keep the upper values of their gates only. The model's output is the mean of the streams,
 * those above the first projected back and made as strong as it. The last layers read K and V of the last
 * layer of their kind that has its own. */
#include <math.h>
#include <stdio.h>

#include "models/model.h"

enum { SPARSE_LAYERS = 10, OWN_KV_LAYERS = 20 }; /* of a file that doesn't say */
static const float SPARSE_ABOVE = 1.6448533535f; /* 95 % of a normal distribution lie below */
static const float LEAST_SQUARE = 1e-5f;         /* of a projected stream */

typedef struct gemma3n_layer_weights {
    float *router_norm;            /* [n_embd], divided by n_embd */
    ath_weight router;             /* [n, n_embd] */
    ath_weight predict;            /* [n * n, n] */
    ath_weight correct;            /* [n * (n + 1), n] */
    float *correct_scale;          /* [n_embd] */
    ath_weight laurel_l, laurel_r; /* [rank, n_embd], [n_embd, rank] */
    ath_norm laurel_norm;
} gemma3n_layer_weights;

typedef struct gemma3n {
    ath_parts parts;
    int n;                    /* streams */
    ath_weight widen, narrow; /* [n_embd, n_embd], n - 1 of them */
    float *predict_base;      /* [n][n] what prediction does without r */
    float *correct_base;      /* [n][n + 1] what correction does without r; x is the last column */
    gemma3n_layer_weights *layers;
} gemma3n;

/* ---- loading */

static void load_streams(ath_loader *in, ath_model *m, gemma3n *own) {
    uint32_t n = ath_load_u32(in, "altup.num_inputs", 4), active = ath_load_u32(in, "altup.active_idx", 0);
    if (n < 2 || n >= ATH_MAX_STREAMS || active != 0)
        ath_load_fail(in, ATH_ERR_UNSUPPORTED,
                      "keys %s.altup.num_inputs %u and active_idx %u: 2 to %d streams are possible, of which "
                      "the first is evaluated",
                      in->arch, n, active, ATH_MAX_STREAMS - 1);
    if (in->status != ATH_OK) return;
    own->n = (int)n;
    ath_load_matrix(in, &own->widen, m->n_embd, m->n_embd, n - 1, 0, "altup_proj.weight", 0);
    ath_load_matrix(in, &own->narrow, m->n_embd, m->n_embd, n - 1, 0, "altup_unembd_proj.weight", 0);
    own->predict_base = ath_load_alloc(in, n * n, sizeof(float));
    own->correct_base = ath_load_alloc(in, n * (n + 1), sizeof(float));
    if (in->status != ATH_OK) return;
    for (uint32_t j = 0; j < n; j++) {
        float *row = own->correct_base + j * (n + 1);
        own->predict_base[j * n + j] = 1;
        row[j] += 1;
        row[0] -= 1;
        row[n] += 1;
    }
}

/* s_j += c_j (x - s_0) as rows of coefficients of s and x: -c_j at s_0, c_j at x. */
static void load_correction(ath_loader *in, ath_weight *w, int64_t n, int il) {
    const float *coef = ath_load_vectors(in, n, n, 0, "blk.%d.altup_correct_coef.weight", il);
    float *rows = ath_load_alloc(in, (size_t)(n * (n + 1) * n), sizeof *rows);
    if (!coef || !rows) return;
    for (int64_t j = 0; j < n; j++)
        for (int64_t k = 0; k < n; k++) {
            rows[j * (n + 1) * n + k] = -coef[j * n + k];
            rows[(j * (n + 1) + n) * n + k] = coef[j * n + k];
        }
    ath_load_f32_matrix(in, w, rows, n, n * (n + 1), 1, true);
}

static int64_t laurel_rank(ath_loader *in) {
    const ath_gguf_tensor *t = ath_gguf_find_tensor(in->gguf, "blk.0.laurel_l.weight");
    if (t && (t->ne[1] < 1 || t->ne[1] > 1 << 16))
        ath_load_fail(in, ATH_ERR_FORMAT, "tensor blk.0.laurel_l.weight has %lld rows", (long long)t->ne[1]);
    return t ? t->ne[1] : 64; /* missing: refused with its name when it is loaded */
}

static void load_own(ath_loader *in, ath_model *m, gemma3n_layer_weights *l, int64_t n, int64_t rank,
                     int il) {
    int64_t n_embd = m->n_embd;
    l->router_norm = ath_load_vector(in, n_embd, 0, "blk.%d.altup_router_norm.weight", il);
    for (int64_t i = 0; l->router_norm && i < n_embd; i++) l->router_norm[i] /= (float)n_embd;
    ath_load_matrix(in, &l->router, n_embd, n, 1, 0, "blk.%d.altup_router.weight", il);
    ath_load_matrix(in, &l->predict, n, n * n, 1, 0, "blk.%d.altup_predict_coef.weight", il);
    load_correction(in, &l->correct, n, il);
    l->correct_scale = ath_load_vector(in, n_embd, 0, "blk.%d.altup_correct_scale.weight", il);
    ath_load_matrix(in, &l->laurel_l, n_embd, rank, 1, 0, "blk.%d.laurel_l.weight", il);
    ath_load_matrix(in, &l->laurel_r, rank, n_embd, 1, 0, "blk.%d.laurel_r.weight", il);
    l->laurel_norm = ath_load_norm(in, n_embd, "blk.%d.laurel_post_norm", il);
}

/* One number of deviations per layer; minus infinity: a dense one. */
static void load_sparsity(ath_loader *in, ath_model *m) {
    char key[128];
    snprintf(key, sizeof key, "%s.activation_sparsity_scale", in->arch);
    const ath_gguf_kv *kv = ath_gguf_find(in->gguf, key);
    if (kv && (kv->type != ATH_GGUF_ARRAY || kv->strings || kv->count < (uint64_t)m->n_layers)) {
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s is no array of %d numbers", key, m->n_layers);
        return;
    }
    for (int il = 0; il < m->n_layers; il++) {
        ath_ffn *ffn = &m->layers[il].ffn;
        ffn->sparse_above = kv ? (float)ath_gguf_item_f64(kv, (uint64_t)il) : SPARSE_ABOVE;
        ffn->sparse = kv ? ffn->sparse_above != -INFINITY : il < SPARSE_LAYERS;
        if (ffn->sparse && !isfinite(ffn->sparse_above))
            ath_load_fail(in, ATH_ERR_FORMAT, "key %s: %g for layer %d", key, (double)ffn->sparse_above, il);
    }
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void gemma3n_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_windows(in, 5);
    ath_load_window_rope(in, 10000);
    ath_load_shared_kv(in, m->n_layers > OWN_KV_LAYERS ? (uint32_t)(m->n_layers - OWN_KV_LAYERS) : 0);
    load_sparsity(in, m);
    m->act = ATH_ACT_GELU_TANH;
    m->embd_scale = sqrtf((float)m->n_embd);
    m->final_softcap = ath_load_f32(in, "final_logit_softcapping", 30);
    m->attn_scale = 1;
    m->v_norm = true;
    gemma3n *own = m->own = ath_load_alloc(in, 1, sizeof *own);
    gemma3n_layer_weights *layers = ath_load_alloc(in, (size_t)m->n_layers, sizeof *layers);
    if (in->status != ATH_OK) return;
    own->layers = layers;
    load_streams(in, m, own);
    ath_load_layer_parts(in, &own->parts);
    if (own->parts.n_each == 0)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.embedding_length_per_layer_input is missing or zero",
                      in->arch);
    int64_t n = own->n, rank = laurel_rank(in);
    int64_t moment = max64(max64(n * (n + 2), rank + m->n_embd), (n - 1) * (m->n_embd + 1));
    m->n_scratch = own->parts.n_scratch + (n + 1) * m->n_embd + moment;
    for (int il = 0; il < m->n_layers; il++) {
        ath_load_layer(in, &m->layers[il], il);
        ath_load_head_norms(in, &m->layers[il], il);
        ath_load_post_norms(in, &m->layers[il], il);
        load_own(in, m, &layers[il], n, rank, il);
    }
}

/* ---- evaluation */

/* scratch: the parts, then [rows][n + 1][n_embd] the streams and the layer's result, then what is needed for
 * a moment. */
static float *streams_of(const ath_pass *p, const gemma3n *own) {
    return p->scratch + p->rows * own->parts.n_scratch;
}

static float *moment_of(const ath_model *m, const ath_pass *p, const gemma3n *own) {
    return streams_of(p, own) + p->rows * (own->n + 1) * m->n_embd;
}

/* x = s_0 */
static void take_first(const ath_model *m, const ath_pass *p, const gemma3n *own) {
    ath_op_copy(p->dev, p->x, m->n_embd, streams_of(p, own), (own->n + 1) * m->n_embd, m->n_embd, p->rows);
}

/* The n - 1 projections of each row, of x or of one vector each, as strong as p->x. */
static void project(const ath_model *m, ath_pass *p, const ath_weight *w, const float *x, int x_slots,
                    float *out, int32_t *which) {
    int n = (int)w->n_experts;
    for (int64_t i = 0; i < p->rows * n; i++) which[i] = (int32_t)(i % n);
    ath_op_matmul_experts(p->dev, &w, &out, 1, x, x_slots, which, n, p->rows);
    ath_op_match_rms(p->dev, out, p->x, LEAST_SQUARE, m->n_embd, n, p->rows);
}

static void widen(const ath_model *m, ath_pass *p, const gemma3n *own) {
    int64_t n_embd = m->n_embd, others = (own->n - 1) * n_embd, stride = (own->n + 1) * n_embd;
    float *at = moment_of(m, p, own), *out = ath_block_take(&at, p->rows * others), *s = streams_of(p, own);
    project(m, p, &own->widen, p->x, 1, out, (int32_t *)at);
    ath_op_copy(p->dev, s, stride, p->x, n_embd, n_embd, p->rows);
    ath_op_copy(p->dev, s + n_embd, stride, out, others, others, p->rows);
}

static void narrow(const ath_model *m, ath_pass *p, const gemma3n *own) {
    int64_t n_embd = m->n_embd, others = (own->n - 1) * n_embd, stride = (own->n + 1) * n_embd;
    float *at = moment_of(m, p, own), *wide = ath_block_take(&at, p->rows * others), *s = streams_of(p, own);
    take_first(m, p, own);
    ath_op_copy(p->dev, wide, others, s + n_embd, stride, others, p->rows);
    project(m, p, &own->narrow, wide, own->n - 1, s, (int32_t *)at);
    for (int j = 0; j < own->n - 1; j++)
        ath_op_add_strided(p->dev, p->x, n_embd, s + j * n_embd, others, n_embd, p->rows);
    ath_op_scale(p->dev, p->x, 1 / (float)own->n, p->rows * n_embd);
}

/* s = (base + w r) of the first n_in of the streams and the layer's result; r by x. */
static void mix(const ath_model *m, ath_pass *p, const gemma3n *own, int il, const ath_weight *w,
                const float *base, int n_in) {
    const gemma3n_layer_weights *l = &own->layers[il];
    float *at = moment_of(m, p, own), *r = ath_block_take(&at, p->rows * own->n);
    ath_op_rms_norm(p->dev, p->x, l->router_norm, m->norm_eps, p->h, m->n_embd, 1, p->rows);
    ath_block_product(p, &l->router, p->h, r);
    for (int64_t i = 0; i < p->rows * own->n; i++) r[i] = tanhf(r[i]);
    ath_block_product(p, w, r, at);
    ath_op_add_bias(p->dev, at, base, own->n * n_in, p->rows);
    ath_op_mix_streams(p->dev, streams_of(p, own), own->n + 1, at, n_in, own->n, m->n_embd, p->rows);
}

/* x = (x + norm(attention(h)) + h + norm(Wright Wleft h)) / sqrt(2) */
static void attention_and_laurel(const ath_model *m, ath_pass *p, const gemma3n *own, int il) {
    const ath_layer *l = &m->layers[il];
    const gemma3n_layer_weights *w = &own->layers[il];
    int64_t n = p->rows * m->n_embd;
    float *at = moment_of(m, p, own), *laurel = ath_block_take(&at, n);
    ath_block_norm(m, p, p->x, &l->attn_norm, p->h, p->rows);
    ath_block_product(p, &w->laurel_l, p->h, at);
    ath_block_product(p, &w->laurel_r, at, laurel);
    ath_block_norm(m, p, laurel, &w->laurel_norm, laurel, p->rows);
    ath_op_add(p->dev, laurel, p->h, n);
    ath_block_qkv(m, p, il, p->h);
    ath_block_attend(m, p, il);
    ath_block_norm(m, p, p->proj, &l->post_attn_norm, p->proj, p->rows);
    ath_block_add(m, p);
    ath_op_add(p->dev, p->x, laurel, n);
    ath_op_scale(p->dev, p->x, sqrtf(0.5f), n);
}

/* s_j += norm(Wp (gelu(Wi (c * s_0)) * part)) for j > 0 */
static void add_part(const ath_model *m, ath_pass *p, const gemma3n *own, int il) {
    int64_t n_embd = m->n_embd, stride = (own->n + 1) * n_embd;
    take_first(m, p, own);
    ath_op_scale_channels(p->dev, p->x, own->layers[il].correct_scale, n_embd, p->rows);
    ath_block_part(m, p, &own->parts, il, p->x);
    for (int j = 1; j < own->n; j++)
        ath_op_add_strided(p->dev, streams_of(p, own) + j * n_embd, stride, p->proj, n_embd, n_embd, p->rows);
}

static void gemma3n_layer(const ath_model *m, ath_pass *p, int il) {
    const gemma3n *own = m->own;
    const gemma3n_layer_weights *w = &own->layers[il];
    int n = own->n;
    if (il == 0) {
        ath_block_make_parts(m, p, &own->parts);
        widen(m, p, own);
    }
    take_first(m, p, own);
    mix(m, p, own, il, &w->predict, own->predict_base, n);
    take_first(m, p, own);
    attention_and_laurel(m, p, own, il);
    ath_layer_feed_forward(m, p, il);
    ath_op_copy(p->dev, streams_of(p, own) + n * m->n_embd, (n + 1) * m->n_embd, p->x, m->n_embd, m->n_embd,
                p->rows);
    mix(m, p, own, il, &w->correct, own->correct_base, n + 1);
    add_part(m, p, own, il);
    if (il == m->n_layers - 1) narrow(m, p, own);
}

const ath_arch ath_arch_gemma3n = {gemma3n_load, gemma3n_layer, false};
