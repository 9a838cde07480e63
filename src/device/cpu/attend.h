/* The CPU's attention: what its decode and prefill paths share.
 *
 * Both walk the pages that a row sees in ascending order with an online softmax. The pages up to the row's
 * own one are cut into splits that depend on the row's page and the window alone; each split is computed by
 * itself and merged in order. So decode can give splits to threads, prefill computes the same sums, and
 * neither depends on the batch. */
#ifndef ATH_DEVICE_CPU_ATTEND_H
#define ATH_DEVICE_CPU_ATTEND_H

#include "device/cpu/cpu_device.h"

enum {
    ATH_ATTN_HEADS = 16,               /* query heads of one kv head that a task takes at most */
    ATH_ATTN_VECTORS = 256,            /* query vectors (rows x heads) of a prefill task at most */
    ATH_ATTN_BLOCK = 12,               /* of them at a time against a page */
    ATH_ATTN_SPLITS = 32,              /* splits of the pages at most */
    ATH_ATTN_MIN_SPLIT = 8,            /* pages of a split at least */
    ATH_ATTN_PARTIAL_FLOATS = 1 << 21, /* enough for one task's 16 heads, 32 splits, 2 x 1024 accumulators */
};

/* Working memory of a thread: the same size for every context and model. What is not used of it is never
 * touched. */
typedef struct ath_attn_worker {
    _Alignas(64) float k_tile[ATH_MAX_HEAD_DIM * ATH_PAGE_TOKENS];
    _Alignas(64) float v_tile[ATH_MAX_HEAD_DIM * ATH_PAGE_TOKENS];
    _Alignas(64) float q[ATH_ATTN_VECTORS * ATH_MAX_HEAD_DIM];
    _Alignas(64) float acc[ATH_ATTN_VECTORS * ATH_MAX_HEAD_DIM];
    _Alignas(64) float scores[ATH_MATRIX_ROWS * ATH_PAGE_TOKENS];
    _Alignas(64) float sink_scores[ATH_ATTN_HEADS * ATH_PAGE_TOKENS];
    _Alignas(64) ath_turbo_query turbo[ATH_ATTN_HEADS];
    struct { /* packed for matrix products */
        _Alignas(64) uint32_t q[ATH_ATTN_VECTORS * ATH_MAX_HEAD_DIM * ATH_SCORE_PARTS / 2];
        _Alignas(64) uint32_t k[ATH_MAX_HEAD_DIM * ATH_PAGE_TOKENS * ATH_SCORE_PARTS / 2];
        _Alignas(64) uint32_t weights[ATH_MATRIX_ROWS * ATH_PAGE_TOKENS * ATH_VALUE_PARTS / 2];
        _Alignas(64) uint32_t v[ATH_MAX_HEAD_DIM * ATH_PAGE_TOKENS * ATH_VALUE_PARTS / 2];
    } packed;
} ath_attn_worker;

struct ath_attn_scratch {
    ath_attn_worker *workers; /* [threads] */
    float *partials;          /* results of decode's splits until they are merged */
};

void ath_attn_decode(ath_device *dev, const ath_attn_args *args);
void ath_attn_prefill(ath_device *dev, const ath_attn_args *args, const ath_attn_seq *seq);

/* One online softmax. */
typedef struct ath_attn_state {
    float max, sum; /* sum 0: nothing seen yet */
} ath_attn_state;

/* The splits of all rows whose own page is `own`: split s is pages first + s * per_split, up to own. */
typedef struct ath_attn_range {
    int64_t first, own, per_split;
} ath_attn_range;
ath_attn_range ath_attn_range_of(int64_t own, int64_t window);

/* First position that a row at pos sees. */
static inline int64_t ath_attn_first_visible(int64_t pos, int64_t window) {
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* One side of one kv head on one page, in the form that rows of page `own` read. */
typedef struct ath_attn_view {
    const ath_kv_layout *layout;
    ath_kv_type type; /* raw: data is a plain tile; else an encoded page */
    const uint8_t *data;
    const uint16_t *sinks; /* f16 [4][head_dim] instead of the first 4 tokens, or NULL */
} ath_attn_view;
ath_attn_view ath_attn_view_of(const ath_attn_args *args, const ath_attn_seq *seq, bool key, int kv_head,
                               int64_t page, int64_t own);
/* The view as an f32 tile: expanded into tile, or the page's own memory. */
const float *ath_attn_tile(const ath_attn_kernels *k, const ath_attn_view *view, float *tile);
/* V's tile where V is the first channels of K: out[token][channel] = k_tile[channel][token]. */
void ath_attn_transpose(const float *k_tile, int n_channels, float *out);
/* Are sums over this V taken in the rotated domain? */
static inline bool ath_attn_rotates_v(const ath_attn_args *args) {
    return ath_kv_type_has_page_data(args->v.layout.type) && !args->v_in_k;
}
static inline void ath_attn_accumulate(const ath_attn_kernels *k, ath_kv_type type, const void *tile,
                                       int head_dim, int lo, int hi, const float *weights, int n,
                                       float *acc) {
    (head_dim % 16 ? k->accumulate_any : k->accumulate)[type](tile, head_dim, lo, hi, weights, n, acc);
}
/* K sinks into the first columns of a K tile. */
void ath_attn_sinks_to_tile(const uint16_t *sinks, int head_dim, float *tile);

/* total += part, over n accumulators. */
void ath_attn_merge(ath_attn_state *total, float *total_acc, ath_attn_state part, const float *part_acc,
                    int64_t n);
/* acc = acc / sum, with the head's sink logit in the denominator. */
void ath_attn_finish(const ath_attn_args *args, int head, ath_attn_state state, float *acc);

static inline void ath_attn_scale(float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

#endif
