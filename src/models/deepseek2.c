/* DeepSeek V2 and V3, Kimi K2: multi-head latent attention. DeepSeek-AI 2024 (arXiv 2405.04434, 2412.19437).
 *
 *     h = norm(x)
 *     c = norm(Wkv_a h)                    one latent and
 *     k = rope(Wk_rope h)                  one rotated key for all heads
 *     [q_i, r_i] = Wq_i norm(Wq_a h)       of head i; r_i is rotated
 *     p_i = softmax(q_i . (Wk_b_i c) + r_i . k)
 *     x += Wo [Wv_b_i sum p_i c]
 *     x += feed_forward(norm(x))
 *
 * Wk_b moves to the query's side: q . (Wk_b c) = (Wk_b^T q) . c. So the cache holds one row [c, k], which is
 * K of one kv head, and V without its end, and attention runs in the latent space. Feed-forward: a few dense
 * layers, then experts chosen by softmax (V2) or by sigmoid, with a bias for the choice and in groups (V3),
 * and shared experts for every token. */
#include <math.h>

#include "models/model.h"

/* A layer's weights beyond the common ones. wq takes the normed output of wq_a where there is one; wk gives
 * latent and rope part. */
typedef struct latent_weights {
    ath_weight wq_a;             /* [q_lora, n_embd] */
    ath_weight wk_b, wv_b;       /* n_heads of [latent, nope] and of [head_dim_v, latent] */
    float *q_a_norm, *kv_a_norm; /* [q_lora], [latent] */
} latent_weights;

static latent_weights *weights_of(const ath_model *m, int il) {
    return (latent_weights *)m->own + il;
}

typedef struct widths { /* of one head, or of the latent */
    int64_t q_lora, latent, nope, rope;
} widths;

static widths widths_of(const ath_model *m, int il) {
    const latent_weights *a = weights_of(m, il);
    return (widths){.q_lora = a->wq_a.n_out,
                    .latent = a->wk_b.n_out,
                    .nope = a->wk_b.n_in,
                    .rope = m->rope[ATH_ROPE_FULL].n_rot};
}

/* ---- loading */

/* Keys of the heads as they are in the cache were read already: here those of the heads before compression.
 */
static void load_latent_attention(ath_loader *in, ath_model *m, ath_layer *l, latent_weights *a, int il) {
    int64_t q_lora = ath_load_u32(in, "attention.q_lora_rank", 0),
            latent = ath_load_u32(in, "attention.kv_lora_rank", 0);
    int64_t head = ath_load_u32(in, "attention.key_length_mla", 0),
            value = ath_load_u32(in, "attention.value_length_mla", 0);
    int64_t rope = m->rope[ATH_ROPE_FULL].n_rot, nope = head - rope, n_embd = m->n_embd, n_heads = l->n_heads;
    if (l->n_kv_heads != 1 || latent < 1 || nope < 1 || value < 1 || value > 1 << 16 || nope > 1 << 16 ||
        q_lora > 1 << 20 || l->head_dim_k != latent + rope || l->head_dim_v != latent) {
        ath_load_fail(
            in, ATH_ERR_UNSUPPORTED,
            "keys attention.key_length_mla, value_length_mla, kv_lora_rank, key_length, value_length are not "
            "those of "
            "latent attention with one kv head (files converted before 2025 have to be converted again)");
        return;
    }
    if (q_lora) {
        ath_load_matrix(in, &a->wq_a, n_embd, q_lora, 1, 0, "blk.%d.attn_q_a.weight", il);
        a->q_a_norm = ath_load_vector(in, q_lora, 0, "blk.%d.attn_q_a_norm.weight", il);
        ath_load_matrix(in, &l->wq, q_lora, n_heads * head, 1, 0, "blk.%d.attn_q_b.weight", il);
    } else {
        ath_load_matrix(in, &l->wq, n_embd, n_heads * head, 1, 0, "blk.%d.attn_q.weight", il);
    }
    ath_load_matrix(in, &l->wk, n_embd, latent + rope, 1, 0, "blk.%d.attn_kv_a_mqa.weight", il);
    a->kv_a_norm = ath_load_vector(in, latent, 0, "blk.%d.attn_kv_a_norm.weight", il);
    ath_load_matrix(in, &a->wk_b, nope, latent, n_heads, 0, "blk.%d.attn_k_b.weight", il);
    ath_load_matrix(in, &a->wv_b, latent, value, n_heads, 0, "blk.%d.attn_v_b.weight", il);
    ath_load_matrix(in, &l->wo, n_heads * value, n_embd, 1, 0, "blk.%d.attn_output.weight", il);
    int64_t scratch = n_heads + q_lora + latent + rope + n_heads * (head + nope + rope + latent + value);
    if (scratch > m->n_scratch) m->n_scratch = scratch;
}

