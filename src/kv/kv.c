/* The cache's shape, its memory plan, its life, and its figures. */
#include "kv/kv.h"

#include <stdlib.h>
#include <string.h>

#include "kv/kv_private.h"

/* Bounds that keep every product below in 64 bits. */
enum { MAX_LAYERS = 65536, MAX_KV_HEADS = 65536, MAX_SEQS = 65536 };
#define MAX_CONTEXT ((int64_t)1 << 40)
#define MAX_STATE   ((int64_t)1 << 32)

static size_t tile_bytes(const ath_kv_place *place, int is_value) {
    return (size_t)place->n_kv_heads * (size_t)place->side[is_value].attn.layout.head_dim * ATH_PAGE_TOKENS *
           sizeof(uint16_t);
}

static ath_status side_init(ath_kv_shape *shape, ath_kv_place *place, int is_value, ath_kv_type type,
                            int head_dim, ath_error *err) {
    ath_kv_side *side = &place->side[is_value];
    ath_kv_layout *layout = &side->attn.layout;
    ATH_TRY(ath_kv_layout_init(layout, type, head_dim, !is_value, err));
    size_t tile = tile_bytes(place, is_value);
    side->attn.offset = shape->page_bytes[place->kind];
    shape->page_bytes[place->kind] += (size_t)place->n_kv_heads * layout->bytes;
    side->encoded = !ath_kv_type_is_raw(type);
    if (!side->encoded) return ATH_OK;
    side->tile_at = shape->page_bytes[ATH_KV_RECENT];
    shape->page_bytes[ATH_KV_RECENT] += tile;
    side->sink_at = shape->page_bytes[ATH_KV_SINKS];
    shape->page_bytes[ATH_KV_SINKS] += tile / ATH_PAGE_TOKENS * ATH_SINK_TOKENS;
    if (shape->slot_bytes[is_value] < tile) shape->slot_bytes[is_value] = tile;
    return ATH_OK;
}

static ath_status share(ath_kv_shape *shape, int index, const ath_kv_params *params, ath_error *err) {
    const ath_kv_layer *layer = &params->layers[index], *source = layer;
    if (layer->source >= 0 && layer->source < index) source = &params->layers[layer->source];
    if (source == layer || source->store == ATH_KV_SHARED || source->store == ATH_KV_RECURRENT || source->n_kv_heads != layer->n_kv_heads ||
        source->head_dim_k != layer->head_dim_k || source->head_dim_v != layer->head_dim_v ||
        source->window != layer->window)
        return ATH_FAIL(
            err, ATH_ERR_ARGUMENT,
            "layer %d can't share the rows of layer %d: they are no rows of an earlier layer of its shape",
            index, layer->source);
    ath_kv_place *place = &shape->layers[layer->source];
    for (int is_value = 0; is_value < 2; is_value++) {
        ath_kv_side *side = &place->side[is_value];
        if (!side->encoded || side->scratch_at > 0) continue;
        side->scratch_at = shape->slot_bytes[is_value];
        shape->slot_bytes[is_value] += tile_bytes(place, is_value);
    }
    shape->layers[index] = *place;
    shape->layers[index].shared = true;
    return ATH_OK;
}

/* K is there; V is a part of it. */
static ath_status join_sides(ath_kv_place *place, int index, const ath_kv_layer *layer, ath_error *err) {
    const ath_kv_layout *k = &place->side[0].attn.layout;
    if (layer->type_k != layer->type_v)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                        "layer %d keeps one row for K and V, so they have one type: give -ctk and -ctv the "
                        "same (%s and %s differ)",
                        index, ath_kv_type_name(layer->type_k), ath_kv_type_name(layer->type_v));
    if (layer->head_dim_v < 1 || layer->head_dim_v > layer->head_dim_k)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "layer %d: V of %d channels can't be a part of K's %d", index,
                        layer->head_dim_v, layer->head_dim_k);
    place->v_in_k = true;
    place->side[1].attn.layout = (ath_kv_layout){.type = k->type, .head_dim = layer->head_dim_v};
    return ATH_OK;
}

