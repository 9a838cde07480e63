/* The cache with a device that computes nothing: its attention compares, bit for bit, every row and page that a
 * query may read with what the sequence's tokens say must be there, and so do recurrent layers with states. */
#ifndef TEST_KV_WORLD_H
#define TEST_KV_WORLD_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/half.h"
#include "kv/kv_private.h"
#include "kv/kv_values.h"

enum { MAX_SEQS = 4, MAX_TOKENS = 4096, MAX_DIM = 64 };

/* ---- the model: which tokens are in which sequence */
typedef struct world {
    ath_kv *kv;
    ath_kv_params params;
    const ath_kv_layer *layers;
    uint32_t tokens[MAX_SEQS][MAX_TOKENS]; /* present ones and, during a batch, the new ones */
    uint32_t next_token;
    rng random;
    bool check_all_pages; /* else the last two and one of the others, chosen at random */
    /* the batch */
    const ath_kv_rows *rows;
    int n_rows_seqs;
    int layer;
    uint64_t compared; /* rows and pages */
} world;

static world *the_world; /* for the device */

static inline uint16_t f16_of(world *w, int layer, int is_value, int head, int channel, int seq, int64_t pos) {
    return ath_f32_to_f16(kv_value(layer, is_value, head, channel, pos, w->tokens[seq][pos]));
}

/* ---- the device */
void ath_device_parallel(ath_device *dev, ath_task_fn fn, void *arg, int64_t n_tasks) {
    (void)dev;
    for (int64_t i = n_tasks - 1; i >= 0; i--) fn(arg, i, 0);
}

void ath_op_encode_pages(ath_device *dev, const ath_encode_job *jobs, int64_t n_jobs) {
    (void)dev;
    static float scratch[MAX_DIM * ATH_PAGE_TOKENS];
    for (int64_t i = 0; i < n_jobs; i++)
        ath_kv_encode_page(jobs[i].layout, jobs[i].tile, jobs[i].out, scratch);
}

typedef struct view { /* one side of one head, for one sequence of the batch */
    const ath_attn_seq *attn;
    const ath_attn_side *side;
    const uint16_t *const *recent;
    const uint16_t *sinks;
    int seq, is_value, head;
} view;

static inline size_t at_token(const ath_kv_layout *layout, int channel, int token) {
    return layout->is_key ? (size_t)channel * ATH_PAGE_TOKENS + (size_t)token
                          : (size_t)token * (size_t)layout->head_dim + (size_t)channel;
}

/* Tokens [from, to) of a page in a plain form. */
static inline void check_plain(world *w, const view *v, int64_t page, int from, int to) {
    const ath_kv_layout *layout = &v->side->layout;
    bool raw = ath_kv_type_is_raw(layout->type);
    size_t tile = (size_t)layout->head_dim * ATH_PAGE_TOKENS;
    const void *mem = raw ? (const void *)(v->attn->pages[page - v->attn->first_page] + v->side->offset +
                                           (size_t)v->head * layout->bytes)
                          : (const void *)(v->recent[page - v->attn->first_recent] + (size_t)v->head * tile);
    for (int t = from; t < to; t++) {
        int64_t pos = page * ATH_PAGE_TOKENS + t;
        w->compared++;
        for (int c = 0; c < layout->head_dim; c++) {
            float x = kv_value(w->layer, v->is_value, v->head, c, pos, w->tokens[v->seq][pos]);
            size_t at = at_token(layout, c, t);
            bool same;
            if (raw && layout->type == ATH_KV_F32)
                same = ((const float *)mem)[at] == x;
            else if (raw && layout->type == ATH_KV_BF16)
                same = ((const uint16_t *)mem)[at] == ath_f32_to_bf16(x);
            else
                same = ((const uint16_t *)mem)[at] == ath_f32_to_f16(x);
            if (!same)
                fail_msg("sequence %d, layer %d, %c, position %lld, channel %d", v->seq, w->layer,
                         "KV"[v->is_value], (long long)pos, c);
        }
    }
}

