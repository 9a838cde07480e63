/* Loading the token table from GGUF. Texts are copied: the GGUF may be closed or its pages dropped afterwards. */
#include "tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SYMBOLS (1 << 28)

static uint32_t hash_of(const char *text, size_t size) {
    uint32_t hash = ATH_VOCAB_HASH_SEED;
    for (size_t i = 0; i < size; i++) hash = ath_vocab_hash_byte(hash, text[i]);
    return hash;
}

/* The slot that holds this text, or the free one where it belongs. */
static size_t slot_of(const ath_vocab *vocab, const char *text, size_t size, uint32_t hash) {
    size_t mask = vocab->n_slots - 1, slot = hash * 0x9E3779B1u & mask;
    for (; vocab->slots[slot] >= 0; slot = (slot + 1) & mask) {
        const ath_vocab_text *t = &vocab->texts[vocab->slots[slot]];
        if (t->hash == hash && t->size == size && memcmp(vocab->arena + t->start, text, size) == 0) break;
    }
    return slot;
}

int32_t ath_vocab_find_hashed(const ath_vocab *vocab, const char *text, size_t size, uint32_t hash) {
    return size == 0 ? -1 : vocab->slots[slot_of(vocab, text, size, hash)];
}

int32_t ath_vocab_find(const ath_vocab *vocab, const char *text, size_t size) {
    return ath_vocab_find_hashed(vocab, text, size, hash_of(text, size));
}

static bool grow_slots(ath_vocab *vocab, size_t n_slots) {
    int32_t *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    free(vocab->slots);
    vocab->slots = slots;
    vocab->n_slots = n_slots;
    for (int32_t id = 0; id < vocab->n_symbols; id++) {
        const ath_vocab_text *t = &vocab->texts[id];
        slots[slot_of(vocab, vocab->arena + t->start, t->size, t->hash)] = id;
    }
    return true;
}

/* Makes room for more texts of bytes bytes together; the map stays at most half full. */
static bool reserve(ath_vocab *vocab, size_t more, size_t bytes) {
    size_t n = (size_t)vocab->n_symbols + more;
    if (n > vocab->texts_capacity) {
        size_t capacity = n + n / 4;
        ath_vocab_text *texts = realloc(vocab->texts, capacity * sizeof *texts);
        if (!texts) return false;
        vocab->texts = texts;
        vocab->texts_capacity = capacity;
    }
    if (vocab->arena_size + bytes > vocab->arena_capacity || !vocab->arena) {
        size_t capacity = vocab->arena_size + bytes + vocab->arena_size / 4 + 1;
        char *arena = realloc(vocab->arena, capacity);
        if (!arena) return false;
        vocab->arena = arena;
        vocab->arena_capacity = capacity;
    }
    size_t n_slots = vocab->n_slots ? vocab->n_slots : 1024;
    while (n_slots < 2 * n) n_slots *= 2;
    return n_slots == vocab->n_slots || grow_slots(vocab, n_slots);
}

/* Appends a symbol within the reserve; it takes the place of an earlier one with the same text in the map. */
static int32_t append(ath_vocab *vocab, const char *text, size_t size) {
    int32_t id = vocab->n_symbols++;
    vocab->texts[id] = (ath_vocab_text){vocab->arena_size, (uint32_t)size, hash_of(text, size)};
    if (size) memcpy(vocab->arena + vocab->arena_size, text, size);
    vocab->arena_size += size;
    vocab->slots[slot_of(vocab, text, size, vocab->texts[id].hash)] = id;
    return id;
}

ath_status ath_vocab_intern(ath_vocab *vocab, const char *text, size_t size, int32_t *id, ath_error *err) {
    *id = ath_vocab_find(vocab, text, size);
    if (*id >= 0) return ATH_OK;
    if (vocab->n_symbols >= MAX_SYMBOLS) return ATH_FAIL(err, ATH_ERR_FORMAT, "the vocabulary has too many merges");
    if (!reserve(vocab, 1, size)) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the vocabulary");
    *id = append(vocab, text, size);
    return ATH_OK;
}

static ath_status load_types(ath_vocab *vocab, const ath_gguf *gguf, ath_error *err) {
    const char *key = "tokenizer.ggml.token_type";
    size_t n = (size_t)vocab->n_tokens;
    vocab->types = malloc(n);
    vocab->flags = calloc(n, 1);
    if (!vocab->types || !vocab->flags) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the vocabulary");
    memset(vocab->types, ATH_TOKEN_NORMAL, n);
    const ath_gguf_kv *kv = ath_gguf_find(gguf, key);
    if (!kv) return ATH_OK;
    if (kv->type != ATH_GGUF_ARRAY || (kv->item_type != ATH_GGUF_I32 && kv->item_type != ATH_GGUF_U32)) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is no array of 32-bit integers", key);
    }
    if (kv->count < n) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s has %llu entries for %zu tokens", key,
                        (unsigned long long)kv->count, n);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t type = ath_gguf_item_i64(kv, i);
        if (type < 0 || type > ATH_TOKEN_BYTE) {
            return ATH_FAIL(err, ATH_ERR_FORMAT, "%s has the unknown type %lld for token %zu", key,
                            (long long)type, i);
        }
        if (type != ATH_TOKEN_UNDEFINED) vocab->types[i] = (uint8_t)type;
    }
    return ATH_OK;
}

ath_status ath_vocab_load(ath_vocab *vocab, const ath_gguf *gguf, ath_error *err) {
    const char *key = "tokenizer.ggml.tokens";
    const ath_gguf_kv *kv = ath_gguf_find(gguf, key);
    if (!kv) return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is missing", key);
    if (kv->type != ATH_GGUF_ARRAY || kv->item_type != ATH_GGUF_STRING) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is no array of strings", key);
    }
    if (kv->count == 0 || kv->count >= MAX_SYMBOLS) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s has %llu entries", key, (unsigned long long)kv->count);
    }
    size_t n = (size_t)kv->count, bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t size = kv->strings[i].size;
        if (size > 1 << 20) return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: token %zu is %zu bytes long", key, i, size);
        if (size > vocab->max_size) vocab->max_size = size;
        bytes += size;
    }
    if (!reserve(vocab, n, bytes)) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the vocabulary");
    for (size_t i = 0; i < n; i++) append(vocab, kv->strings[i].data, kv->strings[i].size);
    vocab->n_tokens = vocab->n_symbols;
    return load_types(vocab, gguf, err);
}

void ath_vocab_free(ath_vocab *vocab) {
    free(vocab->types);
    free(vocab->flags);
    free(vocab->texts);
    free(vocab->arena);
    free(vocab->slots);
}