static ath_status layer_init(ath_kv_shape *shape, int index, const ath_kv_params *params, ath_error *err) {
    const ath_kv_layer *layer = &params->layers[index];
    ath_kv_place *place = &shape->layers[index];
    if (layer->n_kv_heads < 1 || layer->n_kv_heads > MAX_KV_HEADS || layer->window < 0 ||
        layer->window > MAX_CONTEXT)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "layer %d: %d KV heads and a window of %lld are out of range",
                        index, layer->n_kv_heads, (long long)layer->window);
    place->n_kv_heads = layer->n_kv_heads;
    place->window = layer->window;
    place->kind = layer->window > 0 && !params->swa_full ? ATH_KV_WINDOWED : ATH_KV_FULL;
    if (place->kind == ATH_KV_WINDOWED && shape->max_window < layer->window)
        shape->max_window = layer->window;
    shape->has_plain |= ath_kv_type_is_plain(layer->type_k) || ath_kv_type_is_plain(layer->type_v);
    if (shape->max_kv_heads < layer->n_kv_heads) shape->max_kv_heads = layer->n_kv_heads;
    ATH_TRY(
        side_init(shape, place, 0, ath_kv_stored_type(layer->type_k, layer->window), layer->head_dim_k, err));
    if (layer->store == ATH_KV_LATENT) return join_sides(place, index, layer, err);
    return side_init(shape, place, 1, ath_kv_stored_type(layer->type_v, layer->window), layer->head_dim_v,
                     err);
}

static ath_status state_init(ath_kv_shape *shape, int index, const ath_kv_params *params, ath_error *err) {
    const ath_kv_layer *layer = &params->layers[index];
    ath_kv_place *place = &shape->layers[index];
    if (layer->n_state < 1 || layer->n_state > MAX_STATE)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "layer %d: a state of %lld values is out of range", index,
                        (long long)layer->n_state);
    place->kind = ATH_KV_STATE;
    place->state_at = shape->page_bytes[ATH_KV_STATE];
    shape->page_bytes[ATH_KV_STATE] += ((size_t)layer->n_state * sizeof(float) + 63) / 64 * 64;
    return ATH_OK;
}

static ath_status layers_init(ath_kv_shape *shape, const ath_kv_params *params, ath_error *err) {
    for (int i = 0; i < params->n_layers; i++)
        if (params->layers[i].store == ATH_KV_OWN || params->layers[i].store == ATH_KV_LATENT)
            ATH_TRY(layer_init(shape, i, params, err));
    for (int i = 0; i < params->n_layers; i++)
        if (params->layers[i].store == ATH_KV_SHARED) ATH_TRY(share(shape, i, params, err));
    for (int i = 0; i < params->n_layers; i++)
        if (params->layers[i].store == ATH_KV_RECURRENT) ATH_TRY(state_init(shape, i, params, err));
    return ATH_OK;
}

ath_status ath_kv_shape_init(ath_kv_shape *shape, const ath_kv_params *params, ath_error *err) {
    *shape = (ath_kv_shape){0};
    if (params->n_layers < 1 || params->n_layers > MAX_LAYERS || params->n_seqs < 1 ||
        params->n_seqs > MAX_SEQS || params->n_ctx < 1 || params->n_ctx > MAX_CONTEXT ||
        params->n_ubatch < 1 || params->n_ubatch > MAX_CONTEXT || params->entry_every < 0)
        return ATH_FAIL(
            err, ATH_ERR_ARGUMENT,
            "KV cache of %d layers, %d sequences, %lld tokens, batches of %lld rows: out of range",
            params->n_layers, params->n_seqs, (long long)params->n_ctx, (long long)params->n_ubatch);
    shape->n_layers = params->n_layers;
    shape->n_seqs = params->n_seqs;
    shape->n_ctx = params->n_ctx;
    shape->n_ubatch = params->n_ubatch;
    shape->entry_every = params->entry_every;
    shape->n_pages = ath_kv_pages_for(params->n_ctx);
    shape->layers = calloc((size_t)params->n_layers, sizeof *shape->layers);
    if (!shape->layers) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %d layers", params->n_layers);
    ath_status status = layers_init(shape, params, err);
    if (status != ATH_OK) {
        ath_kv_shape_free(shape);
        return status;
    }
    for (int kind = 0; kind < ATH_KV_KINDS; kind++)
        shape->page_bytes[kind] = ath_page_bytes(shape->page_bytes[kind]);
    return ATH_OK;
}

