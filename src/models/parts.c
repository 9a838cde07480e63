/* Per-layer embeddings, as Gemma 3n and Gemma 4 have them: each token has a second embedding with a part for
 * every layer.
 *
 *     part_l = (norm(Wm x0 / sqrt(n_embd)) + sqrt(n_each) embedding_l) / sqrt(2)
 *     what layer l makes of it = norm(Wp (act(Wg x) * part_l))
 *
 * where x0 is the scaled embedding of the token, and embedding_l the part of its second one.
 * The table of parts is as large as the model's other weights, but only the rows of tokens that occur are
 * read: it stays in the map. All parts of a pass are made before its first layer, from x, which then is still
 * the embeddings. */
#include <math.h>

#include "models/model.h"

void ath_load_layer_parts(ath_loader *in, ath_parts *parts) {
    ath_model *m = in->model;
    int64_t n = parts->n_each = ath_load_u32(in, "embedding_length_per_layer_input", 0);
    if (n > 1 << 16)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.embedding_length_per_layer_input is out of range",
                      in->arch);
    if (in->status != ATH_OK || n == 0) return;
    int64_t n_all = n * m->n_layers;
    ath_load_rows(in, &parts->embd, n_all, m->n_vocab, "per_layer_token_embd.weight");
    ath_load_matrix(in, &parts->model_proj, m->n_embd, n_all, 1, 0, "per_layer_model_proj.weight", 0);
    parts->proj_norm = ath_load_vector(in, n, 0, "per_layer_proj_norm.weight", 0);
    parts->n_scratch = n_all + (n_all > 2 * n ? n_all : 2 * n);
    parts->layers = ath_load_alloc(in, (size_t)m->n_layers, sizeof *parts->layers);
    for (int il = 0; parts->layers && il < m->n_layers; il++) {
        ath_part_weights *l = &parts->layers[il];
        ath_load_matrix(in, &l->gate, m->n_embd, n, 1, 0, "blk.%d.inp_gate.weight", il);
        ath_load_matrix(in, &l->proj, n, m->n_embd, 1, 0, "blk.%d.proj.weight", il);
        l->post_norm = ath_load_norm(in, m->n_embd, "blk.%d.post_norm", il);
    }
}

/* scratch: [rows][n_layers][n_each], and behind it what is needed for a moment. */
void ath_block_make_parts(const ath_model *m, ath_pass *p, const ath_parts *parts) {
    int64_t n = parts->n_each * m->n_layers;
    float *all = p->scratch, *embd = all + p->rows * n;
    ath_block_product(p, &parts->model_proj, p->x, all);
    ath_op_scale(p->dev, all, 1 / sqrtf((float)m->n_embd), p->rows * n);
    ath_op_rms_norm(p->dev, all, parts->proj_norm, m->norm_eps, all, parts->n_each, m->n_layers, p->rows);
    ath_op_embed(p->dev, &parts->embd, p->tokens, sqrtf((float)parts->n_each), embd, p->rows);
    ath_op_add(p->dev, all, embd, p->rows * n);
    ath_op_scale(p->dev, all, sqrtf(0.5f), p->rows * n);
}

void ath_block_part(const ath_model *m, ath_pass *p, const ath_parts *parts, int il, const float *x) {
    const ath_part_weights *l = &parts->layers[il];
    int64_t n = parts->n_each, n_all = n * m->n_layers;
    float *gate = p->scratch + p->rows * n_all, *part = gate + p->rows * n;
    ath_block_product(p, &l->gate, x, gate);
    ath_op_copy(p->dev, part, n, p->scratch + il * n, n_all, n, p->rows);
    ath_op_gate(p->dev, m->act, gate, part, p->rows * n);
    ath_block_product(p, &l->proj, gate, p->proj);
    ath_block_norm(m, p, p->proj, &l->post_norm, p->proj, p->rows);
}
