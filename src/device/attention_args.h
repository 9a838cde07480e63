/* Attention over the paged KV cache: what a device gets to see of it.
 *
 * A query at position p reads its own page, the page before it and the first 4 positions (sinks) in f16, every other
 * page in the cache's own form; raw types (f32, f16, bf16) and plain ones (":plain") have one form only. Which form is read depends on positions
 * alone; the mask (causal, window) decides what is visible. K and V are independent of each other. */
#ifndef ATH_DEVICE_ATTENTION_ARGS_H
#define ATH_DEVICE_ATTENTION_ARGS_H

#include <stdint.h>

#include "codec/kv_page.h"

/* K or V of one layer inside a page's memory: head h is at page + offset + h * layout.bytes. */
typedef struct ath_attn_side {
    ath_kv_layout layout;
    size_t offset;
} ath_attn_side;

/* One sequence's rows in this batch: consecutive positions pos0 .. pos0 + n_rows - 1, rows row0 .. of q and out.
 * Every position <= the last row's is already in the pages (append comes before attend).
 * Tiles of recent pages: f16, plain shape, kv head h at + h * head_dim * 128. They are given for every page that a row
 * of this batch reads in f16; NULL arrays if that side is raw. */
typedef struct ath_attn_seq {
    int64_t row0, n_rows, pos0;
    int64_t first_page;            /* page index of pages[0]; earlier ones were given back (windows) */
    const uint8_t *const *pages;   /* page memory (all layers of a kind), up to the page of the last row */
    int64_t first_recent;          /* page index of recent_k[0], recent_v[0] */
    const uint16_t *const *recent_k;
    const uint16_t *const *recent_v;
    const uint16_t *sink_k;        /* f16 [n_kv_heads][4][head_dim]; NULL if K is raw */
    const uint16_t *sink_v;        /* the same for V */
} ath_attn_seq;

/* Visible (query row, position) pairs, per head counted once: how many were read in which form. K and V each. */
typedef struct ath_attn_counters {
    uint64_t k_compressed, k_plain; /* plain: f16 tiles, sinks, and raw types */
    uint64_t v_compressed, v_plain;
} ath_attn_counters;

typedef struct ath_attn_args {
    int n_heads, n_kv_heads;
    float scale;                 /* on q.k */
    float softcap;               /* 0: none; else cap * tanh(score / cap) */
    const float *sink_logits;    /* [n_heads] extra logits of the softmax denominator (gpt-oss); NULL: none */
    int64_t window;              /* positions visible, own included; 0: all */
    ath_attn_side k, v;          /* head_dim is in the layouts; it may differ between K and V */
    const ath_attn_seq *seqs;
    int n_seqs;
    const float *q;              /* [rows][n_heads * k.layout.head_dim], after rope */
    float *out;                  /* [rows][n_heads * v.layout.head_dim] */
    ath_attn_counters *counters; /* added to */
} ath_attn_args;

#endif