void ath_kv_shape_free(ath_kv_shape *shape) {
    free(shape->layers);
    *shape = (ath_kv_shape){0};
}

/* ---- which pages are kept */
static int64_t not_negative(int64_t x) {
    return x > 0 ? x : 0;
}

int64_t ath_kv_first_read(const ath_kv_shape *shape, int kind, int64_t n) {
    if (kind == ATH_KV_WINDOWED) return not_negative(n - shape->max_window + 1) / ATH_PAGE_TOKENS;
    if (kind == ATH_KV_RECENT) return not_negative(n / ATH_PAGE_TOKENS - 1);
    if (kind == ATH_KV_STATE) return not_negative(n - 1) / ATH_PAGE_TOKENS;
    return 0;
}

int64_t ath_kv_first_kept(const ath_kv_shape *shape, int kind, int64_t n) {
    int64_t back = not_negative(n - ATH_PAGE_TOKENS);
    if (shape->page_bytes[ATH_KV_STATE] > 0) back -= back % ATH_PAGE_TOKENS; /* where a rollback lands */
    return ath_kv_first_read(shape, kind, back);
}

bool ath_kv_keeps(ath_kv_keeper *keeper, int64_t page, bool entry_after) {
    if (entry_after) {
        int64_t first = ath_kv_first_read(keeper->shape, keeper->kind, (page + 1) * ATH_PAGE_TOKENS);
        if (keeper->first > first) keeper->first = first;
    }
    return page >= keeper->first;
}

/* ---- plan */
typedef struct page_count {
    int64_t own, entries; /* within reach; kept for entry points alone */
} page_count;

/* What asking an ath_kv_keeper for every page comes to: an entry point at boundary b keeps the `reach` pages before b,
 * entry points lie at distance, 2 distance ... up to n, and from page own_from on everything is kept anyway. */
static page_count count_pages(const ath_kv_shape *shape, int kind, int64_t n) {
    if (shape->page_bytes[kind] == 0) return (page_count){0, 0};
    int64_t own_from = ath_kv_first_kept(shape, kind, n), distance = ath_kv_entry_distance(shape, n);
    page_count count = {ath_kv_pages_for(n) - own_from, 0};
    if (distance == 0) return count;
    int64_t far = shape->max_window / ATH_PAGE_TOKENS + 2; /* a boundary that no reach from it goes beyond 0 */
    int64_t reach = far - ath_kv_first_read(shape, kind, far * ATH_PAGE_TOKENS);
    if (reach > distance) reach = distance; /* those before are the previous entry point's */
    int64_t end = n / ATH_PAGE_TOKENS / distance * distance;
    if (end > own_from) end = own_from;
    count.entries = end / distance * reach + not_negative(end % distance - (distance - reach));
    return count;
}

