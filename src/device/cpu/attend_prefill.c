/* Attention for a sequence that brings several rows: a task is one kv head, up to 16 of its query heads, and
 * rows of one page, so that all its rows read every page in the same form. Each page becomes an f32 tile once
 * for all of them. */
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
    ath_attn_range range;
    ath_attn_state totals[ATH_ATTN_VECTORS], states[ATH_ATTN_VECTORS];
} prefill_task;

static float *output_of(const prefill_task *t, int vector) {
    const ath_attn_args *args = t->run->args;
    int64_t row = t->run->seq->row0 + (t->pos - t->run->seq->pos0) + vector / t->n_heads;
    return args->out + (row * args->n_heads + t->head0 + vector % t->n_heads) * args->v.layout.head_dim;
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
}

static void load_queries(prefill_task *t) {
    const ath_attn_args *args = t->run->args;
    int64_t head_dim = args->k.layout.head_dim, width = t->n_heads * head_dim;
    const float *q = args->q + (t->run->seq->row0 + t->pos - t->run->seq->pos0) * args->n_heads * head_dim;
    q += t->head0 * head_dim;
    for (int64_t r = 0; r < t->n_rows; r++, q += args->n_heads * head_dim)
        for (int64_t i = 0; i < width; i++) t->s->q[r * width + i] = q[i] * args->scale;
}

/* Tokens [lo, hi) of the page that a vector sees; none if hi <= lo. */
static void visible_of(const prefill_task *t, int vector, int64_t page, int *lo, int *hi) {
    int64_t pos = t->pos + vector / t->n_heads, begin = page * ATH_PAGE_TOKENS;
    int64_t first = ath_attn_first_visible(pos, t->run->args->window) - begin, end = pos + 1 - begin;
    *lo = first < 0 ? 0 : first > ATH_PAGE_TOKENS ? ATH_PAGE_TOKENS : (int)first;
    *hi = end > ATH_PAGE_TOKENS ? ATH_PAGE_TOKENS : (int)end;
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
    float *acc = t->s->acc + (int64_t)i0 * v_dim;
    k->scores[ATH_KV_F32](k_tile, k_dim, group0, group1, t->s->q + (int64_t)i0 * k_dim, n, t->s->scores);
    for (int i = 0; i < n; i++) {
        float *scores = t->s->scores + i * ATH_PAGE_TOKENS;
        int from, to;
        visible_of(t, i0 + i, page, &from, &to);
        if (args->softcap > 0.0f) k->softcap(scores + 16 * group0, 16 * (group1 - group0), args->softcap);
        float factor = k->softmax(scores, from, to, &t->states[i0 + i].max, &t->states[i0 + i].sum);
        if (factor != 1.0f) ath_attn_scale(acc + i * v_dim, factor, v_dim);
    }
    ath_attn_accumulate(k, ATH_KV_F32, v_tile, v_dim, lo, hi, t->s->scores, n, acc);
}

static void run_split(prefill_task *t, int64_t page, int64_t end) {
    const prefill_run *run = t->run;
    const ath_attn_kernels *k = &run->dev->attn;
    int v_dim = run->args->v.layout.head_dim;
    for (int i = 0; i < t->n; i++) t->states[i] = (ath_attn_state){.max = -INFINITY};
    memset(t->s->acc, 0, (size_t)t->n * (size_t)v_dim * sizeof *t->s->acc);
    for (; page < end; page++) {
        ath_attn_view view = ath_attn_view_of(run->args, run->seq, true, t->kv_head, page, t->range.own);
        const float *k_tile = ath_attn_tile(k, &view, t->s->k_tile);
        const float *v_tile = t->s->v_tile;
        if (run->args->v_in_k) {
            ath_attn_transpose(k_tile, v_dim, t->s->v_tile);
        } else {
            view = ath_attn_view_of(run->args, run->seq, false, t->kv_head, page, t->range.own);
            v_tile = ath_attn_tile(k, &view, t->s->v_tile);
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
