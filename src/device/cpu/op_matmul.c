/* Matrix products: activations into tiles, then panels x tiles as tasks.
 *
 * A plain product is a mixture with one expert: columns are grouped by expert, and each expert's panels meet
 * its own tiles. How the work is cut depends on shapes and thread counts, the bits of a result never do. */
#include <string.h>

#include "device/cpu/cpu_device.h"

typedef struct matmul_run {
    ath_device *dev;
    const ath_weight *const *w;
    float *const *out;
    int n_w;
    int64_t n_experts;
    int64_t n_tiles[2];
    int64_t n_segments, n_tasks;
} matmul_run;

/* The format that w is multiplied in: its own, or F32 for types that are expanded. */
static ath_panel_format run_format(const ath_device *dev, const ath_weight *w) {
    ath_panel_format format = ath_device_format(dev, w->type);
    return format == ATH_PANEL_NONE ? ATH_PANEL_F32 : format;
}

static bool is_quantised(const ath_device *dev, const ath_weight *w) {
    return run_format(dev, w) < ATH_PANEL_QUANTISED;
}

/* Cuts each expert's columns into tiles of one kind. */
static void make_tiles(matmul_run *r, bool quantised) {
    ath_mm_scratch *s = &r->dev->mm;
    int64_t n = 0, most = r->dev->matmul.columns[quantised];
    size_t at = 0;
    for (int64_t e = 0; e < r->n_experts; e++) {
        s->first_tile[quantised][e] = n;
        for (int64_t c = s->first_column[e]; c < s->first_column[e + 1]; c += most) {
            int64_t left = s->first_column[e + 1] - c;
            int n_columns = (int)(left < most ? left : most), width = ath_tile_width(n_columns);
            s->tiles[quantised][n++] = (ath_mm_tile){c, n_columns, width, at};
            at += ath_tile_bytes(quantised, width, r->w[0]->n_in);
        }
    }
    s->first_tile[quantised][r->n_experts] = n;
    r->n_tiles[quantised] = n;
}

static void fill_task(void *arg, int64_t task, int thread) {
    (void)thread;
    matmul_run *r = arg;
    ath_mm_scratch *s = &r->dev->mm;
    bool quantised = task >= r->n_tiles[0];
    const ath_mm_tile *tile = &s->tiles[quantised][quantised ? task - r->n_tiles[0] : task];
    const float *rows[ATH_TILE_MAX];
    for (int c = 0; c < tile->n; c++) rows[c] = s->columns[tile->column + c].x;
    ath_act_fn fill = quantised ? r->dev->matmul.quantise : r->dev->matmul.interleave;
    fill(rows, tile->n, tile->width, r->w[0]->n_in, s->act[quantised] + tile->act_at);
}

/* Tasks of about a million products, at least four per thread where there are so many; tiles of a task stay
 * in the L2 cache. */
static void add_segment(matmul_run *r, int weight, int64_t expert) {
    enum { WORK = 1 << 20, TILE_BYTES = 512 << 10 };
    ath_mm_scratch *s = &r->dev->mm;
    const ath_weight *w = r->w[weight];
    bool quantised = is_quantised(r->dev, w);
    int64_t n_tiles = s->first_tile[quantised][expert + 1] - s->first_tile[quantised][expert];
    if (n_tiles == 0) return;
    int64_t n_panels = ath_weight_panels(w), width = r->dev->matmul.columns[quantised];
    int64_t tile_step = TILE_BYTES / (int64_t)ath_tile_bytes(quantised, (int)width, w->n_in);
    if (tile_step < 1) tile_step = 1;
    if (tile_step > n_tiles || !w->panels) tile_step = n_tiles;
    int64_t share =
        (n_panels * r->n_w + 4 * ath_threads_count(r->dev->pool) - 1) / (4 * ath_threads_count(r->dev->pool));
    int64_t panel_step = WORK / (w->n_in * ATH_PANEL_ROWS * tile_step * width);
    if (panel_step > share) panel_step = share;
    if (panel_step > n_panels) panel_step = n_panels;
    if (panel_step < 1) panel_step = 1;
    int64_t n_tile_steps = (n_tiles + tile_step - 1) / tile_step;
    s->segments[r->n_segments++] =
        (ath_mm_segment){r->n_tasks, expert, panel_step, tile_step, n_tile_steps, weight};
    r->n_tasks += (n_panels + panel_step - 1) / panel_step * n_tile_steps;
}

