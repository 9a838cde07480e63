/* The cache: sequences of tokens, their pages, and the few places where a sequence can be entered.
 *
 * One pool of pages per layer kind (full attention; sliding window). A page of a kind holds 128 tokens of all
 * layers of that kind, K and V, each with its own type and head size. Pages are taken from the pool when
 * tokens arrive, counted by reference, shared between sequences with the same prefix, and given back by
 * windowed layers once no position in reach (window plus 128 tokens of rollback) lies in them. Encoded types
 * keep three f16 pages per sequence: own, previous, and the one before, which makes a rollback of up to 128
 * tokens exact. Layers whose window is 129 or less are stored as f16. Plain types (kv_page.h) keep the same f16
 * pages, only to encode their last page again whenever it gets tokens; nothing reads them.
 *
 * Recurrent layers have a state instead, of one size at any length. A sequence keeps its present state and
 * those at the page boundaries that a rollback of 128 tokens goes back to: it lands on a boundary, and at most
 * 255 tokens are evaluated again. A batch writes new states and leaves the old ones until it is committed, so
 * a sequence has up to three states, and one more in the making.
 *
 * Entry points: a sequence can be forked or cut only at a page boundary where the f16 rows of the page before
 * it and the sinks were stored (or at 0, or within the last 128 tokens): anything else goes back to the
 * nearest one. With recurrent layers the state there is stored too, and since states are large, automatic
 * entry points are thinned out as a sequence grows: their distance doubles before there are more than 8.
 *
 * Not thread-safe: one thread drives a cache; the device's threads do the work inside. */
#ifndef ATH_KV_H
#define ATH_KV_H

#include "device/device.h"

typedef struct ath_kv ath_kv;

/* Where a layer's K and V are. */
typedef enum ath_kv_store {
    ATH_KV_OWN,    /* in pages of its own */
    ATH_KV_SHARED, /* it reads those of an earlier layer with the same heads and window: nothing is appended
                      to it */
    ATH_KV_RECURRENT, /* nowhere: it has a state */
} ath_kv_store;

typedef struct ath_kv_layer {
    int n_kv_heads; /* this and the next five are not looked at in a recurrent layer */
    int head_dim_k, head_dim_v;
    int64_t window;             /* 0: full attention */
    ath_kv_type type_k, type_v; /* wanted; ath_kv_effective_* tells what is stored */
    ath_kv_store store;
    int source;      /* SHARED: that layer, whose types are the ones that count */
    int64_t n_state; /* RECURRENT: float32 values of a state */
} ath_kv_layer;

typedef struct ath_kv_params {
    const ath_kv_layer *layers; /* [n_layers], copied */
    int n_layers;
    int64_t n_ctx;    /* tokens per sequence at most */
    int n_seqs;       /* sequences */
    int64_t n_ubatch; /* rows of a batch at most */
    int entry_every;  /* pages between automatic entry points; 0: only explicit ones */
    bool swa_full;    /* windowed layers keep all pages */
} ath_kv_params;

/* Figures for people and tests. Bytes per token: closed pages. */
typedef struct ath_kv_plan {
    double bytes_per_token;     /* of full-attention layers: what grows with context */
    double bytes_per_token_f16; /* the same layers in f16 */
    size_t bytes_pages;         /* pages of one sequence at n tokens */
    size_t bytes_recent;        /* up to three f16 pages, and sinks, of one sequence */
    size_t bytes_state;         /* recurrent states of one sequence, and the one that a batch writes */
    size_t bytes_entries; /* kept for automatic entry points alone: f16 pages, pages behind windows, states */
} ath_kv_plan;

/* Memory that one sequence of n tokens will take. Needs no cache. */
ath_status ath_kv_plan_init(ath_kv_plan *plan, const ath_kv_params *params, int64_t n_tokens, ath_error *err);

ath_status ath_kv_create(ath_kv **out, ath_device *dev, const ath_kv_params *params, ath_error *err);
void ath_kv_free(ath_kv *kv);

/* What is stored when a layer of this window is wanted in type: windows of 129 or less never leave the two
 * f16 pages that every query reads, so their encoded types become f16. */
static inline ath_kv_type ath_kv_stored_type(ath_kv_type type, int64_t window) {
    return window > 0 && window <= ATH_PAGE_TOKENS + 1 && ath_kv_type_has_page_data(type) ? ATH_KV_F16 : type;
}

/* The types that are stored (see ath_kv_stored_type); ATH_KV_TYPE_COUNT for recurrent layers. */
ath_kv_type ath_kv_effective_k(const ath_kv *kv, int layer);
ath_kv_type ath_kv_effective_v(const ath_kv *kv, int layer);

