/* A batch: rows are cut into segments, one per page that they fall into; everything else follows from the
 * list.
 *
 * Nothing that a sequence can fall back to is written before commit: new pages are fresh, shared ones are
 * copied, and rows behind the present length are invisible. So undoing a batch is letting its pages go. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/half.h"
#include "kv/kv_private.h"

enum { PARALLEL_VALUES = 16384 }; /* values of K and V from which on threads pay */

static size_t max_segments(const ath_kv_shape *shape) {
    return (size_t)(shape->n_ubatch / ATH_PAGE_TOKENS) + 2 * (size_t)shape->n_seqs;
}

ath_status ath_kv_batch_init(ath_kv *kv, ath_error *err) {
    const ath_kv_shape *shape = &kv->shape;
    ath_kv_batch *batch = &kv->batch;
    size_t n_seqs = (size_t)shape->n_seqs, n_segments = max_segments(shape);
    batch->parts = calloc(n_seqs, sizeof *batch->parts);
    batch->attn = calloc(n_seqs, sizeof *batch->attn);
    batch->states = calloc(n_seqs, sizeof *batch->states);
    batch->runs = calloc(n_segments, sizeof *batch->runs);
    batch->segments = calloc(n_segments, sizeof *batch->segments);
    batch->max_jobs = (int64_t)n_segments * 2 * shape->max_kv_heads + 1;
    batch->jobs = calloc((size_t)batch->max_jobs, sizeof *batch->jobs);
    bool ok = batch->parts && batch->attn && batch->segments && batch->jobs && batch->states && batch->runs;
    /* Pages that are not kept after the batch lie wholly within it: n_ubatch / 128 at most. */
    size_t n_scratch = (size_t)(shape->n_ubatch / ATH_PAGE_TOKENS);
    for (int side = 0; side < 2 && ok; side++) {
        batch->recent[side] = calloc(n_segments + n_seqs, sizeof *batch->recent[side]);
        size_t bytes = n_scratch > 0 ? ath_page_bytes(n_scratch * shape->slot_bytes[side]) : 0;
        if (bytes > 0) batch->scratch[side] = calloc(1, bytes);
        kv->bytes_scratch += bytes;
        ok = batch->recent[side] && (batch->scratch[side] || bytes == 0);
    }
    return ok ? ATH_OK
              : ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for batches of %lld rows",
                         (long long)shape->n_ubatch);
}

void ath_kv_batch_free(ath_kv *kv) {
    ath_kv_batch *batch = &kv->batch;
    free(batch->parts);
    free(batch->attn);
    free(batch->states);
    free(batch->runs);
    free(batch->segments);
    free(batch->jobs);
    for (int side = 0; side < 2; side++) {
        free(batch->recent[side]);
        free(batch->scratch[side]);
    }
}

/* ---- begin */
static ath_status check_batch(const ath_kv *kv, const ath_kv_rows *seqs, int n_seqs, ath_error *err) {
    const ath_kv_shape *shape = &kv->shape;
    if (kv->batch.open) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "the batch before this one was not ended");
    if (n_seqs < 1 || n_seqs > shape->n_seqs)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a batch of %d sequences; the cache has %d", n_seqs,
                        shape->n_seqs);
    int64_t n_rows = 0;
    for (int i = 0; i < n_seqs; i++) {
        if (seqs[i].seq < 0 || seqs[i].seq >= shape->n_seqs)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "there is no sequence %d", seqs[i].seq);
        for (int j = 0; j < i; j++)
            if (seqs[j].seq == seqs[i].seq)
                return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d is twice in a batch", seqs[i].seq);
        if (seqs[i].n_rows < 1 || seqs[i].n_rows > shape->n_ubatch - n_rows)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a batch has 1 to %lld rows", (long long)shape->n_ubatch);
        n_rows += seqs[i].n_rows;
        int64_t length = kv->seqs[seqs[i].seq].length;
        if (seqs[i].n_rows > shape->n_ctx - length)
            return ATH_FAIL(err, ATH_ERR_CONTEXT,
                            "the context is full: sequence %d holds %lld of %lld tokens, %lld more don't fit",
                            seqs[i].seq, (long long)length, (long long)shape->n_ctx,
                            (long long)seqs[i].n_rows);
    }
    return ATH_OK;
}