static inline void check_encoded(world *w, const view *v, int64_t page) {
    static uint16_t tile[MAX_DIM * ATH_PAGE_TOKENS];
    static float scratch[MAX_DIM * ATH_PAGE_TOKENS];
    static uint8_t expected[MAX_DIM * ATH_PAGE_TOKENS * 4];
    const ath_kv_layout *layout = &v->side->layout;
    for (int t = 0; t < ATH_PAGE_TOKENS; t++)
        for (int c = 0; c < layout->head_dim; c++)
            tile[at_token(layout, c, t)] =
                f16_of(w, w->layer, v->is_value, v->head, c, v->seq, page * ATH_PAGE_TOKENS + t);
    ath_kv_encode_page(layout, tile, expected, scratch);
    const uint8_t *mem =
        v->attn->pages[page - v->attn->first_page] + v->side->offset + (size_t)v->head * layout->bytes;
    assert_memory_equal(mem, expected, layout->bytes);
    w->compared++;
}

static inline void check_sinks(world *w, const view *v) {
    int head_dim = v->side->layout.head_dim;
    for (int t = 0; t < ATH_SINK_TOKENS; t++)
        for (int c = 0; c < head_dim; c++)
            assert_int_equal(v->sinks[(v->head * ATH_SINK_TOKENS + t) * head_dim + c],
                             f16_of(w, w->layer, v->is_value, v->head, c, v->seq, t));
}

/* What a query at pos reads. */
static inline void check_query(world *w, const view *v, int64_t pos, int64_t window) {
    int64_t first = window > 0 && pos >= window ? pos - window + 1 : 0, own = pos / ATH_PAGE_TOKENS;
    bool raw = ath_kv_type_is_raw(v->side->layout.type);
    assert_true(v->attn->first_page <= first / ATH_PAGE_TOKENS);
    int64_t n_encoded = own - 1 - first / ATH_PAGE_TOKENS;
    int64_t chosen = n_encoded > 0 ? first / ATH_PAGE_TOKENS + rng_below(&w->random, n_encoded) : -1;
    for (int64_t page = first / ATH_PAGE_TOKENS; page <= own; page++) {
        int from = page == first / ATH_PAGE_TOKENS ? (int)(first % ATH_PAGE_TOKENS) : 0;
        int to = page == own ? (int)(pos % ATH_PAGE_TOKENS) + 1 : ATH_PAGE_TOKENS;
        if (page >= own - 1 || w->check_all_pages || page == chosen) {
            if (raw || page >= own - 1)
                check_plain(w, v, page, from, to);
            else
                check_encoded(w, v, page);
        }
        if (!raw && page < own - 1 && page == 0) check_sinks(w, v);
    }
}

void ath_op_attend(ath_device *dev, const ath_attn_args *args) {
    (void)dev;
    world *w = the_world;
    int64_t row = 0;
    assert_int_equal(args->n_seqs, w->n_rows_seqs);
    for (int s = 0; s < args->n_seqs; s++) {
        const ath_attn_seq *attn = &args->seqs[s];
        assert_int_equal(attn->row0, row);
        assert_int_equal(attn->n_rows, w->rows[s].n_rows);
        assert_int_equal(attn->pos0, ath_kv_length(w->kv, w->rows[s].seq));
        row += attn->n_rows;
        for (int head = 0; head < args->n_kv_heads; head++) {
            view k = {attn, &args->k, attn->recent_k, attn->sink_k, w->rows[s].seq, 0, head};
            view v = {attn, &args->v, attn->recent_v, attn->sink_v, w->rows[s].seq, 1, head};
            int64_t last = attn->pos0 + attn->n_rows - 1;
            for (int64_t pos = attn->pos0; pos <= last; pos += pos + 50 < last ? 50
                                                               : last - pos    ? last - pos
                                                                               : 1) {
                check_query(w, &k, pos, args->window);
                if (!args->v_in_k) check_query(w, &v, pos, args->window);
            }
        }
    }
    args->counters->k_plain++;
}

/* ---- recurrent layers: a state is a hash of all tokens before it */
static inline uint64_t hash_tokens(const world *w, int layer, int seq, int64_t n) {
    uint64_t hash = (uint64_t)layer;
    for (int64_t t = 0; t < n; t++) hash = mix64(hash * 31 + w->tokens[seq][t]);
    return hash;
}

static inline float state_value(uint64_t hash, int64_t i) {
    return (float)(mix64(hash + (uint64_t)i) >> 44);
}