ath_status ath_kv_plan_init(ath_kv_plan *plan, const ath_kv_params *params, int64_t n_tokens,
                            ath_error *err) {
    *plan = (ath_kv_plan){0};
    if (n_tokens < 0 || n_tokens > params->n_ctx)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "memory plan for %lld tokens in a context of %lld",
                        (long long)n_tokens, (long long)params->n_ctx);
    ath_kv_shape shape;
    ATH_TRY(ath_kv_shape_init(&shape, params, err));
    for (int i = 0; i < shape.n_layers; i++) {
        const ath_kv_place *place = &shape.layers[i];
        if (place->kind != ATH_KV_FULL || place->shared) continue;
        const ath_kv_layout *k = &place->side[0].attn.layout, *v = &place->side[1].attn.layout;
        plan->bytes_per_token += place->n_kv_heads * (double)(k->bytes + v->bytes) / ATH_PAGE_TOKENS;
        plan->bytes_per_token_f16 +=
            place->n_kv_heads * 2.0 * (k->head_dim + (place->v_in_k ? 0 : v->head_dim));
    }
    page_count full = count_pages(&shape, ATH_KV_FULL, n_tokens);
    page_count windowed = count_pages(&shape, ATH_KV_WINDOWED, n_tokens);
    page_count recent = count_pages(&shape, ATH_KV_RECENT, n_tokens);
    page_count state = count_pages(&shape, ATH_KV_STATE, n_tokens);
    plan->bytes_pages = (size_t)full.own * shape.page_bytes[ATH_KV_FULL] +
                        (size_t)windowed.own * shape.page_bytes[ATH_KV_WINDOWED];
    plan->bytes_recent = (size_t)recent.own * shape.page_bytes[ATH_KV_RECENT];
    if (n_tokens > 0) plan->bytes_recent += shape.page_bytes[ATH_KV_SINKS];
    if (n_tokens > 0) plan->bytes_state = (size_t)(state.own + 1) * shape.page_bytes[ATH_KV_STATE];
    plan->bytes_entries = (size_t)recent.entries * shape.page_bytes[ATH_KV_RECENT] +
                          (size_t)windowed.entries * shape.page_bytes[ATH_KV_WINDOWED] +
                          (size_t)state.entries * shape.page_bytes[ATH_KV_STATE];
    ath_kv_shape_free(&shape);
    return ATH_OK;
}

/* ---- life */
static ath_status tables_init(ath_kv *kv, ath_error *err) {
    const ath_kv_shape *shape = &kv->shape;
    size_t n_seqs = (size_t)shape->n_seqs, n_pages = (size_t)shape->n_pages;
    size_t n_pointers = 0;
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) n_pointers += (size_t)ath_kv_table_size(kv, kind);
    n_pointers += 2 * n_pages;
    size_t seq_bytes = n_pointers * sizeof(void *) + (n_pages + 1 + 7) / 8 * 8;
    kv->seqs = calloc(n_seqs, sizeof *kv->seqs);
    kv->tables = calloc(n_seqs, seq_bytes);
    kv->counters = calloc((size_t)shape->n_layers, sizeof *kv->counters);
    if (!kv->seqs || !kv->tables || !kv->counters)
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the page tables of %d sequences of %lld tokens",
                        shape->n_seqs, (long long)shape->n_ctx);
    for (size_t s = 0; s < n_seqs; s++) {
        ath_kv_seq *seq = &kv->seqs[s];
        ath_page **pages = (ath_page **)((uint8_t *)kv->tables + s * seq_bytes);
        for (int kind = 0; kind < ATH_KV_KINDS; kind++) {
            seq->page[kind] = pages;
            pages += ath_kv_table_size(kv, kind);
        }
        uint8_t **mem = (uint8_t **)pages;
        for (int kind = 0; kind < 2; kind++, mem += n_pages) seq->mem[kind] = mem;
        seq->entry = (uint8_t *)mem;
        seq->pending = -1;
    }
    return ATH_OK;
}

ath_status ath_kv_create(ath_kv **out, ath_device *dev, const ath_kv_params *params, ath_error *err) {
    *out = NULL;
    ath_kv *kv = calloc(1, sizeof *kv);
    if (!kv) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the KV cache");
    kv->device = dev;
    ath_status status = ath_kv_shape_init(&kv->shape, params, err);
    if (status == ATH_OK) {
        /* A page in use is in some sequence's table, or was in it before the batch that is open: one per
         * sequence. */
        for (int kind = 0; kind < ATH_KV_KINDS; kind++)
            ath_page_pool_init(&kv->pool[kind], kv->shape.page_bytes[kind],
                               params->n_seqs * (ath_kv_table_size(kv, kind) + 1));
        kv->pool[ATH_KV_STATE].overwritten = true;
        status = tables_init(kv, err);
    }
    if (status == ATH_OK) status = ath_kv_batch_init(kv, err);
    if (status != ATH_OK) {
        ath_kv_free(kv);
        return status;
    }
    *out = kv;
    return ATH_OK;
}