/* The panel, made in the thread's scratch if the weight is not repacked. */
static const uint8_t *get_panel(const matmul_run *r, const ath_weight *w, int64_t expert, int64_t index,
                                int thread) {
    ath_panel_format format = ath_device_format(r->dev, w->type);
    if (w->panels)
        return w->panels + (size_t)(expert * ath_weight_panels(w) + index) * ath_panel_bytes(format, w->n_in);
    int64_t row = index * ATH_PANEL_ROWS, left = w->n_out - row;
    int n_rows = left < ATH_PANEL_ROWS ? (int)left : ATH_PANEL_ROWS;
    const uint8_t *rows = ath_weight_rows(w, expert, row);
    uint8_t *panel = r->dev->mm.panels + (size_t)thread * r->dev->mm.panel_bytes;
    if (format != ATH_PANEL_NONE) {
        ath_panel_pack(format, rows, w->row_bytes, n_rows, w->n_in, panel);
    } else {
        float *floats = (float *)panel;
        ath_panel_expand(w->type, rows, w->row_bytes, n_rows, w->n_in, floats,
                         floats + w->n_in * ATH_PANEL_ROWS);
    }
    return panel;
}

/* The widest tiles come first, so the first one says whether there are any. */
static void run_panel(const matmul_run *r, const ath_mm_segment *seg, int64_t index, int64_t tile0,
                      int64_t tile1, int thread) {
    const ath_mm_scratch *s = &r->dev->mm;
    const ath_weight *w = r->w[seg->weight];
    const ath_matmul_kernels *k = &r->dev->matmul;
    const uint8_t *panel = get_panel(r, w, seg->expert, index, thread);
    ath_panel_format format = run_format(r->dev, w);
    bool quantised = format < ATH_PANEL_QUANTISED;
    bool expanded = quantised && k->expand[format] && s->tiles[1][tile0].width == k->columns[1];
    uint8_t *codes = expanded ? s->codes + (size_t)thread * s->codes_bytes : NULL;
    if (expanded) k->expand[format](panel, w->n_in, codes);
    if (expanded && k->enter) k->enter();
    int64_t row = index * ATH_PANEL_ROWS, left = w->n_out - row;
    for (int64_t i = tile0; i < tile1; i++) {
        const ath_mm_tile *tile = &s->tiles[quantised][i];
        float *out[ATH_TILE_MAX];
        for (int c = 0; c < tile->n; c++)
            out[c] = r->out[seg->weight] + s->columns[tile->column + c].row * w->n_out + row;
        ath_matmul_tile job = {.format = format,
                               .panel = panel,
                               .codes = codes,
                               .act = s->act[quantised] + tile->act_at,
                               .out = out,
                               .n_in = w->n_in,
                               .width = tile->width,
                               .n_cols = tile->n,
                               .n_rows = left < ATH_PANEL_ROWS ? (int)left : ATH_PANEL_ROWS};
        bool wide = expanded && tile->width == k->columns[1];
        (wide ? k->wide[format] : k->tile[format][ath_tile_width_log2(tile->width)])(&job);
    }
    if (expanded && k->leave) k->leave();
}

static void product_task(void *arg, int64_t task, int thread) {
    const matmul_run *r = arg;
    const ath_mm_scratch *s = &r->dev->mm;
    int64_t lo = 0, hi = r->n_segments; /* the last segment with task0 <= task */
    while (hi - lo > 1) {
        int64_t middle = (lo + hi) / 2;
        if (s->segments[middle].task0 <= task)
            lo = middle;
        else
            hi = middle;
    }
    const ath_mm_segment *seg = &s->segments[lo];
    const ath_weight *w = r->w[seg->weight];
    const int64_t *first_tile = s->first_tile[is_quantised(r->dev, w)] + seg->expert;
    int64_t piece = task - seg->task0;
    int64_t tile0 = first_tile[0] + piece % seg->n_tile_steps * seg->tile_step,
            tile1 = tile0 + seg->tile_step;
    if (tile1 > first_tile[1]) tile1 = first_tile[1];
    int64_t panel0 = piece / seg->n_tile_steps * seg->panel_step, panel1 = panel0 + seg->panel_step;
    if (panel1 > ath_weight_panels(w)) panel1 = ath_weight_panels(w);
    for (int64_t p = panel0; p < panel1; p++) run_panel(r, seg, p, tile0, tile1, thread);
}