/* Makes page `index` present and private to the sequence. States are read while the new ones are written: always
 * another page. */
static bool own_page(ath_kv *kv, ath_kv_seq *seq, int kind, int64_t index) {
    ath_page *old = seq->page[kind][index];
    if (old && old->refs == 1 && kind != ATH_KV_STATE) return true;
    ath_page *page = ath_page_take(&kv->pool[kind]);
    if (!page) return false;
    if (old && kind != ATH_KV_STATE) memcpy(page->mem, old->mem, kv->pool[kind].page_bytes);
    if (old) seq->replaced[kind] = old;
    ath_kv_set_page(seq, kind, index, page);
    return true;
}

static bool own_pages(ath_kv *kv, ath_kv_part *part) {
    ath_kv_seq *seq = part->seq;
    int64_t end = seq->length + part->n_rows, first = seq->length / ATH_PAGE_TOKENS;
    for (int kind = 0; kind < ATH_KV_SINKS; kind++) {
        if (kv->shape.page_bytes[kind] == 0) continue;
        int64_t first_kept = kind < ATH_KV_RECENT ? 0 : ath_kv_first_kept(&kv->shape, kind, end);
        for (int64_t i = first; i < ath_kv_pages_for(end); i++) {
            bool wanted = i >= first_kept || (kind == ATH_KV_RECENT && seq->page[kind][i]) ||
                          ath_kv_entry_is_due(&kv->shape, i + 1, end);
            if (wanted && !own_page(kv, seq, kind, i)) return false;
        }
    }
    bool writes_sinks = seq->length < ATH_SINK_TOKENS && kv->shape.page_bytes[ATH_KV_SINKS] > 0;
    return !writes_sinks || own_page(kv, seq, ATH_KV_SINKS, 0);
}

static void cut_segments(ath_kv *kv, ath_kv_part *part, int64_t row0, int64_t *n_scratch) {
    ath_kv_batch *batch = &kv->batch;
    part->first_segment = batch->n_segments;
    bool tiles = kv->shape.page_bytes[ATH_KV_RECENT] > 0;
    for (int64_t done = 0; done < part->n_rows;) {
        int64_t pos = part->seq->length + done, page = pos / ATH_PAGE_TOKENS;
        int at = (int)(pos % ATH_PAGE_TOKENS);
        int64_t n = ATH_PAGE_TOKENS - at;
        if (n > part->n_rows - done) n = part->n_rows - done;
        int64_t scratch = tiles && !part->seq->page[ATH_KV_RECENT][page] ? (*n_scratch)++ : -1;
        bool defers = tiles && scratch < 0 && at + n == ATH_PAGE_TOKENS && part->n_rows <= ATH_KV_FEW_ROWS &&
                      !kv->losses && !kv->shape.has_plain;
        batch->segments[batch->n_segments++] =
            (ath_kv_segment){part->seq, page, row0 + done, n, at, scratch, defers};
        done += n;
    }
}

/* A page that is turned to should be zero and resident when its first row comes. Each batch does the share of one page that
 * its rows are of 128, so that no decode step has it all to do, and one after prefill nothing. */
static void prepare_pages(ath_kv *kv, int64_t n_rows) {
    size_t share = n_rows < ATH_PAGE_TOKENS ? (size_t)n_rows : ATH_PAGE_TOKENS;
    for (int kind = 0; kind < ATH_KV_SINKS; kind++) {
        size_t bytes = kv->shape.page_bytes[kind];
        if (bytes > 0) ath_page_prepare(&kv->pool[kind], (bytes * share + ATH_PAGE_TOKENS - 1) / ATH_PAGE_TOKENS);
    }
}

