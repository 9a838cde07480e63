/* Attention for a sequence that brings several rows: a task is one kv head, up to 16 of its query heads, and
 * rows of one page, so that all its rows read every page in the same form. Each page becomes an f32 tile once
 * for all of them. Encoded pages that all rows see to their end are multiplied by matrix instructions where there are any:
 * by the same for every row, whatever comes with it. */
#include <math.h>
#include <string.h>

#include "device/cpu/attend.h"

typedef struct prefill_run {
    ath_device *dev;
    const ath_attn_args *args;
    const ath_attn_seq *seq;
    int group, blocks; /* query heads per kv head; tasks that they are cut into */
    int chunk_rows;    /* rows of a task at most: a power of two, so that chunks don't cross pages */
    int64_t chunk0, n_chunks;
} prefill_run;

typedef struct prefill_task {
    const prefill_run *run;
    ath_attn_worker *s;
    int kv_head, head0, n_heads;
    int64_t pos, n_rows; /* first position and rows of the chunk */
    int n;               /* vectors: row r, head h at r * n_heads + h */
    const ath_attn_matrix *matrix; /* for pages before the rows' own, or NULL */
    ath_attn_range range;
    ath_attn_state totals[ATH_ATTN_VECTORS], states[ATH_ATTN_VECTORS];
} prefill_task;

static float *output_of(const prefill_task *t, int vector) {
    const ath_attn_args *args = t->run->args;
    int64_t row = t->run->seq->row0 + (t->pos - t->run->seq->pos0) + vector / t->n_heads;
    return args->out + (row * args->n_heads + t->head0 + vector % t->n_heads) * args->v.layout.head_dim;
}

/* Raw types are left to the kernels of decode, with their bits. */
static const ath_attn_matrix *matrix_of(const prefill_run *run) {
    const ath_kv_layout *k = &run->args->k.layout, *v = &run->args->v.layout;
    if (ath_kv_type_is_raw(k->type) && ath_kv_type_is_raw(v->type)) return NULL;
    return k->head_dim % ATH_MATRIX_LANES || v->head_dim % ATH_MATRIX_LANES ? NULL : run->dev->attn.matrix;
}

/* Which chunk, heads and rows; the last chunks, which have the most to read, come first. */
static void task_init(prefill_task *t, const prefill_run *run, int64_t index, int thread) {
    int64_t per_chunk = (int64_t)run->args->n_kv_heads * run->blocks;
    int64_t chunk = run->chunk0 + run->n_chunks - 1 - index / per_chunk;
    int block = (int)(index % run->blocks);
    t->run = run;
    t->s = &run->dev->attn_scratch->workers[thread];
    t->kv_head = (int)(index % per_chunk / run->blocks);
    t->head0 = t->kv_head * run->group + block * ATH_ATTN_HEADS;
    t->n_heads = run->group - block * ATH_ATTN_HEADS;
    if (t->n_heads > ATH_ATTN_HEADS) t->n_heads = ATH_ATTN_HEADS;
    int64_t end = (chunk + 1) * run->chunk_rows, seq_end = run->seq->pos0 + run->seq->n_rows;
    t->pos = chunk * run->chunk_rows;
    if (t->pos < run->seq->pos0) t->pos = run->seq->pos0;
    t->n_rows = (end < seq_end ? end : seq_end) - t->pos;
    t->n = (int)t->n_rows * t->n_heads;
    t->range = ath_attn_range_of(t->pos / ATH_PAGE_TOKENS, run->args->window);
    t->matrix = matrix_of(run);
}

static void load_queries(prefill_task *t) {
    const ath_attn_args *args = t->run->args;
    int64_t head_dim = args->k.layout.head_dim, width = t->n_heads * head_dim;
    const float *q = args->q + (t->run->seq->row0 + t->pos - t->run->seq->pos0) * args->n_heads * head_dim;
    q += t->head0 * head_dim;
    for (int64_t r = 0; r < t->n_rows; r++, q += args->n_heads * head_dim)
        for (int64_t i = 0; i < width; i++) t->s->q[r * width + i] = q[i] * args->scale;
    if (t->matrix) t->matrix->pack_rows(t->s->q, t->n, (int)head_dim, ATH_SCORE_PARTS, t->s->packed.q);
}

