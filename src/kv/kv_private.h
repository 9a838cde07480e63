/* Inside of the KV cache: the shape that follows from the parameters, and sequences as tables of pages.
 *
 * Everything a sequence holds is a page of one of five kinds, counted by reference and copied when a shared
 * one is to be written: the cache's own pages of full-attention and of windowed layers, the f16 tiles of one
 * page index (all encoded sides of all layers), the states of all recurrent layers after the tokens of one
 * page index, and the sinks. An entry point is then no copy: it is a flag on a page boundary that says which
 * pages are not to be given back. */
#ifndef ATH_KV_PRIVATE_H
#define ATH_KV_PRIVATE_H

#include <stdatomic.h>

#include "kv/kv.h"
#include "kv/page_pool.h"

enum {
    ATH_KV_FULL,     /* index = page index, one per 128 tokens */
    ATH_KV_WINDOWED, /* the same; given back behind the window */
    ATH_KV_RECENT,   /* f16 tiles of encoded sides, the same index; given back behind the rollback */
    ATH_KV_STATE,    /* states after the last token of a page index, or the sequence's; kept as RECENT is */
    ATH_KV_SINKS,    /* index 0 alone */
    ATH_KV_KINDS,
    ATH_KV_MAX_MARKS = 8, /* explicit entry points of a sequence; the oldest one makes room */
    ATH_KV_FEW_ROWS = 16, /* of a sequence in a batch at most, if the page that they fill is to be left pending */
    ATH_KV_MAX_STATES = 8, /* automatic entry points that keep a state */
};

enum { ATH_ENTRY_NONE, ATH_ENTRY_AUTO, ATH_ENTRY_MARK };

/* K (index 0) or V (index 1) of a layer. */
typedef struct ath_kv_side {
    ath_attn_side attn; /* layout and offset in the page of the layer's kind */
    bool encoded;
    size_t tile_at, sink_at; /* byte offsets in pages of the kinds RECENT and SINKS; encoded sides only */
    size_t scratch_at;       /* of its tile in a slot of the batch's scratch: 0, or not to be overwritten by
                                the next layer, since another one reads it as well */
} ath_kv_side;

typedef struct ath_kv_place { /* one layer; of a layer that shares: its source's */
    int kind;                 /* ATH_KV_FULL, ATH_KV_WINDOWED or ATH_KV_STATE */
    bool shared, v_in_k;      /* v_in_k: side[1] has a type and a head size, and nothing in the pages */
    int n_kv_heads;
    int64_t window;
    ath_kv_side side[2];
    size_t state_at; /* byte offset in pages of the kind STATE; recurrent layers only */
} ath_kv_place;

typedef struct ath_kv_shape {
    ath_kv_place *layers;
    int n_layers, n_seqs, entry_every;
    int64_t n_ctx, n_ubatch;
    int64_t n_pages;    /* of 128 tokens in n_ctx */
    int64_t max_window; /* of the windowed kind */
    int max_kv_heads;
    bool has_plain; /* a layer has a plain type, whose pages are read before they are full */
    size_t page_bytes[ATH_KV_KINDS]; /* 0: no such pages */
    size_t slot_bytes[2];            /* K and V: f16 tiles of a page, of one layer after the other, and of
                                        those that are shared: scratch */
} ath_kv_shape;

ath_status ath_kv_shape_init(ath_kv_shape *shape, const ath_kv_params *params, ath_error *err);
void ath_kv_shape_free(ath_kv_shape *shape);

static inline int64_t ath_kv_pages_for(int64_t n_tokens) {
    return (n_tokens + ATH_PAGE_TOKENS - 1) / ATH_PAGE_TOKENS;
}
/* Pages between the automatic entry points of a sequence of n tokens: a multiple of entry_every. */
static inline int64_t ath_kv_entry_distance(const ath_kv_shape *shape, int64_t n) {
    int64_t distance = shape->entry_every;
    if (distance == 0 || shape->page_bytes[ATH_KV_STATE] == 0) return distance;
    while (n / ATH_PAGE_TOKENS / distance > ATH_KV_MAX_STATES) distance *= 2;
    return distance;
}
/* Has a sequence of n tokens an automatic entry point at the boundary after `boundary` pages? */
static inline bool ath_kv_entry_is_due(const ath_kv_shape *shape, int64_t boundary, int64_t n) {
    int64_t distance = ath_kv_entry_distance(shape, n);
    return distance > 0 && boundary > 0 && boundary % distance == 0;
}
/* First page that a row at position n can read; and that a sequence of length n keeps, for a rollback of 128
 * tokens. */
int64_t ath_kv_first_read(const ath_kv_shape *shape, int kind, int64_t n);
int64_t ath_kv_first_kept(const ath_kv_shape *shape, int kind, int64_t n);

/* Which pages a sequence of n tokens keeps: to be asked for every page from the last down to 0. */
typedef struct ath_kv_keeper {
    const ath_kv_shape *shape;
    int kind;
    int64_t first;
} ath_kv_keeper;
static inline ath_kv_keeper ath_kv_keeper_init(const ath_kv_shape *shape, int kind, int64_t n) {
    return (ath_kv_keeper){shape, kind, ath_kv_first_kept(shape, kind, n)};
}
/* entry_after: there is an entry point at the boundary after this page. */
bool ath_kv_keeps(ath_kv_keeper *keeper, int64_t page, bool entry_after);