static void undo(ath_kv *kv) {
    ath_kv_batch *batch = &kv->batch;
    for (int p = 0; p < batch->n_parts; p++) {
        ath_kv_seq *seq = batch->parts[p].seq;
        ath_kv_drop_tail(kv, seq, seq->length);
        for (int kind = 0; kind < ATH_KV_KINDS; kind++) {
            if (!seq->replaced[kind]) continue;
            int64_t index = kind == ATH_KV_SINKS ? 0 : seq->length / ATH_PAGE_TOKENS;
            ath_kv_drop_page(kv, seq, kind, index);
            ath_kv_set_page(seq, kind, index, seq->replaced[kind]);
            seq->replaced[kind] = NULL;
        }
    }
    batch->open = false;
}

ath_status ath_kv_begin(ath_kv *kv, const ath_kv_rows *seqs, int n_seqs, ath_error *err) {
    ATH_TRY(check_batch(kv, seqs, n_seqs, err));
    ath_kv_batch *batch = &kv->batch;
    batch->open = true;
    batch->n_parts = 0;
    batch->n_rows = 0;
    batch->n_segments = 0;
    batch->n_saturated = batch->n_bad = batch->n_bad_layer = 0;
    batch->bad_layer = -1;
    int64_t n_scratch = 0;
    for (int i = 0; i < n_seqs; i++) {
        ath_kv_part *part = &batch->parts[batch->n_parts++];
        *part = (ath_kv_part){.seq = &kv->seqs[seqs[i].seq], .n_rows = seqs[i].n_rows};
        if (!own_pages(kv, part)) {
            undo(kv);
            return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for KV pages of sequence %d at %lld tokens",
                            seqs[i].seq, (long long)(part->seq->length + part->n_rows));
        }
        cut_segments(kv, part, batch->n_rows, &n_scratch);
        batch->n_rows += part->n_rows;
    }
    prepare_pages(kv, batch->n_rows);
    ath_kv_encode_due(kv);
    return ATH_OK;
}

/* ---- append */
typedef struct append_job {
    ath_kv *kv;
    const ath_kv_place *place;
    const float *src[2];
} append_job;

uint16_t *ath_kv_tile_of(const ath_kv *kv, const ath_kv_segment *segment, const ath_kv_place *place,
                         int is_value) {
    const ath_kv_side *side = &place->side[is_value];
    uint8_t *tile = segment->scratch >= 0
                        ? kv->batch.scratch[is_value] +
                              (size_t)segment->scratch * kv->shape.slot_bytes[is_value] + side->scratch_at
                        : segment->seq->page[ATH_KV_RECENT][segment->page]->mem + side->tile_at;
    return (uint16_t *)tile;
}

/* Non-finite values are stored as 0: the batch will be undone, and nothing poisonous stays behind. */
static float finite_or_zero(float x, uint64_t *n_bad) {
    if (isfinite(x)) return x;
    ++*n_bad;
    return 0;
}

static uint16_t to_f16(float x, uint64_t *n_saturated) {
    if (fabsf(x) <= 65504) return ath_f32_to_f16(x);
    ++*n_saturated;
    return x > 0 ? 0x7bff : 0xfbff;
}

static uint16_t to_bf16(float x, uint64_t *n_saturated) {
    uint16_t b = ath_f32_to_bf16(x);
    if ((b & 0x7fff) != 0x7f80) return b;
    ++*n_saturated; /* rounding would have made it infinite */
    return b - 1;
}

typedef struct value_counts {
    uint64_t saturated, bad;
} value_counts;

/* n rows of head_dim values, `stride` apart, to tokens at .. at + n - 1 of a plain tile. */
static void write_rows(void *tile, ath_kv_type type, bool is_key, int head_dim, int at, const float *src,
                       size_t stride, int64_t n, value_counts *counts) {
    size_t token_step = is_key ? 1 : (size_t)head_dim, channel_step = is_key ? ATH_PAGE_TOKENS : 1;
    for (int64_t t = 0; t < n; t++) {
        const float *row = src + (size_t)t * stride;
        size_t to = (size_t)(at + t) * token_step;
        for (int c = 0; c < head_dim; c++, to += channel_step) {
            float x = finite_or_zero(row[c], &counts->bad);
            if (type == ATH_KV_F32)
                ((float *)tile)[to] = x;
            else if (type == ATH_KV_BF16)
                ((uint16_t *)tile)[to] = to_bf16(x, &counts->saturated);
            else
                ((uint16_t *)tile)[to] = to_f16(x, &counts->saturated);
        }
    }
}

