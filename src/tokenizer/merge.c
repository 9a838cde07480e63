/* The merge loop: a binary heap of candidates over a doubly linked list of symbols. Candidates that a merge has made
 * stale stay in the heap and are dropped when they come up, which is cheaper than finding them. */
#include "tokenizer/merge.h"

#include <stdlib.h>

bool ath_merger_add(ath_merger *m, int32_t id, uint32_t start, uint32_t size) {
    if (m->n_symbols == m->symbol_capacity) {
        size_t capacity = m->symbol_capacity ? 2 * m->symbol_capacity : 64;
        ath_symbol *symbols = realloc(m->symbols, capacity * sizeof *symbols);
        if (!symbols) return false;
        m->symbols = symbols;
        m->symbol_capacity = capacity;
    }
    int32_t i = (int32_t)m->n_symbols++;
    m->symbols[i] = (ath_symbol){.previous = i - 1, .next = -1, .id = id, .start = start, .size = size};
    if (i > 0) m->symbols[i - 1].next = i;
    return true;
}

static bool push(ath_merger *m, ath_merge_candidate candidate) {
    if (m->n_heap == m->heap_capacity) {
        size_t capacity = m->heap_capacity ? 2 * m->heap_capacity : 64;
        ath_merge_candidate *heap = realloc(m->heap, capacity * sizeof *heap);
        if (!heap) return false;
        m->heap = heap;
        m->heap_capacity = capacity;
    }
    size_t i = m->n_heap++;
    for (; i > 0 && candidate.key < m->heap[(i - 1) / 2].key; i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = candidate;
    return true;
}

static ath_merge_candidate pop(ath_merger *m) {
    ath_merge_candidate top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0;
    for (size_t child = 1; child < m->n_heap; child = 2 * i + 1) {
        if (child + 1 < m->n_heap && m->heap[child + 1].key < m->heap[child].key) child++;
        if (last.key <= m->heap[child].key) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static bool consider(ath_merger *m, int32_t left, int32_t right, ath_merge_fn pair, const void *context) {
    if (left < 0 || right < 0) return true;
    const ath_symbol *a = &m->symbols[left], *b = &m->symbols[right];
    uint32_t priority;
    int32_t id;
    if (!pair(context, a, b, &priority, &id)) return true;
    return push(m, (ath_merge_candidate){(uint64_t)priority << 32 | (uint32_t)left, right, id, a->size + b->size});
}

bool ath_merger_run(ath_merger *m, ath_merge_fn pair, const void *context) {
    m->n_heap = 0;
    for (size_t i = 1; i < m->n_symbols; i++) {
        if (!consider(m, (int32_t)i - 1, (int32_t)i, pair, context)) return false;
    }
    while (m->n_heap > 0) {
        ath_merge_candidate best = pop(m);
        int32_t index = (int32_t)(uint32_t)best.key;
        ath_symbol *left = &m->symbols[index], *right = &m->symbols[best.right];
        if (left->size == 0 || left->next != best.right || left->size + right->size != best.size) continue;
        left->size = best.size;
        left->id = best.id;
        left->next = right->next;
        right->size = 0;
        if (right->next >= 0) m->symbols[right->next].previous = index;
        if (!consider(m, left->previous, index, pair, context)) return false;
        if (!consider(m, index, left->next, pair, context)) return false;
    }
    return true;
}

void ath_merger_free(ath_merger *m) {
    free(m->symbols);
    free(m->heap);
    *m = (ath_merger){0};
}
