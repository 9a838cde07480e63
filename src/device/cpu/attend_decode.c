/* Attention for sequences that bring one row: a task is one kv head, up to 16 of its query heads, one split
 * of the pages. Encoded pages are read as they are, in integers; those of ":plain" types are expanded. */
#include <math.h>
#include <string.h>

#include "device/cpu/attend.h"

typedef struct decode_run {
    ath_device *dev;
    const ath_attn_args *args;
    int group, blocks;    /* query heads per kv head; tasks that they are cut into */
    int64_t unit0;        /* of this round; a unit is (sequence, kv head, block) */
    int64_t n_acc;        /* accumulators of a head: plain ones, then rotated ones for an encoded V */
    int64_t partial_size; /* floats of one head's partial: state, accumulators */
    int64_t unit_size;    /* floats of all partials of a unit */
} decode_run;

typedef struct decode_unit {
    const ath_attn_seq *seq;
    int kv_head, head0, n_heads;
    ath_attn_range range;
    int64_t first_visible;
    float *partials; /* [split][n_heads][partial_size] */
} decode_unit;

/* Floats at the head of a partial, before the accumulators: the state, padded to keep them aligned. */
enum { STATE_FLOATS = 16 };

static bool find_unit(const decode_run *run, int64_t index, decode_unit *unit) {
    const ath_attn_args *args = run->args;
    int64_t per_seq = (int64_t)args->n_kv_heads * run->blocks, i = (run->unit0 + index) % per_seq;
    int block = (int)(i % run->blocks);
    unit->seq = &args->seqs[(run->unit0 + index) / per_seq];
    if (unit->seq->n_rows != 1) return false;
    unit->kv_head = (int)(i / run->blocks);
    unit->head0 = unit->kv_head * run->group + block * ATH_ATTN_HEADS;
    unit->n_heads = run->group - block * ATH_ATTN_HEADS;
    if (unit->n_heads > ATH_ATTN_HEADS) unit->n_heads = ATH_ATTN_HEADS;
    unit->range = ath_attn_range_of(unit->seq->pos0 / ATH_PAGE_TOKENS, args->window);
    unit->first_visible = ath_attn_first_visible(unit->seq->pos0, args->window);
    unit->partials = run->dev->attn_scratch->partials + index * run->unit_size;
    return true;
}

static float *partial_of(const decode_run *run, const decode_unit *unit, int split, int head) {
    return unit->partials + ((int64_t)split * unit->n_heads + head) * run->partial_size;
}

/* next: what will be read of the page after this one, or NULL. */
static void page_scores(const ath_attn_kernels *k, const ath_attn_view *view, const uint8_t *next, int n,
                        int lo, int hi, ath_attn_worker *s) {
    int head_dim = view->layout->head_dim, group0 = lo / 16, group1 = (hi + 15) / 16;
    if (ath_kv_type_is_raw(view->type)) {
        k->scores[view->type](view->data, head_dim, group0, group1, s->q, n, s->scores);
        return;
    }
    if (ath_kv_type_is_plain(view->type)) {
        const float *tile = ath_attn_tile(k, view, s->k_tile);
        k->scores[ATH_KV_F32](tile, head_dim, group0, group1, s->q, n, s->scores);
        return;
    }
    k->turbo_query(view->layout, view->data, s->q, n, s->turbo);
    (ath_kv_type_is_turbo(view->type) ? k->turbo_scores : k->block_scores)(
        view->layout, view->data, s->turbo, n, group0, group1, s->scores, next);
    if (!view->sinks || lo >= ATH_SINK_TOKENS) return;
    ath_attn_sinks_to_tile(view->sinks, head_dim, s->k_tile); /* the group's other lanes are not used */
    k->scores[ATH_KV_F32](s->k_tile, head_dim, 0, 1, s->q, n, s->sink_scores);
    for (int i = 0; i < n; i++)
        memcpy(s->scores + i * ATH_PAGE_TOKENS, s->sink_scores + i * ATH_PAGE_TOKENS,
               ATH_SINK_TOKENS * sizeof(float));
}

/* Fetches piece `index` of the 8 of a page into the second-level cache. */
static void fetch_piece(const ath_kv_layout *layout, const uint8_t *page, int index) {
    if (!page) return;
    size_t begin = layout->bytes / 8 * (size_t)index;
    for (size_t i = 0; i < layout->bytes / 8; i += 64) __builtin_prefetch(page + begin + i, 0, 2);
}