/* Sinks are [4][head_dim] for K and V alike: the shape of a V tile. */
static void write_sinks(const ath_kv_segment *segment, const ath_kv_side *side, int head, const float *src,
                        size_t stride) {
    int head_dim = side->attn.layout.head_dim;
    uint16_t *sinks = (uint16_t *)(segment->seq->page[ATH_KV_SINKS][0]->mem + side->sink_at);
    int64_t n = ATH_SINK_TOKENS - segment->at;
    value_counts counted_with_the_tile = {0, 0};
    write_rows(sinks + (size_t)head * ATH_SINK_TOKENS * (size_t)head_dim, ATH_KV_F16, false, head_dim,
               segment->at, src, stride, n < segment->n_rows ? n : segment->n_rows, &counted_with_the_tile);
}

/* One side of one KV head of one segment. */
static void append_task(void *arg, int64_t task, int thread) {
    (void)thread;
    const append_job *job = arg;
    const ath_kv_place *place = job->place;
    int is_value = (int)(task & 1), head = (int)((task >> 1) % place->n_kv_heads);
    if (is_value && place->v_in_k) return;
    ath_kv_batch *batch = &job->kv->batch;
    const ath_kv_segment *segment = &batch->segments[(task >> 1) / place->n_kv_heads];
    const ath_kv_side *side = &place->side[is_value];
    const ath_kv_layout *layout = &side->attn.layout;
    size_t head_dim = (size_t)layout->head_dim, stride = (size_t)place->n_kv_heads * head_dim;
    const float *src = job->src[is_value] + (size_t)segment->row0 * stride + (size_t)head * head_dim;
    value_counts counts = {0, 0};
    if (side->encoded) {
        uint16_t *tile =
            ath_kv_tile_of(job->kv, segment, place, is_value) + (size_t)head * head_dim * ATH_PAGE_TOKENS;
        write_rows(tile, ATH_KV_F16, !is_value, layout->head_dim, segment->at, src, stride, segment->n_rows,
                   &counts);
        if (segment->page == 0 && segment->at < ATH_SINK_TOKENS)
            write_sinks(segment, side, head, src, stride);
    } else {
        uint8_t *mem = segment->seq->mem[place->kind][segment->page];
        write_rows(mem + side->attn.offset + (size_t)head * layout->bytes, layout->type, !is_value,
                   layout->head_dim, segment->at, src, stride, segment->n_rows, &counts);
    }
    if (counts.saturated) atomic_fetch_add(&batch->n_saturated, counts.saturated);
    if (counts.bad) atomic_fetch_add(&batch->n_bad, counts.bad);
}

/* The first layer that had bad values, and how many. */
static void note_bad_layer(ath_kv_batch *batch, int layer) {
    if (batch->n_bad == 0 || batch->bad_layer >= 0) return;
    batch->bad_layer = layer;
    batch->n_bad_layer = batch->n_bad;
}

void ath_kv_append(ath_kv *kv, int layer, const float *k, const float *v) {
    ath_kv_batch *batch = &kv->batch;
    append_job job = {kv, &kv->shape.layers[layer], {k, v}};
    const ath_kv_place *place = job.place;
    double start = ath_now_ms();
    int64_t n_tasks = batch->n_segments * place->n_kv_heads * 2;
    int64_t values = batch->n_rows * place->n_kv_heads *
                     (place->side[0].attn.layout.head_dim + place->side[1].attn.layout.head_dim);
    if (values >= PARALLEL_VALUES)
        ath_device_parallel(kv->device, append_task, &job, n_tasks);
    else
        for (int64_t task = 0; task < n_tasks; task++) append_task(&job, task, 0);
    note_bad_layer(batch, layer);
    kv->work.store_ms += ath_now_ms() - start;
    ath_kv_encode_now(kv, layer);
}

