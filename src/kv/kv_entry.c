/* Sequences as tables of pages: what is let go when, where a sequence can be entered, and forks. */
#include <string.h>

#include "kv/kv_private.h"

/* ---- tables */
void ath_kv_set_page(ath_kv_seq *seq, int kind, int64_t index, ath_page *page) {
    seq->page[kind][index] = page;
    if (kind <= ATH_KV_WINDOWED) seq->mem[kind][index] = page ? page->mem : NULL;
}

void ath_kv_drop_page(ath_kv *kv, ath_kv_seq *seq, int kind, int64_t index) {
    if (!seq->page[kind][index]) return;
    ath_page_unref(&kv->pool[kind], seq->page[kind][index]);
    ath_kv_set_page(seq, kind, index, NULL);
}

void ath_kv_drop_tail(ath_kv *kv, ath_kv_seq *seq, int64_t n) {
    for (int kind = 0; kind < ATH_KV_KINDS; kind++)
        for (int64_t i = ath_kv_pages_for(n); i < ath_kv_table_size(kv, kind); i++)
            ath_kv_drop_page(kv, seq, kind, i);
}

void ath_kv_sweep(ath_kv *kv, ath_kv_seq *seq) {
    for (int kind = ATH_KV_WINDOWED; kind <= ATH_KV_STATE; kind++) {
        ath_kv_keeper keeper = ath_kv_keeper_init(&kv->shape, kind, seq->length);
        for (int64_t i = ath_kv_pages_for(seq->length) - 1; i >= 0; i--)
            if (!ath_kv_keeps(&keeper, i, seq->entry[i + 1])) ath_kv_drop_page(kv, seq, kind, i);
    }
}

/* ---- where a sequence can be entered */
/* Is everything there that rows at n and later read? A state is that of a page's end, or of the sequence's. */
bool ath_kv_can_enter(const ath_kv *kv, const ath_kv_seq *seq, int64_t n) {
    bool state_at_end = n == seq->length || n % ATH_PAGE_TOKENS == 0;
    if (kv->shape.page_bytes[ATH_KV_STATE] > 0 && !state_at_end) return false;
    for (int kind = 0; kind < ATH_KV_SINKS; kind++) {
        if (kv->shape.page_bytes[kind] == 0) continue;
        for (int64_t i = ath_kv_first_read(&kv->shape, kind, n); i < ath_kv_pages_for(n); i++)
            if (!seq->page[kind][i]) return false;
    }
    return true;
}

int64_t ath_kv_entry_before(const ath_kv *kv, int seq_index, int64_t n) {
    const ath_kv_seq *seq = &kv->seqs[seq_index];
    if (n > seq->length) n = seq->length;
    if (n <= 0) return 0;
    while (n > 0 && !ath_kv_can_enter(kv, seq, n)) n = (n - 1) / ATH_PAGE_TOKENS * ATH_PAGE_TOKENS;
    return n;
}

/* What was kept for a longer sequence, or for entry points behind n, and lies before n is kept at n as well:
 * nothing to sweep, here or in a fork. */
static void cut(ath_kv *kv, ath_kv_seq *seq, int64_t n) {
    ath_kv_drop_tail(kv, seq, n);
    memset(seq->entry + n / ATH_PAGE_TOKENS + 1, ATH_ENTRY_NONE,
           (size_t)(kv->shape.n_pages - n / ATH_PAGE_TOKENS));
    if (n < (seq->pending + 1) * ATH_PAGE_TOKENS) seq->pending = -1; /* that page is no longer full */
    seq->length = n;
}

int64_t ath_kv_length(const ath_kv *kv, int seq) {
    return kv->seqs[seq].length;
}

int64_t ath_kv_truncate(ath_kv *kv, int seq, int64_t n) {
    if (n >= kv->seqs[seq].length) return kv->seqs[seq].length;
    n = ath_kv_entry_before(kv, seq, n);
    cut(kv, &kv->seqs[seq], n);
    return n;
}

void ath_kv_clear(ath_kv *kv, int seq) {
    cut(kv, &kv->seqs[seq], 0);
}

int64_t ath_kv_fork(ath_kv *kv, int dst_index, int src_index, int64_t n) {
    if (dst_index == src_index) return ath_kv_truncate(kv, src_index, n);
    ath_kv_seq *dst = &kv->seqs[dst_index];
    ath_kv_seq *src = &kv->seqs[src_index];
    ath_kv_encode_rest(kv, src);
    ath_kv_clear(kv, dst_index);
    n = ath_kv_entry_before(kv, src_index, n);
    for (int kind = 0; kind < ATH_KV_KINDS; kind++)
        for (int64_t i = 0; i < ath_kv_pages_for(n) && i < ath_kv_table_size(kv, kind); i++)
            if (src->page[kind][i])
                ath_kv_set_page(dst, kind, i, ath_page_ref(&kv->pool[kind], src->page[kind][i]));
    memcpy(dst->entry, src->entry, (size_t)(n / ATH_PAGE_TOKENS + 1));
    dst->length = n;
    return n;
}

ath_status ath_kv_mark_entry(ath_kv *kv, int seq_index, ath_error *err) {
    if (seq_index < 0 || seq_index >= kv->shape.n_seqs)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "there is no sequence %d", seq_index);
    ath_kv_seq *seq = &kv->seqs[seq_index];
    int64_t boundary =
        ath_kv_entry_before(kv, seq_index, seq->length / ATH_PAGE_TOKENS * ATH_PAGE_TOKENS) / ATH_PAGE_TOKENS;
    if (boundary == 0 || seq->entry[boundary] == ATH_ENTRY_MARK) return ATH_OK;
    seq->entry[boundary] = ATH_ENTRY_MARK;
    int n_marks = 0;
    for (int64_t i = boundary; i > 0; i--) {
        if (seq->entry[i] != ATH_ENTRY_MARK || ++n_marks <= ATH_KV_MAX_MARKS) continue;
        seq->entry[i] = ath_kv_entry_is_due(&kv->shape, i, seq->length) ? ATH_ENTRY_AUTO : ATH_ENTRY_NONE;
        ath_kv_sweep(kv, seq);
    }
    return ATH_OK;
}
