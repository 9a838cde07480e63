/* Growing arrays and the hash index that finds their elements by name. */
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf_internal.h"

/* FNV-1a, then a final mix, because the table is indexed by the low bits. */
static uint64_t hash_name(ath_str name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < name.size; i++) h = (h ^ (uint8_t)name.data[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static const ath_str *name_at(const void *items, size_t item_size, size_t i) {
    return (const ath_str *)((const char *)items + i * item_size);
}

int64_t ath_gguf_index_find(const ath_gguf_index *index, const void *items, size_t item_size, ath_str name) {
    if (index->n_slots == 0) return -1;
    size_t mask = index->n_slots - 1;
    for (size_t at = hash_name(name) & mask; index->slots[at] != 0; at = (at + 1) & mask) {
        size_t i = index->slots[at] - 1;
        const ath_str *other = name_at(items, item_size, i);
        if (other->size == name.size && memcmp(other->data, name.data, name.size) == 0) return (int64_t)i;
    }
    return -1;
}

static void insert(ath_gguf_index *index, ath_str name, size_t n) {
    size_t mask = index->n_slots - 1, at = hash_name(name) & mask;
    while (index->slots[at] != 0) at = (at + 1) & mask;
    index->slots[at] = n + 1;
    index->n_used++;
}

bool ath_gguf_index_add(ath_gguf_index *index, const void *items, size_t item_size, size_t n) {
    if (index->n_used * 2 >= index->n_slots) {
        ath_gguf_index wider = {.n_slots = index->n_slots ? index->n_slots * 2 : 64};
        wider.slots = calloc(wider.n_slots, sizeof *wider.slots);
        if (!wider.slots) return false;
        for (size_t at = 0; at < index->n_slots; at++) {
            size_t slot = index->slots[at];
            if (slot != 0) insert(&wider, *name_at(items, item_size, slot - 1), slot - 1);
        }
        free(index->slots);
        *index = wider;
    }
    insert(index, *name_at(items, item_size, n), n);
    return true;
}

bool ath_gguf_grow(void **items, size_t *capacity, size_t n, size_t item_size) {
    if (n < *capacity) return true;
    size_t wider = *capacity ? *capacity * 2 : 32;
    void *moved = realloc(*items, wider * item_size);
    if (!moved) return false;
    *items = moved;
    *capacity = wider;
    return true;
}