/* ---- attend */
/* Tiles of the page before the first row's and of all pages of the batch. */
static int64_t list_recent(ath_kv *kv, const ath_kv_place *place, const ath_kv_part *part, int is_value,
                           int64_t first, int64_t at) {
    const ath_kv_segment *segment = &kv->batch.segments[part->first_segment];
    const uint16_t **tiles = kv->batch.recent[is_value];
    const ath_kv_segment before = {.seq = part->seq, .page = first, .scratch = -1};
    if (first < segment->page) tiles[at++] = ath_kv_tile_of(kv, &before, place, is_value);
    int64_t last = (part->seq->length + part->n_rows - 1) / ATH_PAGE_TOKENS;
    for (int64_t page = segment->page; page <= last; page++)
        tiles[at++] = ath_kv_tile_of(kv, segment + (page - segment->page), place, is_value);
    return at;
}

void ath_kv_attend(ath_kv *kv, int layer, ath_attn_args *args) {
    ath_kv_batch *batch = &kv->batch;
    const ath_kv_place *place = &kv->shape.layers[layer];
    int64_t n_tiles = 0;
    for (int p = 0; p < batch->n_parts; p++) {
        const ath_kv_part *part = &batch->parts[p];
        ath_kv_seq *seq = part->seq;
        ath_attn_seq *attn = &batch->attn[p];
        *attn = (ath_attn_seq){.row0 = batch->segments[part->first_segment].row0,
                               .n_rows = part->n_rows,
                               .pos0 = seq->length,
                               .first_page = ath_kv_first_read(&kv->shape, place->kind, seq->length),
                               .first_recent = ath_kv_first_read(&kv->shape, ATH_KV_RECENT, seq->length)};
        attn->pages = (const uint8_t *const *)seq->mem[place->kind] + attn->first_page;
        const uint16_t *const **recent[2] = {&attn->recent_k, &attn->recent_v};
        const uint16_t **sinks[2] = {&attn->sink_k, &attn->sink_v};
        int64_t end = n_tiles;
        for (int is_value = 0; is_value < 2; is_value++) {
            const ath_kv_side *side = &place->side[is_value];
            if (!side->encoded) continue;
            *recent[is_value] = batch->recent[is_value] + n_tiles;
            end = list_recent(kv, place, part, is_value, attn->first_recent, n_tiles);
            *sinks[is_value] = (const uint16_t *)(seq->page[ATH_KV_SINKS][0]->mem + side->sink_at);
        }
        n_tiles = end;
    }
    args->n_kv_heads = place->n_kv_heads;
    args->window = place->window;
    args->k = place->side[0].attn;
    args->v = place->side[1].attn;
    args->v_in_k = place->v_in_k;
    args->seqs = batch->attn;
    args->n_seqs = batch->n_parts;
    args->counters = &kv->counters[layer];
    ath_op_attend(kv->device, args);
}

/* ---- states */
/* Rows between pages of the kind STATE that this batch took make a run. */
static int64_t list_runs(ath_kv *kv, const ath_kv_part *part, size_t state_at, ath_state_run *runs) {
    const ath_kv_segment *segment = &kv->batch.segments[part->first_segment];
    const ath_kv_seq *seq = part->seq;
    const ath_page *before = seq->replaced[ATH_KV_STATE];
    int64_t n_runs = 0, done = 0, first = segment->page;
    bool took_first = segment->at == 0 || before;
    if (!before && seq->length > 0) before = seq->page[ATH_KV_STATE][(seq->length - 1) / ATH_PAGE_TOKENS];
    const float *from = before ? (const float *)(before->mem + state_at) : NULL;
    for (int64_t n_rows = 0; done < part->n_rows; segment++) {
        n_rows += segment->n_rows;
        done += segment->n_rows;
        const ath_page *page = seq->page[ATH_KV_STATE][segment->page];
        if (!page || (segment->page == first && !took_first)) continue;
        float *to = (float *)(page->mem + state_at);
        runs[n_runs++] = (ath_state_run){n_rows, from, to};
        from = to;
        n_rows = 0;
    }
    return n_runs;
}

