/* The token table: texts, types, and the map from text to id. BPE adds symbols behind the tokens: texts that merges
 * pass through and that are no tokens themselves. */
#ifndef ATH_TOKENIZER_VOCAB_H
#define ATH_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "gguf/gguf.h"

typedef enum ath_token_type { /* values of tokenizer.ggml.token_type */
    ATH_TOKEN_UNDEFINED = 0,
    ATH_TOKEN_NORMAL = 1,
    ATH_TOKEN_UNKNOWN = 2,
    ATH_TOKEN_CONTROL = 3,
    ATH_TOKEN_USER_DEFINED = 4,
    ATH_TOKEN_UNUSED = 5,
    ATH_TOKEN_BYTE = 6,
} ath_token_type;

enum { /* per token */
    ATH_TOKEN_EOG = 1,    /* ends generation */
    ATH_TOKEN_LSTRIP = 2, /* swallows white space before it in the text */
    ATH_TOKEN_RSTRIP = 4, /* and behind it */
};

typedef struct ath_vocab_text {
    size_t start;
    uint32_t size, hash;
} ath_vocab_text;

typedef struct ath_vocab {
    int32_t n_tokens;
    int32_t n_symbols; /* tokens first */
    size_t max_size;   /* bytes of the longest token */
    uint8_t *types;    /* [n_tokens] ath_token_type */
    uint8_t *flags;    /* [n_tokens] */
    ath_vocab_text *texts;
    size_t texts_capacity;
    char *arena; /* all texts */
    size_t arena_size, arena_capacity;
    int32_t *slots; /* hash map of symbol ids, -1: free; a power of two */
    size_t n_slots;
} ath_vocab;

/* Reads tokens and types. *vocab is zeroed before; free it also after a failure. */
ath_status ath_vocab_load(ath_vocab *vocab, const ath_gguf *gguf, ath_error *err);
void ath_vocab_free(ath_vocab *vocab);

/* FNV-1a, so that the hash of a longer text goes on from the shorter one's. */
#define ATH_VOCAB_HASH_SEED 2166136261u
static inline uint32_t ath_vocab_hash_byte(uint32_t hash, char byte) {
    return (hash ^ (unsigned char)byte) * 16777619u;
}

/* Symbol with this text (of several tokens with one text the last), -1: none. */
int32_t ath_vocab_find(const ath_vocab *vocab, const char *text, size_t size);
int32_t ath_vocab_find_hashed(const ath_vocab *vocab, const char *text, size_t size, uint32_t hash);
/* The same, but a new symbol is made of an unknown text. */
ath_status ath_vocab_intern(ath_vocab *vocab, const char *text, size_t size, int32_t *id, ath_error *err);

static inline ath_str ath_vocab_text_of(const ath_vocab *vocab, int32_t id) {
    return (ath_str){vocab->arena + vocab->texts[id].start, vocab->texts[id].size};
}

/* Whether text, as opposed to the text of a special token, may become this symbol. */
static inline bool ath_vocab_is_plain(const ath_vocab *vocab, int32_t id) {
    return id >= 0 && id < vocab->n_tokens && vocab->types[id] != ATH_TOKEN_CONTROL &&
           vocab->types[id] != ATH_TOKEN_UNKNOWN;
}

#endif