void ath_kv_free(ath_kv *kv) {
    if (!kv) return;
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) ath_page_pool_free(&kv->pool[kind]);
    ath_kv_batch_free(kv);
    ath_kv_measure_free(kv);
    ath_kv_shape_free(&kv->shape);
    free(kv->seqs);
    free(kv->tables);
    free(kv->counters);
    free(kv);
}

static ath_kv_type effective_type(const ath_kv *kv, int layer, int side) {
    const ath_kv_place *place = &kv->shape.layers[layer];
    return place->kind == ATH_KV_STATE ? ATH_KV_TYPE_COUNT : place->side[side].attn.layout.type;
}

ath_kv_type ath_kv_effective_k(const ath_kv *kv, int layer) {
    return effective_type(kv, layer, 0);
}

ath_kv_type ath_kv_effective_v(const ath_kv *kv, int layer) {
    return effective_type(kv, layer, 1);
}

/* ---- figures */
/* Does a sequence before this one have the same page within its own reach? (Shared pages have the same
 * index.) */
static bool counted_before(const ath_kv *kv, int seq, int kind, int64_t index) {
    for (int other = 0; other < seq; other++) {
        const ath_kv_seq *s = &kv->seqs[other];
        if (s->page[kind][index] == kv->seqs[seq].page[kind][index] &&
            index >= ath_kv_first_kept(&kv->shape, kind, s->length))
            return true;
    }
    return false;
}

static page_count count_held(const ath_kv *kv, int kind) {
    page_count count = {0, 0};
    if (kv->shape.page_bytes[kind] == 0) return count;
    for (int s = 0; s < kv->shape.n_seqs; s++) {
        const ath_kv_seq *seq = &kv->seqs[s];
        for (int64_t i = ath_kv_first_kept(&kv->shape, kind, seq->length); i < ath_kv_pages_for(seq->length);
             i++)
            if (seq->page[kind][i] && !counted_before(kv, s, kind, i)) count.own++;
    }
    count.entries = kv->pool[kind].n_in_use - count.own;
    return count;
}

ath_kv_work ath_kv_get_work(const ath_kv *kv) {
    return kv->work;
}

void ath_kv_get_stats(const ath_kv *kv, ath_kv_stats *stats) {
    const size_t *bytes = kv->shape.page_bytes;
    page_count windowed = count_held(kv, ATH_KV_WINDOWED), recent = count_held(kv, ATH_KV_RECENT);
    page_count state = count_held(kv, ATH_KV_STATE);
    *stats = (ath_kv_stats){.bytes_scratch = kv->bytes_scratch, .saturated = kv->saturated};
    for (int kind = ATH_KV_FULL; kind <= ATH_KV_WINDOWED; kind++) {
        stats->pages_in_use[kind] = kv->pool[kind].n_in_use;
        stats->pages_shared[kind] = kv->pool[kind].n_shared;
    }
    stats->bytes_pages = (size_t)kv->pool[ATH_KV_FULL].n_in_use * bytes[ATH_KV_FULL] +
                         (size_t)windowed.own * bytes[ATH_KV_WINDOWED];
    stats->bytes_recent = (size_t)recent.own * bytes[ATH_KV_RECENT] +
                          (size_t)kv->pool[ATH_KV_SINKS].n_in_use * bytes[ATH_KV_SINKS];
    if (state.own > 0) stats->bytes_state = (size_t)(state.own + 1) * bytes[ATH_KV_STATE];
    stats->bytes_entries = (size_t)windowed.entries * bytes[ATH_KV_WINDOWED] +
                           (size_t)recent.entries * bytes[ATH_KV_RECENT] +
                           (size_t)state.entries * bytes[ATH_KV_STATE];
}

const ath_attn_counters *ath_kv_counters(const ath_kv *kv, int layer) {
    return &kv->counters[layer];
}

void ath_kv_reset_counters(ath_kv *kv) {
    memset(kv->counters, 0, (size_t)kv->shape.n_layers * sizeof *kv->counters);
}