typedef struct ath_kv_seq {
    int64_t length;
    ath_page **page[ATH_KV_KINDS]; /* [n_pages]; NULL: not there */
    uint8_t **mem[2]; /* page[kind][i]->mem of the kinds FULL and WINDOWED, as attention wants it */
    uint8_t *entry;   /* [n_pages + 1] ATH_ENTRY_*, by boundary */
    ath_page *replaced[ATH_KV_KINDS]; /* shared page that this batch took a copy of; back on abort */
    int64_t pending;      /* page that is full and not encoded yet (kv_encode.c), or -1 */
    int64_t pending_done; /* of its encode jobs */
} ath_kv_seq;

/* A sequence's rows that fall into one page. */
typedef struct ath_kv_segment {
    ath_kv_seq *seq;
    int64_t page;
    int64_t row0, n_rows; /* of the batch */
    int at;               /* token of the first row inside the page */
    int64_t
        scratch; /* index of its scratch tile, or -1: it has a page of the kind RECENT (or needs no tile) */
    bool defers; /* it fills its page, whose encoding will be pending */
} ath_kv_segment;

typedef struct ath_kv_part { /* a sequence in the batch */
    ath_kv_seq *seq;
    int64_t n_rows;
    int64_t first_segment;
} ath_kv_part;

typedef struct ath_kv_batch {
    bool open;
    int64_t n_rows;
    ath_kv_part *parts; /* [n_seqs] */
    int n_parts;
    ath_kv_segment *segments; /* [n_ubatch/128 + 2 n_seqs] */
    int64_t n_segments;
    ath_encode_job *jobs; /* [max_jobs] */
    int64_t max_jobs;
    ath_attn_seq *attn;         /* [n_seqs] */
    ath_state_seq *states;      /* [n_seqs] */
    ath_state_run *runs;        /* of all sequences, one per segment at most */
    const uint16_t **recent[2]; /* tile pointers that attn points into */
    uint8_t *scratch[2];        /* tiles of pages that lie within the chunk and are read in it alone */
    _Atomic uint64_t n_saturated, n_bad;
    uint64_t n_bad_layer; /* of the first layer that had any */
    int bad_layer;        /* -1: none */
} ath_kv_batch;

struct ath_kv {
    ath_device *device;
    ath_kv_shape shape;
    ath_page_pool pool[ATH_KV_KINDS];
    ath_kv_seq *seqs;
    void *tables; /* memory of all sequences' tables */
    ath_kv_batch batch;
    ath_attn_counters *counters; /* [n_layers] */
    uint64_t saturated;
    ath_kv_work work;
    size_t bytes_scratch;
    ath_kv_loss *losses; /* [n_layers][max_kv_heads][2]; NULL: not measured */
    float *decoded;      /* a page of one head, while it is measured */
};

/* Entries of a sequence's table of that kind. */
static inline int64_t ath_kv_table_size(const ath_kv *kv, int kind) {
    return kind == ATH_KV_SINKS ? 1 : kv->shape.n_pages;
}
/* Puts page (may be NULL) into the table; references are the caller's. */
void ath_kv_set_page(ath_kv_seq *seq, int kind, int64_t index, ath_page *page);
/* Lets the page go, if there is one. */
void ath_kv_drop_page(ath_kv *kv, ath_kv_seq *seq, int kind, int64_t index);
/* Lets go what lies wholly behind n tokens. */
void ath_kv_drop_tail(ath_kv *kv, ath_kv_seq *seq, int64_t n);
/* Lets go what a sequence of this length doesn't keep. */
void ath_kv_sweep(ath_kv *kv, ath_kv_seq *seq);

/* Is everything there that rows at n <= length and later read? */
bool ath_kv_can_enter(const ath_kv *kv, const ath_kv_seq *seq, int64_t n);

/* Batch arrays; freed by ath_kv_free, also after a failure. */
ath_status ath_kv_batch_init(ath_kv *kv, ath_error *err);
void ath_kv_batch_free(ath_kv *kv);

/* The f16 tile of a segment's page, of all heads of one side of a layer. */
uint16_t *ath_kv_tile_of(const ath_kv *kv, const ath_kv_segment *segment, const ath_kv_place *place,
                         int is_value);

/* Encoding. What the batch's sequences owe of pending pages by its end (when it begins); all that is pending of a
 * sequence (before its pages are shared or looked at from outside); the pages of a layer that the batch fills but for
 * those that are left pending, and of plain types those that it does not fill (after its rows were stored). */
void ath_kv_encode_due(ath_kv *kv);
void ath_kv_encode_rest(ath_kv *kv, ath_kv_seq *seq);
void ath_kv_encode_now(ath_kv *kv, int layer);

/* Adds what the first n encode jobs of the batch lost. */
void ath_kv_measure_jobs(ath_kv *kv, int layer, int64_t n_jobs);
void ath_kv_measure_free(ath_kv *kv);

#endif