static void deepseek2_load(ath_loader *in, ath_model *m) {
    ath_load_drop_predicting_layers(in);
    ath_load_rope(in, 0);
    ath_load_deepseek_router(in, false);
    int dense = (int)ath_load_u32(in, "leading_dense_block_count", 0);
    latent_weights *own = m->own = ath_load_alloc(in, (size_t)m->n_layers, sizeof *own);
    float multiplier = ath_load_f32(in, "rope.scaling.yarn_log_multiplier", 0);
    for (int il = 0; il < m->n_layers && in->status == ATH_OK; il++) {
        ath_layer *l = &m->layers[il];
        l->attn_norm = ath_load_norm(in, m->n_embd, "blk.%d.attn_norm", il);
        load_latent_attention(in, m, l, &own[il], il);
        l->v_in_k = true;
        l->ffn_norm = ath_load_norm(in, m->n_embd, "blk.%d.ffn_norm", il);
        if (il < dense || !m->router.n_experts) {
            ath_load_ffn(in, l, il);
            continue;
        }
        ath_load_experts(in, l, il);
    }
    float head = (float)ath_load_u32(in, "attention.key_length_mla", 1);
    m->attn_scale = 1 / sqrtf(head);
    if (multiplier == 0 || m->yarn_factor <= 1) return;
    /* YaRN's factor is on the scores, not on cos and sin; the key holds a tenth of mscale_all_dim. */
    double factor = 1 + (double)multiplier * log(m->yarn_factor);
    m->attn_scale *= (float)(factor * factor);
    m->rope[ATH_ROPE_FULL].magnitude = 1;
}

/* ---- evaluation */

/* out[row][head] = w[head] . x[row][head] */
static void product_per_head(const ath_pass *p, const ath_weight *w, const float *x, float *out, int n_heads,
                             const int32_t *heads) {
    ath_op_matmul_experts(p->dev, &w, &out, 1, x, n_heads, heads, n_heads, p->rows);
}

/* p->q = [Wk_b^T q_nope, rope(q_rope)] per head */
static void make_queries(const ath_model *m, ath_pass *p, int il, const float *h, float *scratch,
                         const int32_t *heads) {
    const ath_layer *l = &m->layers[il];
    const latent_weights *own = weights_of(m, il);
    widths w = widths_of(m, il);
    int64_t n = p->rows * l->n_heads, head = w.nope + w.rope, key = w.latent + w.rope;
    float *q = ath_block_take(&scratch, n * head), *nope = ath_block_take(&scratch, n * w.nope);
    float *rotated = ath_block_take(&scratch, n * w.rope), *latent = ath_block_take(&scratch, n * w.latent);
    if (own->wq_a.data) {
        float *a = ath_block_take(&scratch, p->rows * w.q_lora);
        ath_block_product(p, &own->wq_a, h, a);
        ath_op_rms_norm(p->dev, a, own->q_a_norm, m->norm_eps, a, w.q_lora, 1, p->rows);
        h = a;
    }
    ath_block_product(p, &l->wq, h, q);
    ath_op_copy(p->dev, nope, w.nope, q, head, w.nope, n);
    ath_op_copy(p->dev, rotated, w.rope, q + w.nope, head, w.rope, n);
    ath_op_rope(p->dev, l->rope, rotated, p->pos, l->n_heads, (int)w.rope, p->rows);
    product_per_head(p, &own->wk_b, nope, latent, l->n_heads, heads);
    ath_op_copy(p->dev, p->q, key, latent, w.latent, w.latent, n);
    ath_op_copy(p->dev, p->q + w.latent, key, rotated, w.rope, w.rope, n);
}

/* p->k = [c, rope(Wk_rope h)]; p->v is scratch */
static void make_keys(const ath_model *m, ath_pass *p, int il, const float *h, float *scratch) {
    const ath_layer *l = &m->layers[il];
    widths w = widths_of(m, il);
    int64_t key = w.latent + w.rope;
    float *rotated = ath_block_take(&scratch, p->rows * w.rope);
    ath_block_product(p, &l->wk, h, p->k);
    ath_op_copy(p->dev, p->v, w.latent, p->k, key, w.latent, p->rows);
    ath_op_rms_norm(p->dev, p->v, weights_of(m, il)->kv_a_norm, m->norm_eps, p->v, w.latent, 1, p->rows);
    ath_op_copy(p->dev, rotated, w.rope, p->k + w.latent, key, w.rope, p->rows);
    ath_op_rope(p->dev, l->rope, rotated, p->pos, 1, (int)w.rope, p->rows);
    ath_op_copy(p->dev, p->k, key, p->v, w.latent, w.latent, p->rows);
    ath_op_copy(p->dev, p->k + w.latent, key, rotated, w.rope, w.rope, p->rows);
}

static void deepseek2_layer(const ath_model *m, ath_pass *p, int il) {
    const ath_layer *l = &m->layers[il];
    float *scratch = p->scratch;
    /* "experts" of per-head matrices */
    int32_t *heads = (int32_t *)ath_block_take(&scratch, p->rows * l->n_heads);
    for (int64_t i = 0; i < p->rows * l->n_heads; i++) heads[i] = (int32_t)(i % l->n_heads);
    const float *h = ath_block_norm(m, p, p->x, &l->attn_norm, p->h, p->rows);
    make_queries(m, p, il, h, scratch, heads);
    make_keys(m, p, il, h, scratch);
    ath_block_attention(m, p, il);
    product_per_head(p, &weights_of(m, il)->wv_b, p->att, scratch, l->n_heads, heads);
    ath_block_product(p, &l->wo, scratch, p->proj);
    ath_block_add(m, p);

    ath_block_ffn(m, p, il, ath_block_norm(m, p, p->x, &l->ffn_norm, p->h, p->rows));
    ath_block_add(m, p);
}

const ath_arch ath_arch_deepseek2 = {deepseek2_load, deepseek2_layer, false};