/* Tokens [lo, hi) of the page that a vector sees; none if hi <= lo. */
static void visible_of(const prefill_task *t, int vector, int64_t page, int *lo, int *hi) {
    int64_t pos = t->pos + vector / t->n_heads, begin = page * ATH_PAGE_TOKENS;
    int64_t first = ath_attn_first_visible(pos, t->run->args->window) - begin, end = pos + 1 - begin;
    *lo = first < 0 ? 0 : first > ATH_PAGE_TOKENS ? ATH_PAGE_TOKENS : (int)first;
    *hi = end > ATH_PAGE_TOKENS ? ATH_PAGE_TOKENS : (int)end;
}

/* Scores of vectors [i0, i0 + n) become weights; those of groups [group0, group1) are there. */
static void weigh(prefill_task *t, int i0, int n, int64_t page, int group0, int group1) {
    const ath_attn_args *args = t->run->args;
    const ath_attn_kernels *k = &t->run->dev->attn;
    int v_dim = args->v.layout.head_dim;
    for (int i = 0; i < n; i++) {
        float *scores = t->s->scores + i * ATH_PAGE_TOKENS;
        int from, to;
        visible_of(t, i0 + i, page, &from, &to);
        if (args->softcap > 0.0f) k->softcap(scores + 16 * group0, 16 * (group1 - group0), args->softcap);
        float factor = k->softmax(scores, from, to, &t->states[i0 + i].max, &t->states[i0 + i].sum);
        if (factor != 1.0f) ath_attn_scale(t->s->acc + (int64_t)(i0 + i) * v_dim, factor, v_dim);
    }
}

/* Vectors [i0, i0 + n) against one page. Tokens that only some of them see have weight 0 for the others. */
static void block_step(prefill_task *t, int i0, int n, int64_t page, const float *k_tile,
                       const float *v_tile) {
    const ath_attn_args *args = t->run->args;
    const ath_attn_kernels *k = &t->run->dev->attn;
    int k_dim = args->k.layout.head_dim, v_dim = args->v.layout.head_dim, lo, hi, last;
    visible_of(t, i0, page, &lo, &last);
    visible_of(t, i0 + n - 1, page, &last, &hi);
    if (lo >= hi) return;
    int group0 = lo / 16, group1 = (hi + 15) / 16;
    k->scores[ATH_KV_F32](k_tile, k_dim, group0, group1, t->s->q + (int64_t)i0 * k_dim, n, t->s->scores);
    weigh(t, i0, n, page, group0, group1);
    ath_attn_accumulate(k, ATH_KV_F32, v_tile, v_dim, lo, hi, t->s->scores, n, t->s->acc + (int64_t)i0 * v_dim);
}

/* All vectors against one page by matrix products. Scores keep all bits, since exp makes their absolute errors relative
 * ones; errors of weights and values stay as they are. */
static void matrix_step(prefill_task *t, int64_t page, const float *k_tile, const float *v_tile) {
    int k_dim = t->run->args->k.layout.head_dim, v_dim = t->run->args->v.layout.head_dim;
    ath_attn_worker *s = t->s;
    t->matrix->pack_steps(k_tile, k_dim, ATH_PAGE_TOKENS, ATH_SCORE_PARTS, s->packed.k);
    t->matrix->pack_steps(v_tile, ATH_PAGE_TOKENS, v_dim, ATH_VALUE_PARTS, s->packed.v);
    for (int i = 0; i < t->n; i += ATH_MATRIX_ROWS) {
        int n = t->n - i < ATH_MATRIX_ROWS ? t->n - i : ATH_MATRIX_ROWS;
        const uint32_t *q = s->packed.q + (int64_t)i * k_dim * ATH_SCORE_PARTS / 2;
        t->matrix->product(q, s->packed.k, n, k_dim, ATH_PAGE_TOKENS, ATH_SCORE_PARTS, s->scores, false);
        weigh(t, i, n, page, 0, ATH_PAGE_TOKENS / 16);
        t->matrix->pack_rows(s->scores, n, ATH_PAGE_TOKENS, ATH_VALUE_PARTS, s->packed.weights);
        float *acc = s->acc + (int64_t)i * v_dim;
        t->matrix->product(s->packed.weights, s->packed.v, n, ATH_PAGE_TOKENS, v_dim, ATH_VALUE_PARTS, acc, true);
    }
}

