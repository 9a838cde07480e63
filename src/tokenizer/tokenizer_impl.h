/* What the files of the tokenizer share: the object, and the state of one call of encode. */
#ifndef ATH_TOKENIZER_IMPL_H
#define ATH_TOKENIZER_IMPL_H

#include "tokenizer/merge.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

typedef enum ath_tokenizer_kind {
    ATH_TOKENIZER_SPM,    /* "llama": SentencePiece, pieces with scores */
    ATH_TOKENIZER_BPE,    /* "gpt2": byte-level, merges with ranks */
    ATH_TOKENIZER_GEMMA4, /* "gemma4": merges with ranks, over characters */
} ath_tokenizer_kind;

typedef struct ath_bpe_merge {
    int32_t left, right; /* symbols; left -1: free slot */
    int32_t id;          /* symbol of both together */
    uint32_t rank;
} ath_bpe_merge;

struct ath_tokenizer {
    ath_tokenizer_kind kind;
    ath_vocab vocab;
    const ath_pre *pre; /* BPE */
    char pre_name[64];
    bool add_bos, add_eos, add_space_prefix;
    int32_t bos, eos, eot, unk; /* -1: none */

    int32_t byte_tokens[256];  /* token of a lone byte; -1: the vocabulary has none */
    int32_t byte_symbols[256]; /* BPE: symbol that a byte starts as */
    uint32_t *priorities;      /* SPM: [n_tokens] scores, smallest is best */
    bool joins[256];           /* SPM: some token goes on behind a word that ends in this byte */
    ath_bpe_merge *merges;     /* BPE: hash map, a power of two */
    size_t n_merge_slots;

    /* Lengths of the texts of special tokens, ascending, by first byte: those of byte b are
     * special_sizes[special_begin[b] .. special_begin[b + 1]). */
    uint32_t *special_sizes;
    uint32_t special_begin[257];
};

typedef struct ath_encoder {
    const ath_tokenizer *tokenizer;
    int32_t *ids;
    size_t n_ids, ids_capacity;
    ath_merger merger;
    ath_pieces pieces;
    char *text; /* escaped or mapped */
    size_t text_capacity;
} ath_encoder;

/* All of these: false means no memory. */
bool ath_encoder_push(ath_encoder *encoder, int32_t id);
/* A byte that no token covers. */
bool ath_encoder_push_byte(ath_encoder *encoder, unsigned char byte);
bool ath_encoder_reserve_text(ath_encoder *encoder, size_t size);
/* Makes encoder->text out of text, " " as U+2581, with one more in front if prefix; *escaped is its size. */
bool ath_encoder_escape(ath_encoder *encoder, const char *text, size_t size, bool prefix, size_t *escaped);
bool ath_spm_encode(ath_encoder *encoder, const char *text, size_t size);
bool ath_bpe_encode(ath_encoder *encoder, const char *text, size_t size);

ath_status ath_spm_load(ath_tokenizer *tokenizer, const ath_gguf *gguf, ath_error *err);
ath_status ath_bpe_load(ath_tokenizer *tokenizer, const ath_gguf *gguf, ath_error *err);

/* closest.c: the known pre-tokenizer that fits the vocabulary of a BPE best, whose model and vocab are loaded; NULL: none
 * does. It cuts *cut of *n tokens. Takes a second for a large vocabulary. */
ath_status ath_pre_closest(const ath_tokenizer *tokenizer, const ath_pre **out, size_t *cut, size_t *n, ath_error *err);

/* GPT-2's mapping of bytes to printable characters. */
uint32_t ath_bpe_code_point(unsigned char byte);
int ath_bpe_byte(uint32_t code_point); /* -1: stands for no byte */

/* special.c: ids with a role, end-of-generation set, attributes, and the search for special tokens in a text. */
ath_status ath_special_load(ath_tokenizer *tokenizer, const ath_gguf *gguf, const ath_log *log, ath_error *err);
/* First special token at or after from: true with its place and id. Control and unknown tokens only if parse. */
bool ath_special_next(const ath_tokenizer *tokenizer, const char *text, size_t size, size_t from, bool parse,
                      size_t *start, size_t *end, int32_t *id);

#endif