/* Columns are in place, grouped by first_column. */
static void run_columns(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w,
                        int64_t n_experts) {
    matmul_run r = {.dev = dev, .w = w, .out = out, .n_w = n_w, .n_experts = n_experts};
    bool wanted[2] = {false, false};
    for (int i = 0; i < n_w; i++) wanted[is_quantised(dev, w[i])] = true;
    for (int k = 0; k < 2; k++) {
        if (wanted[k]) make_tiles(&r, k);
    }
    ath_threads_run(dev->pool, fill_task, &r, r.n_tiles[0] + r.n_tiles[1]);
    for (int i = 0; i < n_w; i++) {
        for (int64_t e = 0; e < n_experts; e++) add_segment(&r, i, e);
    }
    ath_threads_run(dev->pool, product_task, &r, r.n_tasks);
}

typedef struct scale_run {
    float *out;
    const float *scale;
    const int32_t *expert; /* of each row of out; NULL: all 0 */
    int64_t n;
} scale_run;

static void scale_range(void *arg, int64_t begin, int64_t end) {
    const scale_run *r = arg;
    for (int64_t row = begin; row < end; row++) {
        float scale = r->scale[r->expert ? r->expert[row] : 0];
        for (int64_t i = 0; i < r->n; i++) r->out[row * r->n + i] *= scale;
    }
}

/* What scales of whole matrices do to their products. */
static void apply_scales(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w,
                         const int32_t *expert, int64_t rows) {
    for (int i = 0; i < n_w; i++) {
        scale_run r = {out[i], w[i]->scale, expert, w[i]->n_out};
        if (r.scale) ath_parallel_ranges(dev, scale_range, &r, rows, r.n / 4);
    }
}

static void matmul_part(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w,
                        const float *x, int64_t row0, int64_t n_rows) {
    ath_mm_scratch *s = &dev->mm;
    for (int64_t i = 0; i < n_rows; i++)
        s->columns[i] = (ath_mm_column){x + (row0 + i) * w[0]->n_in, row0 + i};
    s->first_column[0] = 0;
    s->first_column[1] = n_rows;
    run_columns(dev, w, out, n_w, 1);
}

void ath_op_matmul(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w, const float *x,
                   int64_t rows) {
    for (int i = 0; i < n_w; i += ATH_MATMUL_WEIGHTS) {
        int n = n_w - i < ATH_MATMUL_WEIGHTS ? n_w - i : ATH_MATMUL_WEIGHTS;
        for (int64_t row = 0; row < rows; row += dev->max_rows) {
            int64_t left = rows - row;
            matmul_part(dev, w + i, out + i, n, x, row, left < dev->max_rows ? left : dev->max_rows);
        }
    }
    apply_scales(dev, w, out, n_w, NULL, rows);
    for (int i = 0; i < n_w; i++) ath_add_adapters(dev, w[i], out[i], x, 1, NULL, 1, rows);
}

/* Counting sort of the pairs of n_rows rows by expert, in row order within an expert. */
static void group_pairs(ath_mm_scratch *s, const float *x, int x_slots, int64_t n_in, const int32_t *expert,
                        int n_used, int64_t row0, int64_t n_rows, int64_t n_experts) {
    int64_t *first = s->first_column, pair0 = row0 * n_used, pair1 = (row0 + n_rows) * n_used;
    memset(first, 0, (size_t)(n_experts + 1) * sizeof *first);
    for (int64_t p = pair0; p < pair1; p++) first[expert[p] + 1]++;
    for (int64_t e = 0; e < n_experts; e++) first[e + 1] += first[e];
    for (int64_t p = pair0; p < pair1; p++) {
        int64_t slot = x_slots > 1 ? p % n_used : 0;
        s->columns[first[expert[p]]++] = (ath_mm_column){x + (p / n_used * x_slots + slot) * n_in, p};
    }
    memmove(first + 1, first, (size_t)n_experts * sizeof *first); /* each start had become the next one's */
    first[0] = 0;
}

void ath_op_matmul_experts(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w,
                           const float *x, int x_slots, const int32_t *expert, int n_used, int64_t rows) {
    int64_t n_experts = w[0]->n_experts, step = ath_mm_max_columns(dev, n_experts) / n_used;
    for (int i = 0; i < n_w; i += ATH_MATMUL_WEIGHTS) {
        int n = n_w - i < ATH_MATMUL_WEIGHTS ? n_w - i : ATH_MATMUL_WEIGHTS;
        for (int64_t row = 0; row < rows; row += step) {
            int64_t left = rows - row;
            group_pairs(&dev->mm, x, x_slots, w[0]->n_in, expert, n_used, row, left < step ? left : step,
                        n_experts);
            run_columns(dev, w + i, out + i, n, n_experts);
        }
    }
    apply_scales(dev, w, out, n_w, expert, rows * n_used);
    for (int i = 0; i < n_w; i++) ath_add_adapters(dev, w[i], out[i], x, x_slots, expert, n_used, rows);
}