/* 16 tokens at a time, the next page's K and V being fetched between them. */
static void raw_values(const ath_attn_kernels *k, const ath_attn_view *view, const ath_kv_layout *key,
                       const uint8_t *next_key, const uint8_t *next, int n, int lo, int hi, float *acc,
                       const ath_attn_worker *s) {
    for (int g = 0; g < 8; g++) {
        int from = lo > 16 * g ? lo : 16 * g, to = hi < 16 * g + 16 ? hi : 16 * g + 16;
        fetch_piece(key, next_key, g);
        fetch_piece(view->layout, next, g);
        if (from < to)
            ath_attn_accumulate(k, view->type, view->data, view->layout->head_dim, from, to, s->scores, n, acc);
    }
}

/* acc is [n][head_dim], plain or (rotated) for encoded pages. */
static void page_values(const ath_attn_kernels *k, const ath_attn_view *view, const uint8_t *next, int n,
                        int lo, int hi, float *acc, float *rotated, ath_attn_worker *s) {
    int head_dim = view->layout->head_dim;
    if (ath_kv_type_is_plain(view->type)) {
        const float *tile = ath_attn_tile(k, view, s->v_tile);
        ath_attn_accumulate(k, ATH_KV_F32, tile, head_dim, lo, hi, s->scores, n, acc);
        return;
    }
    if (view->sinks && lo < ATH_SINK_TOKENS) {
        ath_attn_accumulate(k, ATH_KV_F16, view->sinks, head_dim, lo, ATH_SINK_TOKENS, s->scores, n, acc);
        lo = ATH_SINK_TOKENS;
    }
    (ath_kv_type_is_turbo(view->type) ? k->turbo_accumulate : k->block_accumulate)(
        view->layout, view->data, lo, hi, s->scores, n, rotated, next);
}

/* The page after this one, if it is read as it is stored: pages lie far apart, so that nothing but a hint
 * brings them near in time. */
static const uint8_t *page_after(const decode_run *run, const decode_unit *unit, bool key, int64_t page) {
    if (page + 1 >= unit->range.own - 1) return NULL;
    return ath_attn_view_of(run->args, unit->seq, key, unit->kv_head, page + 1, unit->range.own).data;
}

/* The same where V is a part of K: from K's view. */
static void page_values_of_keys(const ath_attn_kernels *k, const ath_attn_view *view, int head_dim, int n,
                                int lo, int hi, float *acc, ath_attn_worker *s) {
    ath_attn_transpose(ath_attn_tile(k, view, s->k_tile), head_dim, s->v_tile);
    ath_attn_accumulate(k, ATH_KV_F32, s->v_tile, head_dim, lo, hi, s->scores, n, acc);
}

/* One page into the states and accumulators (plain, then rotated) of the unit's heads. */
static void decode_page(const decode_run *run, const decode_unit *unit, int64_t page, ath_attn_state *states,
                        float *acc, ath_attn_worker *s) {
    const ath_attn_args *args = run->args;
    const ath_attn_kernels *k = &run->dev->attn;
    int64_t begin = page * ATH_PAGE_TOKENS, end = unit->seq->pos0 + 1 - begin;
    int lo = unit->first_visible > begin ? (int)(unit->first_visible - begin) : 0;
    int hi = end < ATH_PAGE_TOKENS ? (int)end : ATH_PAGE_TOKENS;
    int n = unit->n_heads, head_dim = args->v.layout.head_dim;
    float *rotated = acc + n * head_dim;

    ath_attn_view view = ath_attn_view_of(args, unit->seq, true, unit->kv_head, page, unit->range.own);
    page_scores(k, &view, page_after(run, unit, true, page), n, lo, hi, s);
    for (int i = 0; i < n; i++) {
        float *scores = s->scores + i * ATH_PAGE_TOKENS;
        if (args->softcap > 0.0f) k->softcap(scores, ATH_PAGE_TOKENS, args->softcap);
        float factor = k->softmax(scores, lo, hi, &states[i].max, &states[i].sum);
        if (factor == 1.0f) continue;
        ath_attn_scale(acc + i * head_dim, factor, head_dim);
        if (run->n_acc > head_dim) ath_attn_scale(rotated + i * head_dim, factor, head_dim);
    }
    if (args->v_in_k) {
        page_values_of_keys(k, &view, head_dim, n, lo, hi, acc, s);
        return;
    }
    view = ath_attn_view_of(args, unit->seq, false, unit->kv_head, page, unit->range.own);
    const uint8_t *next = page_after(run, unit, false, page), *next_key = NULL;
    if (!ath_kv_type_is_raw(view.type)) {
        page_values(k, &view, next, n, lo, hi, acc, rotated, s);
        return;
    }
    if (ath_kv_type_is_raw(args->k.layout.type)) next_key = page_after(run, unit, true, page);
    raw_values(k, &view, &args->k.layout, next_key, next, n, lo, hi, acc, s);
}

