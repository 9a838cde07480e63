/* Attention on the CPU: entry, counters, and what the decode and prefill paths share. */
#include "device/cpu/attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kernels/vector_math.h"

ath_status ath_attn_scratch_create(ath_attn_scratch **out, int n_threads, int64_t max_rows, ath_error *err) {
    (void)max_rows; /* rows are worked on in pieces of a fixed size */
    ath_attn_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch) {
        scratch->workers = aligned_alloc(64, (size_t)n_threads * sizeof *scratch->workers);
        scratch->partials = aligned_alloc(64, ATH_ATTN_PARTIAL_FLOATS * sizeof *scratch->partials);
    }
    if (!scratch || !scratch->workers || !scratch->partials) {
        ath_attn_scratch_free(scratch);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the attention scratch of %d threads", n_threads);
    }
    *out = scratch;
    return ATH_OK;
}

void ath_attn_scratch_free(ath_attn_scratch *scratch) {
    if (!scratch) return;
    free(scratch->workers);
    free(scratch->partials);
    free(scratch);
}

ath_attn_range ath_attn_range_of(int64_t own, int64_t window) {
    ath_attn_range range = {.own = own};
    range.first = ath_attn_first_visible(own * ATH_PAGE_TOKENS, window) / ATH_PAGE_TOKENS;
    int64_t pages = own - range.first + 1;
    range.per_split = (pages + ATH_ATTN_SPLITS - 1) / ATH_ATTN_SPLITS;
    if (range.per_split < ATH_ATTN_MIN_SPLIT) range.per_split = ATH_ATTN_MIN_SPLIT;
    return range;
}

ath_attn_view ath_attn_view_of(const ath_attn_args *args, const ath_attn_seq *seq, bool key, int kv_head,
                               int64_t page, int64_t own) {
    const ath_attn_side *side = key ? &args->k : &args->v;
    size_t head_dim = (size_t)side->layout.head_dim, head = (size_t)kv_head;
    ath_attn_view view = {.layout = &side->layout, .type = side->layout.type};
    if (ath_kv_type_has_page_data(view.type) && page >= own - 1) {
        const uint16_t *recent = (key ? seq->recent_k : seq->recent_v)[page - seq->first_recent];
        view.type = ATH_KV_F16;
        view.data = (const uint8_t *)(recent + head * head_dim * ATH_PAGE_TOKENS);
        return view;
    }
    view.data = seq->pages[page - seq->first_page] + side->offset + head * side->layout.bytes;
    if (ath_kv_type_has_page_data(view.type) && page == 0)
        view.sinks = (key ? seq->sink_k : seq->sink_v) + head * ATH_SINK_TOKENS * head_dim;
    return view;
}

void ath_attn_sinks_to_tile(const uint16_t *sinks, int head_dim, float *tile) {
    for (int t = 0; t < ATH_SINK_TOKENS; t++)
        for (int c = 0; c < head_dim; c++)
            tile[c * ATH_PAGE_TOKENS + t] = ath_f16_to_f32(sinks[t * head_dim + c]);
}

const float *ath_attn_tile(const ath_attn_kernels *k, const ath_attn_view *view, float *tile) {
    const ath_kv_layout *layout = view->layout;
    if (view->type == ATH_KV_F32) return (const float *)(const void *)view->data;
    if (ath_kv_type_is_raw(view->type)) {
        k->widen[view->type](view->data, tile, (int64_t)layout->head_dim * ATH_PAGE_TOKENS);
        return tile;
    }
    k->expand(layout, view->data, tile);
    if (view->sinks && layout->is_key)
        ath_attn_sinks_to_tile(view->sinks, layout->head_dim, tile);
    else if (view->sinks)
        k->widen[ATH_KV_F16](view->sinks, tile, ATH_SINK_TOKENS * layout->head_dim);
    return tile;
}

void ath_attn_merge(ath_attn_state *total, float *total_acc, ath_attn_state part, const float *part_acc,
                    int64_t n) {
    if (part.sum == 0.0f) return;
    float max = total->max > part.max ? total->max : part.max;
    float keep = ath_expf(total->max - max), add = ath_expf(part.max - max);
    total->max = max;
    total->sum = total->sum * keep + part.sum * add;
    for (int64_t i = 0; i < n; i++) total_acc[i] = total_acc[i] * keep + part_acc[i] * add;
}

void ath_attn_finish(const ath_attn_args *args, int head, ath_attn_state state, float *acc) {
    float factor = 1.0f;
    if (args->sink_logits) {
        float sink = args->sink_logits[head], max = state.max > sink ? state.max : sink;
        factor = ath_expf(state.max - max);
        state.sum = state.sum * factor + ath_expf(sink - max);
    }
    ath_attn_scale(acc, factor / state.sum, args->v.layout.head_dim);
}

/* Visible positions of a row that one side reads in its encoded form: those before the previous page, without
 * sinks; all of a plain type. */
static int64_t count_compressed(const ath_kv_layout *layout, int64_t pos, int64_t first_visible) {
    if (ath_kv_type_is_raw(layout->type)) return 0;
    if (ath_kv_type_is_plain(layout->type)) return pos + 1 - first_visible;
    int64_t end = (pos / ATH_PAGE_TOKENS - 1) * ATH_PAGE_TOKENS;
    int64_t begin = first_visible > ATH_SINK_TOKENS ? first_visible : ATH_SINK_TOKENS;
    return end > begin ? end - begin : 0;
}

static void count_rows(const ath_attn_args *args) {
    for (int s = 0; s < args->n_seqs; s++) {
        const ath_attn_seq *seq = &args->seqs[s];
        for (int64_t pos = seq->pos0; pos < seq->pos0 + seq->n_rows; pos++) {
            int64_t first = ath_attn_first_visible(pos, args->window);
            int64_t k = count_compressed(&args->k.layout, pos, first);
            int64_t v = count_compressed(&args->v.layout, pos, first);
            args->counters->k_compressed += (uint64_t)k;
            args->counters->k_plain += (uint64_t)(pos + 1 - first - k);
            args->counters->v_compressed += (uint64_t)v;
            args->counters->v_plain += (uint64_t)(pos + 1 - first - v);
        }
    }
}

void ath_op_attend(ath_device *dev, const ath_attn_args *args) {
    bool decodes = false;
    for (int s = 0; s < args->n_seqs; s++) {
        if (args->seqs[s].n_rows > 1) ath_attn_prefill(dev, args, &args->seqs[s]);
        decodes |= args->seqs[s].n_rows == 1;
    }
    if (decodes) ath_attn_decode(dev, args);
    count_rows(args);
}