static inline void check_run(world *w, int layer, int seq, int64_t pos, const ath_state_run *run) {
    if ((pos == 0) != (run->from == NULL))
        fail_msg("sequence %d, at %lld: no state to start from", seq, (long long)pos);
    assert_ptr_not_equal(run->from, run->to);
    uint64_t before = hash_tokens(w, layer, seq, pos), after = hash_tokens(w, layer, seq, pos + run->n_rows);
    for (int64_t i = 0; i < w->layers[layer].n_state; i++) {
        if (run->from && run->from[i] != state_value(before, i))
            fail_msg("sequence %d, layer %d: the state at %lld is another one", seq, layer, (long long)pos);
        run->to[i] = state_value(after, i);
    }
    w->compared++;
}

static inline void run_states(world *w, int layer) {
    const ath_state_seq *seqs;
    int64_t row = 0;
    assert_int_equal(ath_kv_states(w->kv, layer, &seqs), w->n_rows_seqs);
    for (int s = 0; s < w->n_rows_seqs; s++) {
        int64_t first = ath_kv_length(w->kv, w->rows[s].seq), pos = first;
        assert_int_equal(seqs[s].row0, row);
        for (int r = 0; r < seqs[s].n_runs; r++) {
            if (r > 0) assert_ptr_equal(seqs[s].runs[r].from, seqs[s].runs[r - 1].to);
            check_run(w, layer, w->rows[s].seq, pos, &seqs[s].runs[r]);
            pos += seqs[s].runs[r].n_rows;
        }
        assert_int_equal(pos - first, w->rows[s].n_rows);
        row += w->rows[s].n_rows;
    }
}

static inline const float *poisoned_rows(int64_t n_rows, float poison) {
    static float rows[MAX_TOKENS];
    memset(rows, 0, sizeof rows);
    rows[n_rows / 2] = poison;
    return rows;
}

/* ---- driving */
static inline world *world_new(const ath_kv_layer *layers, int n_layers, int64_t n_ctx, int entry_every,
                        int64_t n_ubatch) {
    world *w = calloc(1, sizeof *w);
    w->layers = layers;
    w->params = (ath_kv_params){.layers = layers,
                                .n_layers = n_layers,
                                .n_ctx = n_ctx,
                                .n_seqs = MAX_SEQS,
                                .n_ubatch = n_ubatch,
                                .entry_every = entry_every};
    w->random.state = 12345;
    ath_error err;
    if (ath_kv_create(&w->kv, NULL, &w->params, &err) != ATH_OK) fail_msg("%s", err.message);
    the_world = w;
    return w;
}

static inline void world_free(world *w) {
    ath_kv_free(w->kv);
    free(w);
}

static inline void fill_side(world *w, int layer, int is_value, int head_dim, float *out) {
    int64_t row = 0;
    for (int s = 0; s < w->n_rows_seqs; s++) {
        int seq = w->rows[s].seq;
        int64_t pos0 = ath_kv_length(w->kv, seq);
        for (int64_t r = 0; r < w->rows[s].n_rows; r++, row++)
            for (int h = 0; h < w->layers[layer].n_kv_heads; h++)
                for (int c = 0; c < head_dim; c++)
                    *out++ = kv_value(layer, is_value, h, c, pos0 + r, w->tokens[seq][pos0 + r]);
    }
}

enum { RUN_ALL = -1 };
/* begin, append and attend for n_layers layers (RUN_ALL: all). poison: put into K of the last layer that
 * runs. */
static inline ath_status run_layers(world *w, const ath_kv_rows *rows, int n_seqs, int n_layers, float poison,
                             ath_error *err) {
    int64_t n_rows = 0;
    w->rows = rows;
    w->n_rows_seqs = n_seqs;
    ath_status status = ath_kv_begin(w->kv, rows, n_seqs, err);
    if (status != ATH_OK) return status;
    for (int s = 0; s < n_seqs; s++) {
        int64_t length = ath_kv_length(w->kv, rows[s].seq);
        for (int64_t r = 0; r < rows[s].n_rows; r++) w->tokens[rows[s].seq][length + r] = w->next_token++;
        n_rows += rows[s].n_rows;
    }
    if (n_layers == RUN_ALL) n_layers = w->params.n_layers;
    for (int layer = 0; layer < n_layers; layer++) {
        const ath_kv_layer *l = &w->layers[layer];
        bool shared = l->store == ATH_KV_SHARED, poisoned = poison != 0 && layer == n_layers - 1;
        if (l->store == ATH_KV_RECURRENT) {
            run_states(w, layer);
            if (poisoned) ath_kv_check_finite(w->kv, layer, poisoned_rows(n_rows, poison), 1);
            continue;
        }
        float *k = malloc((size_t)(n_rows * l->n_kv_heads * l->head_dim_k) * sizeof *k);
        float *v = malloc((size_t)(n_rows * l->n_kv_heads * l->head_dim_v) * sizeof *v);
        w->layer = shared ? l->source : layer;
        fill_side(w, layer, 0, l->head_dim_k, k);
        fill_side(w, layer, 1, l->head_dim_v, v);
        if (poisoned) k[n_rows * l->n_kv_heads * l->head_dim_k / 2] = poison;
        if (!shared) ath_kv_append(w->kv, layer, k, v);
        ath_attn_args args = {.n_heads = l->n_kv_heads, .scale = 1};
        if (!poisoned) ath_kv_attend(w->kv, layer, &args);
        free(k);
        free(v);
    }
    return ATH_OK;
}