static void decode_split(void *arg, int64_t task, int thread) {
    const decode_run *run = arg;
    const ath_attn_args *args = run->args;
    int split = (int)(task % ATH_ATTN_SPLITS);
    decode_unit unit;
    if (!find_unit(run, task / ATH_ATTN_SPLITS, &unit)) return;
    int64_t page = unit.range.first + split * unit.range.per_split, end = page + unit.range.per_split;
    if (page > unit.range.own) return;
    if (end > unit.range.own + 1) end = unit.range.own + 1;
    if (page < unit.first_visible / ATH_PAGE_TOKENS) page = unit.first_visible / ATH_PAGE_TOKENS;

    ath_attn_worker *s = &run->dev->attn_scratch->workers[thread];
    int n = unit.n_heads, k_dim = args->k.layout.head_dim, v_dim = args->v.layout.head_dim;
    const float *q = args->q + (unit.seq->row0 * args->n_heads + unit.head0) * k_dim;
    for (int i = 0; i < n * k_dim; i++) s->q[i] = q[i] * args->scale;
    ath_attn_state states[ATH_ATTN_HEADS];
    for (int i = 0; i < n; i++) states[i] = (ath_attn_state){.max = -INFINITY};
    memset(s->acc, 0, (size_t)(n * run->n_acc) * sizeof *s->acc);
    for (; page < end; page++) decode_page(run, &unit, page, states, s->acc, s);

    for (int i = 0; i < n; i++) {
        float *partial = partial_of(run, &unit, split, i), *acc = partial + STATE_FLOATS;
        memcpy(partial, &states[i], sizeof states[i]);
        memcpy(acc, s->acc + i * v_dim, (size_t)v_dim * sizeof *acc);
        if (run->n_acc > v_dim) memcpy(acc + v_dim, s->acc + (n + i) * v_dim, (size_t)v_dim * sizeof *acc);
    }
}

/* Merges the splits of all heads of a unit into the output. */
static void merge_unit(void *arg, int64_t index, int thread) {
    const decode_run *run = arg;
    const ath_attn_args *args = run->args;
    decode_unit unit;
    if (!find_unit(run, index, &unit)) return;
    int v_dim = args->v.layout.head_dim;
    float *acc = run->dev->attn_scratch->workers[thread].acc;
    int64_t n_splits = (unit.range.own - unit.range.first) / unit.range.per_split + 1;
    for (int i = 0; i < unit.n_heads; i++) {
        ath_attn_state total = {.max = -INFINITY};
        memset(acc, 0, (size_t)run->n_acc * sizeof *acc);
        for (int split = 0; split < n_splits; split++) {
            const float *partial = partial_of(run, &unit, split, i);
            ath_attn_state state;
            memcpy(&state, partial, sizeof state);
            ath_attn_merge(&total, acc, state, partial + STATE_FLOATS, run->n_acc);
        }
        if (run->n_acc > v_dim) {
            run->dev->attn.unrotate(&args->v.layout, acc + v_dim);
            for (int c = 0; c < v_dim; c++) acc[c] += acc[v_dim + c];
        }
        ath_attn_finish(args, unit.head0 + i, total, acc);
        float *out = args->out + (unit.seq->row0 * args->n_heads + unit.head0 + i) * v_dim;
        memcpy(out, acc, (size_t)v_dim * sizeof *out);
    }
}

void ath_attn_decode(ath_device *dev, const ath_attn_args *args) {
    decode_run run = {.dev = dev, .args = args, .group = args->n_heads / args->n_kv_heads};
    run.blocks = (run.group + ATH_ATTN_HEADS - 1) / ATH_ATTN_HEADS;
    int64_t v_dim = args->v.layout.head_dim;
    run.n_acc = ath_attn_rotates_v(args) ? 2 * v_dim : v_dim;
    run.partial_size = STATE_FLOATS + run.n_acc;
    int heads = run.group < ATH_ATTN_HEADS ? run.group : ATH_ATTN_HEADS;
    int64_t n_units = (int64_t)args->n_seqs * args->n_kv_heads * run.blocks;
    run.unit_size = ATH_ATTN_SPLITS * heads * run.partial_size;
    int64_t per_round = ATH_ATTN_PARTIAL_FLOATS / run.unit_size;
    for (; run.unit0 < n_units; run.unit0 += per_round) {
        int64_t n = n_units - run.unit0 < per_round ? n_units - run.unit0 : per_round;
        ath_threads_run(dev->pool, decode_split, &run, n * ATH_ATTN_SPLITS);
        ath_threads_run(dev->pool, merge_unit, &run, n);
    }
}
