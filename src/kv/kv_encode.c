/* Encoding of pages that have become full: at once, or a little in every pass.
 *
 * A page is first read in its encoded form when 128 more tokens have come. So when tokens come one by one,
 * its encoding is left pending, and each pass does the share of the (layer, side, head) jobs that its rows
 * are of 128: no token waits for a whole page of all layers. The page's f16 tiles stay that long in any case,
 * and the bytes are the same whenever they are made. As a page's jobs are done when the next page is full, a
 * sequence has at most one that is pending. */
#include "base/clock.h"
#include "kv/kv_private.h"

static int64_t jobs_of_layer(const ath_kv_place *place) {
    return place->shared ? 0 : (int64_t)place->n_kv_heads * (place->side[0].encoded + place->side[1].encoded);
}

static int64_t jobs_of_page(const ath_kv_shape *shape) {
    int64_t n = 0;
    for (int il = 0; il < shape->n_layers; il++) n += jobs_of_layer(&shape->layers[il]);
    return n;
}

static void run_jobs(ath_kv *kv, int64_t n) {
    if (n == 0) return;
    double start = ath_now_ms();
    ath_op_encode_pages(kv->device, kv->batch.jobs, n);
    kv->work.encode_ms += ath_now_ms() - start;
    kv->work.encoded += (uint64_t)n;
}

/* One head of one side of a page; tile: of all heads. */
static ath_encode_job job_of(const ath_kv_seq *seq, const ath_kv_place *place, int is_value, int head,
                             int64_t page, const uint16_t *tile) {
    const ath_kv_side *side = &place->side[is_value];
    const ath_kv_layout *layout = &side->attn.layout;
    return (ath_encode_job){layout, tile + (size_t)head * (size_t)layout->head_dim * ATH_PAGE_TOKENS,
                            seq->mem[place->kind][page] + side->attn.offset + (size_t)head * layout->bytes};
}

static ath_encode_job pending_job(const ath_kv *kv, const ath_kv_seq *seq, int64_t index) {
    const ath_kv_place *place = kv->shape.layers;
    for (; index >= jobs_of_layer(place); place++) index -= jobs_of_layer(place);
    int is_value = !place->side[0].encoded || index >= place->n_kv_heads;
    const uint8_t *tiles = seq->page[ATH_KV_RECENT][seq->pending]->mem + place->side[is_value].tile_at;
    return job_of(seq, place, is_value, (int)(index % place->n_kv_heads), seq->pending,
                  (const uint16_t *)(const void *)tiles);
}

/* Lists what the sequence owes when it has `end` tokens behind n jobs that are listed already. Returns how
 * many are listed then: when there is no room for more, they are run. */
static int64_t list_due(ath_kv *kv, ath_kv_seq *seq, int64_t end, int64_t n) {
    if (seq->pending < 0) return n;
    int64_t total = jobs_of_page(&kv->shape), rows = end - (seq->pending + 1) * ATH_PAGE_TOKENS;
    int64_t due = rows < ATH_PAGE_TOKENS ? (total * rows + ATH_PAGE_TOKENS - 1) / ATH_PAGE_TOKENS : total;
    for (; seq->pending_done < due; seq->pending_done++) {
        if (n == kv->batch.max_jobs) {
            run_jobs(kv, n);
            n = 0;
        }
        kv->batch.jobs[n++] = pending_job(kv, seq, seq->pending_done);
    }
    if (due == total) seq->pending = -1;
    return n;
}

void ath_kv_encode_due(ath_kv *kv) {
    int64_t n = 0;
    for (int p = 0; p < kv->batch.n_parts; p++) {
        const ath_kv_part *part = &kv->batch.parts[p];
        n = list_due(kv, part->seq, part->seq->length + part->n_rows, n);
    }
    run_jobs(kv, n);
}

void ath_kv_encode_rest(ath_kv *kv, ath_kv_seq *seq) {
    run_jobs(kv, list_due(kv, seq, INT64_MAX / 2, 0));
}

/* Jobs of the pages that became full; or of those that did not, in types that are read before. */
static int64_t list_pages(ath_kv *kv, const ath_kv_place *place, bool full) {
    ath_kv_batch *batch = &kv->batch;
    int64_t n = 0;
    for (int64_t s = 0; s < batch->n_segments; s++) {
        const ath_kv_segment *segment = &batch->segments[s];
        if (full != (segment->at + segment->n_rows == ATH_PAGE_TOKENS) || segment->defers) continue;
        for (int is_value = 0; is_value < 2; is_value++) {
            const ath_kv_side *side = &place->side[is_value];
            if (!side->encoded || (!full && !ath_kv_type_is_plain(side->attn.layout.type))) continue;
            const uint16_t *tile = ath_kv_tile_of(kv, segment, place, is_value);
            for (int h = 0; h < place->n_kv_heads; h++)
                batch->jobs[n++] = job_of(segment->seq, place, is_value, h, segment->page, tile);
        }
    }
    return n;
}

void ath_kv_encode_now(ath_kv *kv, int layer) {
    const ath_kv_place *place = &kv->shape.layers[layer];
    int64_t n = list_pages(kv, place, true);
    run_jobs(kv, n);
    if (kv->losses) ath_kv_measure_jobs(kv, layer, n);
    run_jobs(kv, list_pages(kv, place, false));
}