static inline void append(world *w, int seq, int64_t n) {
    while (n > 0) {
        ath_kv_rows rows = {seq, n < w->params.n_ubatch ? n : w->params.n_ubatch};
        ath_error err;
        if (run_layers(w, &rows, 1, RUN_ALL, 0, &err) != ATH_OK || ath_kv_commit(w->kv, &err) != ATH_OK)
            fail_msg("%s", err.message);
        n -= rows.n_rows;
    }
}

static inline int64_t fork_to(world *w, int dst, int src, int64_t n) {
    int64_t expected = ath_kv_entry_before(w->kv, src, n), length = ath_kv_fork(w->kv, dst, src, n);
    assert_int_equal(length, expected);
    assert_int_equal(ath_kv_length(w->kv, dst), length);
    if (dst != src) memcpy(w->tokens[dst], w->tokens[src], sizeof w->tokens[dst]);
    return length;
}

static inline ath_kv_stats stats_of(const world *w) {
    ath_kv_stats stats;
    ath_kv_get_stats(w->kv, &stats);
    return stats;
}

static inline void assert_no_pages(world *w) {
    for (int s = 0; s < MAX_SEQS; s++) ath_kv_clear(w->kv, s);
    ath_kv_stats stats = stats_of(w);
    assert_int_equal(stats.bytes_pages + stats.bytes_recent + stats.bytes_state + stats.bytes_entries, 0);
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) {
        assert_int_equal(w->kv->pool[kind].n_in_use, 0);
        assert_int_equal(w->kv->pool[kind].n_shared, 0);
    }
}

/* There is no page of this kind for the second sequence of a batch. */
static inline void run_out_of_pages(const ath_kv_layer *layers, int n_layers, int kind) {
    world *w = world_new(layers, n_layers, 2000, 1, 512);
    append(w, 0, 500);
    append(w, 1, 1);
    assert_int_equal(fork_to(w, 2, 1, 1), 1);
    ath_page_pool *pool = &w->kv->pool[kind];
    ath_page *free_list = pool->free_list;
    int64_t max_pages = pool->max_pages;
    pool->free_list = NULL;
    pool->max_pages = pool->n_pages;
    ath_kv_stats before = stats_of(w), after;
    ath_error err;
    ath_kv_rows rows[] = {{0, 200}, {1, 200}};
    assert_int_equal(ath_kv_begin(w->kv, rows, 2, &err), ATH_ERR_NOMEM);
    while (free_list) { /* pages that the failed batch gave back stay in the list */
        ath_page *next = free_list->next_free;
        free_list->next_free = pool->free_list;
        pool->free_list = free_list;
        free_list = next;
    }
    pool->max_pages = max_pages;
    after = stats_of(w);
    assert_memory_equal(&before, &after, sizeof before);
    append(w, 1, 200);
    append(w, 2, 200);
    append(w, 0, 600);
    assert_no_pages(w);
    world_free(w);
}

