/* Weights on the CPU: repacking into panels, and the scratch that products with them need. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu_device.h"

/* Panels lie one weight behind the other in large chunks, so that small weights are in huge pages too: a core
 * reads those a quarter faster. A chunk's last weight ends where it ends; what is left of it was never
 * touched. */
struct ath_weight_chunk {
    ath_weight_chunk *next;
    uint8_t *memory;
    size_t used, size;
};

static uint8_t *take_panels(ath_device *dev, size_t bytes) {
    const size_t usual = 64 << 20;
    ath_weight_chunk *c = dev->chunks;
    if (!c || bytes > c->size - c->used) {
        if (bytes > SIZE_MAX - ATH_HUGE_PAGE || !(c = malloc(sizeof *c))) return NULL;
        size_t size = bytes > usual ? (bytes + ATH_HUGE_PAGE - 1) / ATH_HUGE_PAGE * ATH_HUGE_PAGE : usual;
        *c = (ath_weight_chunk){dev->chunks, ath_memory_map(size), 0, size};
        if (!c->memory) {
            free(c);
            return NULL;
        }
        dev->chunks = c;
    }
    uint8_t *panels = c->memory + c->used;
    c->used += bytes;
    return panels;
}

void ath_weight_chunks_free(ath_device *dev) {
    for (ath_weight_chunk *c = dev->chunks, *next; c; c = next) {
        next = c->next;
        ath_memory_unmap(c->memory, c->size);
        free(c);
    }
}

typedef struct repack_run {
    const ath_weight *w;
    ath_panel_format format;
} repack_run;

static void repack_task(void *arg, int64_t task, int thread) {
    (void)thread;
    const repack_run *r = arg;
    const ath_weight *w = r->w;
    int64_t n_panels = ath_weight_panels(w), expert = task / n_panels, row = task % n_panels * ATH_PANEL_ROWS;
    int64_t left = w->n_out - row;
    ath_panel_pack(r->format, ath_weight_rows(w, expert, row), w->row_bytes,
                   left < ATH_PANEL_ROWS ? (int)left : ATH_PANEL_ROWS, w->n_in,
                   w->panels + (size_t)task * ath_panel_bytes(r->format, w->n_in));
}

static ath_status repack_weight(ath_device *dev, ath_weight *w, ath_panel_format format, ath_error *err) {
    int64_t n_panels = ath_weight_panels(w) * w->n_experts;
    if (__builtin_mul_overflow((size_t)n_panels, ath_panel_bytes(format, w->n_in), &w->panel_bytes))
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a weight of %lld x %lld values is too large",
                        (long long)w->n_in, (long long)w->n_out);
    w->panels = take_panels(dev, w->panel_bytes);
    if (!w->panels)
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a weight of %zu MiB", w->panel_bytes >> 20);
    repack_run run = {w, format};
    ath_threads_run(dev->pools[1], repack_task, &run, n_panels);
    return ATH_OK;
}

static ath_status init(ath_device *dev, ath_weight *w, bool repack, ath_error *err) {
    ath_tensor_type type = w->type;
    int64_t n_in = w->n_in, n_out = w->n_out, n_experts = w->n_experts;
    const ath_tensor_type_info *info = ath_tensor_type_get((int)type);
    if (!info->name || !info->dequantize)
        return ATH_FAIL(err, ATH_ERR_UNSUPPORTED, "type %s (%d) is none that weights can have",
                        info->name ? info->name : "unknown", (int)type);
    if (n_in < 1 || n_out < 1 || n_experts < 1 || n_in > INT32_MAX || n_out > INT32_MAX ||
        n_experts > 1 << 16)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                        "no weight can have %lld inputs, %lld outputs and %lld experts", (long long)n_in,
                        (long long)n_out, (long long)n_experts);
    w->row_bytes = ath_tensor_type_row_bytes((int)type, n_in);
    if (!w->row_bytes)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%lld inputs are not a multiple of %s's block of %d",
                        (long long)n_in, info->name, (int)info->block_size);
    ath_panel_format format = ath_device_format(dev, type);
    ath_status status = ATH_OK;
    if (repack && format != ATH_PANEL_NONE) status = repack_weight(dev, w, format, err);
    return status == ATH_OK ? ath_mm_scratch_reserve(dev, w, err) : status;
}

ath_status ath_device_weight_init(ath_device *dev, ath_weight *w, ath_tensor_type type, const void *data,
                                  int64_t n_in, int64_t n_out, int64_t n_experts, bool repack,
                                  ath_error *err) {
    *w = (ath_weight){.type = type, .n_in = n_in, .n_out = n_out, .n_experts = n_experts, .data = data};
    return init(dev, w, repack, err);
}

