/* From token ids to logits: what every decoder does around its layers, and the activations of a pass. */
#include <math.h>
#include <stdlib.h>

#include "models/model.h"

void ath_model_kv_layers(const ath_model *m, ath_kv_layer *layers) {
    for (int il = 0; il < m->n_layers; il++) {
        const ath_layer *l = &m->layers[il];
        layers[il] = (ath_kv_layer){.n_kv_heads = l->n_kv_heads,
                                    .head_dim_k = l->head_dim_k,
                                    .head_dim_v = l->head_dim_v,
                                    .window = l->window,
                                    .store = l->n_state          ? ATH_KV_RECURRENT
                                             : l->kv_layer == il ? ATH_KV_OWN
                                                                 : ATH_KV_SHARED,
                                    .source = l->kv_layer,
                                    .n_state = l->n_state};
    }
}

typedef struct widths { /* float32 values per row of each buffer */
    int64_t q, k, v, att, ff, expert_out, router, expert, pos_id;
} widths;

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static widths pass_widths(const ath_model *m) {
    widths w = {0};
    for (int il = 0; il < m->n_layers; il++) {
        const ath_layer *l = &m->layers[il];
        w.q = max64(w.q, (int64_t)l->n_heads * l->head_dim_k);
        w.k = max64(w.k, (int64_t)l->n_kv_heads * l->head_dim_k);
        w.v = max64(w.v, (int64_t)l->n_kv_heads * l->head_dim_v);
        w.att = max64(w.att, (int64_t)l->n_heads * l->head_dim_v);
    }
    int used = m->router.n_used;
    w.ff = max64(max64(m->n_ff, m->n_ff_expert * used), m->n_ff_shared);
    w.expert_out = m->n_embd * used;
    w.router = m->router.n_experts;
    w.expert = used;
    w.pos_id = m->pos_embd.data != NULL;
    return w;
}

/* Buffers start on cache lines; the table is walked twice: to size the memory and to place the pointers. */
static size_t place(ath_pass *p, const ath_model *m, int64_t rows, char *memory) {
    widths w = pass_widths(m);
    struct {
        void **pointer;
        int64_t width, item;
    } buffers[] = {
        {(void **)&p->pos, 1, sizeof(int64_t)},
        {(void **)&p->x, m->n_embd, sizeof(float)},
        {(void **)&p->h, m->n_embd, sizeof(float)},
        {(void **)&p->q, w.q, sizeof(float)},
        {(void **)&p->k, w.k, sizeof(float)},
        {(void **)&p->v, w.v, sizeof(float)},
        {(void **)&p->att, w.att, sizeof(float)},
        {(void **)&p->proj, m->n_embd, sizeof(float)},
        {(void **)&p->gate, w.ff, sizeof(float)},
        {(void **)&p->up, w.ff, sizeof(float)},
        {(void **)&p->expert_out, w.expert_out, sizeof(float)},
        {(void **)&p->router, w.router, sizeof(float)},
        {(void **)&p->expert, w.expert, sizeof(int32_t)},
        {(void **)&p->expert_weight, w.expert, sizeof(float)},
        {(void **)&p->pos_id, w.pos_id, sizeof(int32_t)},
        {(void **)&p->row_scale, 1, sizeof(float)},
        {(void **)&p->scratch, m->n_scratch, sizeof(float)},
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        if (memory) *buffers[i].pointer = memory + at;
        at += ((size_t)(rows * buffers[i].width * buffers[i].item) + 63) / 64 * 64;
    }
    return at;
}

size_t ath_pass_bytes(const ath_model *model, int64_t max_rows) {
    ath_pass unused;
    return place(&unused, model, max_rows, NULL);
}

ath_status ath_pass_create(ath_pass **out, const ath_model *model, ath_kv *kv, int64_t n_ctx, int64_t max_rows,
                           ath_error *err) {
    *out = NULL;
    ath_pass *p = calloc(1, sizeof *p);
    size_t bytes = ath_pass_bytes(model, max_rows);
    void *memory = aligned_alloc(64, bytes);
    if (!p || !memory) {
        free(p);
        free(memory);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the activations of %lld rows (%zu MiB)", (long long)max_rows,
                        bytes >> 20);
    }
    place(p, model, max_rows, memory);
    p->memory = memory;
    p->dev = model->dev;
    p->kv = kv;
    p->max_rows = max_rows;
    p->long_context = model->rope[ATH_ROPE_LONG].n_rot > 0 && n_ctx > model->rope_long_above;
    *out = p;
    return ATH_OK;
}

void ath_pass_free(ath_pass *pass) {
    if (!pass) return;
    free(pass->memory);
    free(pass);
}

/* What adapters add to the embeddings of tokens: b times the token's row of a. */
static void adapt_embeddings(const ath_model *m, ath_pass *p, const int32_t *tokens) {
    for (const ath_adapter *a = m->embd.adapters; a; a = a->next) {
        const ath_weight *b = &a->b;
        ath_op_embed(p->dev, &a->a, tokens, m->embd_scale * a->scale, p->h, p->rows);
        ath_op_matmul(p->dev, &b, &p->proj, 1, p->h, p->rows);
        ath_op_add(p->dev, p->x, p->proj, p->rows * m->n_embd);
    }
}

bool ath_model_forward(const ath_model *m, ath_pass *p, const int32_t *tokens) {
    p->tokens = tokens;
    ath_op_embed(p->dev, &m->embd, tokens, m->embd_scale, p->x, p->rows);
    adapt_embeddings(m, p, tokens);
    if (m->pos_embd.data) {
        for (int64_t row = 0; row < p->rows; row++) p->pos_id[row] = (int32_t)p->pos[row];
        ath_op_embed(p->dev, &m->pos_embd, p->pos_id, 1, p->h, p->rows);
        ath_op_add(p->dev, p->x, p->h, p->rows * m->n_embd);
    }
    for (int il = 0; il < m->n_layers; il++) {
        if (p->cancelled && p->cancelled(p->cancel_user)) return false;
        m->arch->layer(m, p, il);
    }
    return true;
}

void ath_model_logits(const ath_model *m, ath_pass *p, int64_t row0, int64_t n, float *logits) {
    float *x = p->x + row0 * m->n_embd;
    ath_block_norm(m, p, x, &m->output_norm, x, n);
    const ath_weight *w[] = {&m->output};
    ath_op_matmul(p->dev, w, &logits, 1, x, n);
    if (m->logit_scale != 1) ath_op_scale(p->dev, logits, m->logit_scale, n * m->n_vocab);
    float cap = m->final_softcap;
    if (cap > 0)
        for (int64_t i = 0; i < n * m->n_vocab; i++) logits[i] = cap * tanhf(logits[i] / cap);
}