int ath_kv_states(ath_kv *kv, int layer, const ath_state_seq **seqs) {
    ath_kv_batch *batch = &kv->batch;
    ath_state_run *runs = batch->runs;
    for (int p = 0; p < batch->n_parts; p++) {
        const ath_kv_part *part = &batch->parts[p];
        int64_t n = list_runs(kv, part, kv->shape.layers[layer].state_at, runs);
        batch->states[p] = (ath_state_seq){batch->segments[part->first_segment].row0, runs, (int)n};
        runs += n;
    }
    *seqs = batch->states;
    return batch->n_parts;
}

typedef struct finite_run {
    ath_kv_batch *batch;
    const float *x;
    int64_t n;
} finite_run;

static void count_bad(void *arg, int64_t task, int thread) {
    (void)thread;
    const finite_run *r = arg;
    uint64_t n_bad = 0;
    for (int64_t i = 0; i < r->n; i++) finite_or_zero(r->x[task * r->n + i], &n_bad);
    if (n_bad) atomic_fetch_add(&r->batch->n_bad, n_bad);
}

void ath_kv_check_finite(ath_kv *kv, int layer, const float *x, int64_t n) {
    finite_run r = {&kv->batch, x, n};
    ath_device_parallel(kv->device, count_bad, &r, kv->batch.n_rows);
    note_bad_layer(&kv->batch, layer);
}

/* ---- commit */
static void advance(ath_kv *kv, ath_kv_seq *seq, int64_t n_rows) {
    const ath_kv_shape *shape = &kv->shape;
    int64_t old = seq->length;
    seq->length += n_rows;
    int64_t n_pages = seq->length / ATH_PAGE_TOKENS;
    if (ath_kv_entry_distance(shape, old) != ath_kv_entry_distance(shape, seq->length))
        for (int64_t b = 1; b <= n_pages; b++)
            if (seq->entry[b] == ATH_ENTRY_AUTO && !ath_kv_entry_is_due(shape, b, seq->length))
                seq->entry[b] = ATH_ENTRY_NONE;
    for (int64_t b = old / ATH_PAGE_TOKENS + 1; b <= n_pages; b++)
        if (ath_kv_entry_is_due(shape, b, seq->length)) seq->entry[b] = ATH_ENTRY_AUTO;
    for (int kind = ATH_KV_WINDOWED; kind <= ATH_KV_STATE; kind++) {
        if (ath_kv_first_kept(shape, kind, old) == ath_kv_first_kept(shape, kind, seq->length)) continue;
        ath_kv_sweep(kv, seq);
        break;
    }
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) {
        if (seq->replaced[kind]) ath_page_unref(&kv->pool[kind], seq->replaced[kind]);
        seq->replaced[kind] = NULL;
    }
}

ath_status ath_kv_commit(ath_kv *kv, ath_error *err) {
    ath_kv_batch *batch = &kv->batch;
    if (!batch->open) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "there is no batch to end");
    if (batch->bad_layer >= 0) {
        undo(kv);
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "layer %d: %llu of the new values are NaN or infinite", batch->bad_layer,
                        (unsigned long long)batch->n_bad_layer);
    }
    for (int64_t i = 0; i < batch->n_segments; i++) {
        if (!batch->segments[i].defers) continue;
        batch->segments[i].seq->pending = batch->segments[i].page;
        batch->segments[i].seq->pending_done = 0;
    }
    for (int p = 0; p < batch->n_parts; p++) advance(kv, batch->parts[p].seq, batch->parts[p].n_rows);
    kv->saturated += batch->n_saturated;
    batch->open = false;
    return ATH_OK;
}

void ath_kv_abort(ath_kv *kv) {
    if (kv->batch.open) undo(kv);
}