ath_status ath_device_experts_init(ath_device *dev, ath_weight *w, ath_tensor_type type,
                                   const uint8_t *const *experts, int64_t n_in, int64_t n_out,
                                   int64_t n_experts, bool repack, ath_error *err) {
    *w = (ath_weight){.type = type,
                      .n_in = n_in,
                      .n_out = n_out,
                      .n_experts = n_experts,
                      .data = experts[0],
                      .experts = experts};
    return init(dev, w, repack, err);
}

const char *ath_device_weight_kernel(const ath_device *dev, const ath_weight *w) {
    return dev->kernel_names[w->type][w->panels != NULL];
}

/* Grows *buffer to bytes (rounded up to cache lines); its contents are lost. */
static ath_status grow(void **buffer, size_t bytes, ath_error *err) {
    free(*buffer);
    *buffer = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *buffer ? ATH_OK : ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %zu MiB of scratch", bytes >> 20);
}

static ath_status reserve_lists(ath_mm_scratch *s, int64_t n_experts, int64_t n_columns, ath_error *err) {
    if (n_columns > s->max_columns) {
        ATH_TRY(grow((void **)&s->columns, (size_t)n_columns * sizeof *s->columns, err));
        for (int k = 0; k < 2; k++)
            ATH_TRY(grow((void **)&s->tiles[k], (size_t)n_columns * sizeof *s->tiles[k], err));
        s->max_columns = n_columns;
    }
    if (n_experts > s->max_experts) {
        size_t firsts = (size_t)(n_experts + 1) * sizeof(int64_t);
        ATH_TRY(grow((void **)&s->first_column, firsts, err));
        for (int k = 0; k < 2; k++) ATH_TRY(grow((void **)&s->first_tile[k], firsts, err));
        ATH_TRY(
            grow((void **)&s->segments, (size_t)n_experts * ATH_MATMUL_WEIGHTS * sizeof *s->segments, err));
        s->max_experts = n_experts;
    }
    return ATH_OK;
}

int64_t ath_mm_max_columns(const ath_device *dev, int64_t n_experts) {
    if (n_experts == 1) return dev->max_rows;
    return dev->max_rows * 8 > n_experts ? dev->max_rows * 8 : n_experts;
}

ath_status ath_mm_scratch_reserve(ath_device *dev, const ath_weight *w, ath_error *err) {
    ath_mm_scratch *s = &dev->mm;
    ath_panel_format format = ath_device_format(dev, w->type);
    bool quantised = format != ATH_PANEL_NONE && format < ATH_PANEL_QUANTISED;
    int64_t n_columns = ath_mm_max_columns(dev, w->n_experts);
    int64_t n_padded =
        w->n_experts > 1 ? 2 * n_columns : n_columns + ATH_TILE_MAX; /* n columns: a tile below 2n wide */
    ATH_TRY(reserve_lists(s, w->n_experts, n_columns, err));
    size_t bytes = (size_t)n_padded * ath_tile_bytes(quantised, 1, w->n_in);
    if (bytes > s->act_bytes[quantised]) {
        ATH_TRY(grow((void **)&s->act[quantised], bytes, err));
        s->act_bytes[quantised] = bytes;
    }
    bytes = (size_t)w->n_in * ATH_PANEL_ROWS;
    if (quantised && dev->matmul.expand[format] && bytes > s->codes_bytes) {
        ATH_TRY(grow((void **)&s->codes, bytes * (size_t)dev->max_threads, err));
        s->codes_bytes = bytes;
    }
    if (w->panels) return ATH_OK;
    bytes = format == ATH_PANEL_NONE ? (size_t)w->n_in * (ATH_PANEL_ROWS + 1) * sizeof(float)
                                     : ath_panel_bytes(format, w->n_in);
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > s->panel_bytes) {
        ATH_TRY(grow((void **)&s->panels, bytes * (size_t)dev->max_threads, err));
        s->panel_bytes = bytes;
    }
    return ATH_OK;
}

void ath_mm_scratch_free(ath_mm_scratch *s) {
    free(s->columns);
    free(s->first_column);
    free(s->segments);
    free(s->panels);
    free(s->codes);
    for (int k = 0; k < 2; k++) {
        free(s->tiles[k]);
        free(s->first_tile[k]);
        free(s->act[k]);
    }
}