/* ---- one batch: begin, then append and attend per layer in order, then commit (or abort) */
typedef struct ath_kv_rows {
    int seq;
    int64_t n_rows; /* appended after the sequence's present tokens */
} ath_kv_rows;
/* Takes the pages that are needed. ATH_ERR_CONTEXT or ATH_ERR_NOMEM leave everything as it was. Rows of the
 * batch are those of seqs[0], then seqs[1] ...; a sequence appears once. */
ath_status ath_kv_begin(ath_kv *kv, const ath_kv_rows *seqs, int n_seqs, ath_error *err);
/* k [rows][n_kv_heads*head_dim_k], v likewise, after rope. Stores them and encodes the pages that became
 * full. */
void ath_kv_append(ath_kv *kv, int layer, const float *k, const float *v);
/* args: scale, softcap, sink_logits, n_heads, q and out are the caller's; the rest is filled here. */
void ath_kv_attend(ath_kv *kv, int layer, ath_attn_args *args);
/* The states of a recurrent layer: *seqs, valid until the next call, has an entry for each sequence of the batch.
 * All of every `to` must be written before commit. Returns the number of entries. */
int ath_kv_states(ath_kv *kv, int layer, const ath_state_seq **seqs);
/* Values that go into no page, [rows of the batch][n]: their NaNs and infinities count as those of K and V do. */
void ath_kv_check_finite(ath_kv *kv, int layer, const float *x, int64_t n);
/* Ends the batch. If there was NaN or infinity: ATH_ERR_FORMAT names the layer, and the batch is undone. */
ath_status ath_kv_commit(ath_kv *kv, ath_error *err);
void ath_kv_abort(ath_kv *kv); /* undoes begin */

/* ---- sequences. Not between begin and the batch's end. seq: 0 .. n_seqs - 1; these functions allocate
 * nothing and can't fail. */
int64_t ath_kv_length(const ath_kv *kv, int seq);
/* Keeps the first n tokens at most: exact within the last 128 tokens (with recurrent layers: at the page boundary
 * before n), else goes back to the nearest entry point. Returns the new length (<= n): the caller evaluates again
 * what is missing. */
int64_t ath_kv_truncate(ath_kv *kv, int seq, int64_t n);
/* Where ath_kv_fork(dst, src, n) would land, without doing it. */
int64_t ath_kv_entry_before(const ath_kv *kv, int seq, int64_t n);
/* dst (emptied first) shares src's pages up to the nearest entry point <= n and starts there. Returns its
 * length. */
int64_t ath_kv_fork(ath_kv *kv, int dst, int src, int64_t n);
/* Keeps an entry point at the last page boundary (end of a prompt or a turn). Of a sequence's marks the
 * latest 8 are kept. ATH_ERR_ARGUMENT: no such sequence. */
ath_status ath_kv_mark_entry(ath_kv *kv, int seq, ath_error *err);
void ath_kv_clear(ath_kv *kv, int seq);

/* ---- a sequence as bytes: what is in its tables, for a cache of the same shape (kv_save.c) */
size_t ath_kv_save_size(const ath_kv *kv, int seq);
void ath_kv_save(const ath_kv *kv, int seq, uint8_t *out); /* out [ath_kv_save_size] */
/* In place of what the sequence holds. Refuses, with the reason, bytes that are damaged or of another shape, and
 * a sequence that is longer than n_ctx; the sequence is empty then. */
ath_status ath_kv_load(ath_kv *kv, int seq, const uint8_t *in, size_t size, ath_error *err);

/* ---- statistics */
typedef struct ath_kv_stats {
    size_t bytes_pages, bytes_recent, bytes_state, bytes_entries, bytes_scratch; /* now; shared pages count once */
    int64_t pages_in_use[2], pages_shared[2];                       /* full, windowed */
    uint64_t saturated; /* values outside +-65504 that were clamped */
} ath_kv_stats;
void ath_kv_get_stats(const ath_kv *kv, ath_kv_stats *stats);
const ath_attn_counters *ath_kv_counters(const ath_kv *kv, int layer); /* since creation or reset */
void ath_kv_reset_counters(ath_kv *kv);

/* ---- what encoding loses: sums of squares over the pages that were encoded since ath_kv_measure */
typedef struct ath_kv_loss {
    double error2, norm2; /* decoded - f16 value; f16 value */
    int64_t n;            /* vectors */
} ath_kv_loss;
ath_status ath_kv_measure(ath_kv *kv, ath_error *err);
/* side: 0 K, 1 V. Zeros for what isn't encoded, isn't measured or doesn't exist. */
ath_kv_loss ath_kv_loss_of(const ath_kv *kv, int layer, int head, int side);

#endif
