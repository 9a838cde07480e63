/* Merging adjacent symbols, best pair first, left-most on ties: the heart of both SentencePiece (best score) and BPE
 * (lowest rank). A linked list and a heap, so that a word of 100 KB takes n log n. */
#ifndef ATH_TOKENIZER_MERGE_H
#define ATH_TOKENIZER_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ath_symbol {
    int32_t previous, next; /* -1: none */
    int32_t id;             /* of the vocabulary; negative: the text is in none */
    uint32_t start, size;   /* bytes of the text; size 0: merged into the one on the left */
} ath_symbol;

typedef struct ath_merge_candidate {
    uint64_t key; /* priority << 32 | index of the left symbol: the smallest is next */
    int32_t right, id;
    uint32_t size; /* of both together: tells a stale candidate */
} ath_merge_candidate;

typedef struct ath_merger {
    ath_symbol *symbols;
    size_t n_symbols, symbol_capacity;
    ath_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} ath_merger;

/* Whether left and right (neighbours) merge: then *priority (smaller is first) and the *id of the result. */
typedef bool (*ath_merge_fn)(const void *context, const ath_symbol *left, const ath_symbol *right,
                             uint32_t *priority, int32_t *id);

/* Starts a word with m->n_symbols = 0; adds a symbol at its end. False: no memory. */
bool ath_merger_add(ath_merger *m, int32_t id, uint32_t start, uint32_t size);
/* Merges until nothing does. The result is the list from symbols[0] along .next. False: no memory. */
bool ath_merger_run(ath_merger *m, ath_merge_fn pair, const void *context);
void ath_merger_free(ath_merger *m);

#endif