/* ---- random operations */
static inline void random_batch(world *w, bool *aborted) {
    ath_kv_rows rows[MAX_SEQS];
    int n = 0, order = (int)rng_below(&w->random, MAX_SEQS);
    int64_t left = w->params.n_ubatch;
    for (int s = 0; s < MAX_SEQS; s++) {
        if (rng_below(&w->random, 2)) continue;
        int seq = (s + order) % MAX_SEQS;
        int64_t room = w->params.n_ctx - ath_kv_length(w->kv, seq);
        int64_t want =
            rng_below(&w->random, 3) ? 1 + rng_below(&w->random, 8) : 1 + rng_below(&w->random, 300);
        if (want > room) want = room;
        if (want > left) want = left;
        if (want < 1) continue;
        rows[n++] = (ath_kv_rows){seq, want};
        left -= want;
    }
    if (n == 0) return;
    static uint32_t kept[MAX_SEQS][MAX_TOKENS];
    *aborted = rng_below(&w->random, 8) == 0;
    if (*aborted) memcpy(kept, w->tokens, sizeof kept);
    int layers = *aborted ? (int)rng_below(&w->random, w->params.n_layers + 1) : RUN_ALL;
    assert_int_equal(run_layers(w, rows, n, layers, 0, NULL), ATH_OK);
    if (*aborted) {
        ath_kv_abort(w->kv);
        memcpy(w->tokens, kept, sizeof kept);
    } else {
        assert_int_equal(ath_kv_commit(w->kv, NULL), ATH_OK);
    }
}

/* Distinct pages in all tables and how often each is held, against the pools' counts. */
static inline void check_references(const world *w) {
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) {
        int64_t distinct = 0, shared = 0;
        for (int64_t i = 0; i < ath_kv_table_size(w->kv, kind); i++)
            for (int s = 0; s < MAX_SEQS; s++) {
                const ath_page *page = w->kv->seqs[s].page[kind][i];
                int before = 0, holders = 0;
                for (int o = 0; o < MAX_SEQS; o++) {
                    if (w->kv->seqs[o].page[kind][i] != page) continue;
                    holders++;
                    before += o < s;
                }
                if (!page || before) continue;
                assert_int_equal(page->refs, holders);
                distinct++;
                shared += holders > 1;
            }
        assert_int_equal(w->kv->pool[kind].n_in_use, distinct);
        assert_int_equal(w->kv->pool[kind].n_shared, shared);
    }
}

/* Nothing is held that the length and the entry points don't ask for. */
static inline void check_nothing_idle(const world *w) {
    for (int s = 0; s < MAX_SEQS; s++) {
        const ath_kv_seq *seq = &w->kv->seqs[s];
        for (int kind = ATH_KV_FULL; kind <= ATH_KV_STATE; kind++) {
            ath_kv_keeper keeper = ath_kv_keeper_init(&w->kv->shape, kind, seq->length);
            for (int64_t i = w->kv->shape.n_pages - 1; i >= 0; i--) {
                bool kept = ath_kv_keeps(&keeper, i, seq->entry[i + 1]) && i < ath_kv_pages_for(seq->length);
                if (!kept) assert_null(seq->page[kind][i]);
            }
        }
    }
}

static inline void operate_at_random(const ath_kv_layer *layers, int n_layers, int n_operations) {
    const uint64_t seed = 20261201;
    print_message("seed %llu\n", (unsigned long long)seed);
    world *w = world_new(layers, n_layers, 1500, 3, 400);
    w->random.state = seed;
    int aborts = 0, deep = 0;
    for (int op = 0; op < n_operations; op++) {
        int seq = (int)rng_below(&w->random, MAX_SEQS), other = (int)rng_below(&w->random, MAX_SEQS);
        int64_t length = ath_kv_length(w->kv, seq);
        bool aborted = false;
        switch (rng_below(&w->random, 12)) {
        case 0: {
            int64_t back = rng_below(&w->random, 129), n = length > back ? length - back : 0;
            int64_t landed = ath_kv_truncate(w->kv, seq, n);
            assert_true(landed <= n && (landed == n || landed % ATH_PAGE_TOKENS == 0));
            break;
        }
        case 1: {
            int64_t n = rng_below(&w->random, length + 1), landed = ath_kv_truncate(w->kv, seq, n);
            assert_true(landed <= n);
            deep += n - landed > 0;
            break;
        }
        case 2: fork_to(w, other, seq, rng_below(&w->random, length + 1)); break;
        case 3: fork_to(w, other, seq, length); break;
        case 4: assert_int_equal(ath_kv_mark_entry(w->kv, seq, NULL), ATH_OK); break;
        case 5:
            if (rng_below(&w->random, 4) == 0) ath_kv_clear(w->kv, seq);
            break;
        default: random_batch(w, &aborted); break;
        }
        aborts += aborted;
        check_references(w);
        check_nothing_idle(w);
    }
    assert_true(aborts * 60 > n_operations && deep * 60 > n_operations);
    assert_no_pages(w);
    world_free(w);
}

#endif
