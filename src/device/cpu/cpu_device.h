/* Inside of the CPU device: shared by the files of this folder, seen by nobody else. */
#ifndef ATH_DEVICE_CPU_CPU_DEVICE_H
#define ATH_DEVICE_CPU_CPU_DEVICE_H

#include "device/device.h"
#include "kernels/attention.h"
#include "kernels/delta_rule.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

/* Scratch of ath_op_attend and ath_op_encode_pages; attend.c owns it. n_threads: of the larger pool. */
typedef struct ath_attn_scratch ath_attn_scratch;
ath_status ath_attn_scratch_create(ath_attn_scratch **out, int n_threads, int64_t max_rows, ath_error *err);
void ath_attn_scratch_free(ath_attn_scratch *scratch); /* NULL is fine */

enum { ATH_ROPE_CACHES = 2, ATH_MAX_ROT = 1024, ATH_MATMUL_WEIGHTS = 8, ATH_KERNEL_NAME = 64 };

/* cos and sin of the last batch's positions: all layers of a batch ask for the same ones. */
typedef struct ath_rope_cache {
    int n_rot;
    float magnitude;
    int64_t n_rows;
    int64_t *pos;     /* [max_rows] */
    double *inv_freq; /* [ATH_MAX_ROT / 2] */
    float *cos_sin;   /* [max_rows][2][n_rot / 2] */
} ath_rope_cache;

typedef struct ath_mm_column { /* a row of x, and the row of out that it belongs to */
    const float *x;
    int64_t row;
} ath_mm_column;

typedef struct ath_mm_tile { /* columns that lie in one activation tile */
    int64_t column;
    int n, width;
    size_t act_at;
} ath_mm_tile;

/* Panels of one expert of one weight against its tiles: a run of tasks, numbered from task0. */
typedef struct ath_mm_segment {
    int64_t task0, expert, panel_step, tile_step, n_tile_steps;
    int weight;
} ath_mm_segment;

/* Scratch of the matrix products. Sized while weights are set up, so that ops allocate nothing.
 * [2]: float tiles, quantised tiles. */
typedef struct ath_mm_scratch {
    int64_t max_experts;
    int64_t max_columns; /* of columns, and of each list of tiles */
    ath_mm_column *columns;
    ath_mm_tile *tiles[2];
    int64_t *first_column;    /* [max_experts + 1] */
    int64_t *first_tile[2];   /* [max_experts + 1] */
    ath_mm_segment *segments; /* [ATH_MATMUL_WEIGHTS * max_experts] */
    uint8_t *act[2];
    size_t act_bytes[2];
    uint8_t *panels;    /* [threads]: a panel made on the fly, then a row of floats */
    size_t panel_bytes; /* of each */
    uint8_t *codes;     /* [threads]: codes of a panel, unpacked for many columns */
    size_t codes_bytes; /* of each */
} ath_mm_scratch;

typedef struct ath_weight_chunk ath_weight_chunk; /* memory that repacked weights share; weight.c */

struct ath_device {
    ath_threads *pools[2]; /* decode, prefill; the same pool if the counts are equal */
    ath_threads *pool;     /* the one in use */
    bool placed;           /* one of them has a placement: the calling thread moves with them */
    int max_threads;
    int64_t max_rows;
    uint32_t cpu_flags;
    bool exact; /* ath_device_params */
    ath_matmul_kernels matmul;
    ath_elementwise_kernels elementwise;
    ath_attn_kernels attn;
    ath_delta_fn delta_rule;
    ath_attn_scratch *attn_scratch;
    ath_mm_scratch mm;
    float *adapter_scratch; /* [adapter_floats] op_adapter.c */
    int64_t adapter_floats;
    ath_weight_chunk *chunks; /* the newest first */
    ath_rope_cache rope[ATH_ROPE_CACHES];
    int rope_next; /* cache to overwrite */
    char description[96];
    char kernel_names[ATH_TYPE_COUNT][2][ATH_KERNEL_NAME]; /* [type][repacked] */
};

/* The first byte of a row in the file's layout. */
static inline const uint8_t *ath_weight_rows(const ath_weight *w, int64_t expert, int64_t row) {
    const uint8_t *rows =
        w->experts ? w->experts[expert] : w->data + (size_t)(expert * w->n_out) * w->row_bytes;
    return rows + (size_t)row * w->row_bytes;
}

/* The panel format that weights of a type are multiplied in; ATH_PANEL_NONE: expanded to F32 panels when they are used. */
static inline ath_panel_format ath_device_format(const ath_device *dev, ath_tensor_type type) {
    ath_panel_format format = ath_panel_format_of(type);
    return dev->exact && format < ATH_PANEL_QUANTISED ? ATH_PANEL_NONE : format;
}

/* Panels of one expert. */
static inline int64_t ath_weight_panels(const ath_weight *w) {
    return (w->n_out + ATH_PANEL_ROWS - 1) / ATH_PANEL_ROWS;
}
/* Columns (rows of a batch, or pairs of a row and an expert) that scratch is made for; larger batches go in
 * parts. */
int64_t ath_mm_max_columns(const ath_device *dev, int64_t n_experts);
/* Makes the scratch of matrix products large enough for w. weight.c */
ath_status ath_mm_scratch_reserve(ath_device *dev, const ath_weight *w, ath_error *err);
void ath_mm_scratch_free(ath_mm_scratch *s);
void ath_weight_chunks_free(ath_device *dev);

/* out [rows][n_used][n_out] += what w's adapters add; arguments as in ath_op_matmul_experts, expert NULL: no experts.
 * op_adapter.c */
void ath_add_adapters(ath_device *dev, const ath_weight *w, float *out, const float *x, int x_slots,
                      const int32_t *expert, int n_used, int64_t rows);

/* fn on [begin, end) pieces of n items, so large that a piece's cost (units: about a nanosecond) pays for the
 * hand-out. */
typedef void (*ath_range_fn)(void *arg, int64_t begin, int64_t end);
void ath_parallel_ranges(ath_device *dev, ath_range_fn fn, void *arg, int64_t n, int64_t item_cost);

#endif