/* The page as f32 tiles. */
static void make_tiles(prefill_task *t, int64_t page, const float **k_tile, const float **v_tile) {
    const prefill_run *run = t->run;
    const ath_attn_kernels *k = &run->dev->attn;
    ath_attn_view view = ath_attn_view_of(run->args, run->seq, true, t->kv_head, page, t->range.own);
    *k_tile = ath_attn_tile(k, &view, t->s->k_tile);
    if (run->args->v_in_k) {
        ath_attn_transpose(*k_tile, run->args->v.layout.head_dim, t->s->v_tile);
        *v_tile = t->s->v_tile;
        return;
    }
    view = ath_attn_view_of(run->args, run->seq, false, t->kv_head, page, t->range.own);
    *v_tile = ath_attn_tile(k, &view, t->s->v_tile);
}

static void run_split(prefill_task *t, int64_t page, int64_t end) {
    int v_dim = t->run->args->v.layout.head_dim;
    for (int i = 0; i < t->n; i++) t->states[i] = (ath_attn_state){.max = -INFINITY};
    int n = (t->n + ATH_MATRIX_ROWS - 1) / ATH_MATRIX_ROWS * ATH_MATRIX_ROWS;
    memset(t->s->acc, 0, (size_t)n * (size_t)v_dim * sizeof *t->s->acc);
    for (; page < end; page++) {
        const float *k_tile, *v_tile;
        make_tiles(t, page, &k_tile, &v_tile);
        if (t->matrix && page < t->range.own) {
            matrix_step(t, page, k_tile, v_tile);
            continue;
        }
        for (int i = 0; i < t->n; i += ATH_ATTN_BLOCK)
            block_step(t, i, t->n - i < ATH_ATTN_BLOCK ? t->n - i : ATH_ATTN_BLOCK, page, k_tile, v_tile);
    }
    for (int i = 0; i < t->n; i++)
        ath_attn_merge(&t->totals[i], output_of(t, i), t->states[i], t->s->acc + (int64_t)i * v_dim, v_dim);
}

static void prefill_chunk(void *arg, int64_t index, int thread) {
    const prefill_run *run = arg;
    prefill_task t;
    task_init(&t, run, index, thread);
    if (t.matrix) t.matrix->begin();
    load_queries(&t);
    for (int i = 0; i < t.n; i++) {
        t.totals[i] = (ath_attn_state){.max = -INFINITY};
        memset(output_of(&t, i), 0, (size_t)run->args->v.layout.head_dim * sizeof(float));
    }
    int64_t first = ath_attn_first_visible(t.pos, run->args->window) / ATH_PAGE_TOKENS;
    for (int64_t page = t.range.first; page <= t.range.own; page += t.range.per_split) {
        int64_t end = page + t.range.per_split, begin = page > first ? page : first;
        if (end > t.range.own + 1) end = t.range.own + 1;
        if (begin < end) run_split(&t, begin, end);
    }
    for (int i = 0; i < t.n; i++)
        ath_attn_finish(run->args, t.head0 + i % t.n_heads, t.totals[i], output_of(&t, i));
    if (t.matrix) t.matrix->end();
}

void ath_attn_prefill(ath_device *dev, const ath_attn_args *args, const ath_attn_seq *seq) {
    prefill_run run = {.dev = dev, .args = args, .seq = seq, .group = args->n_heads / args->n_kv_heads};
    run.blocks = (run.group + ATH_ATTN_HEADS - 1) / ATH_ATTN_HEADS;
    int heads = run.group < ATH_ATTN_HEADS ? run.group : ATH_ATTN_HEADS;
    run.chunk_rows = ATH_PAGE_TOKENS;
    while (run.chunk_rows * heads > ATH_ATTN_VECTORS) run.chunk_rows /= 2;
    run.chunk0 = seq->pos0 / run.chunk_rows;
    run.n_chunks = (seq->pos0 + seq->n_rows - 1) / run.chunk_rows - run.chunk0 + 1;
    ath_threads_run(dev->pool, prefill_chunk, &run, run.n_chunks * args->n_kv_heads * run.blocks);
}
