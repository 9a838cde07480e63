/* Text to token ids and back, from the vocabulary in a GGUF file.
 *
 * Two families: SentencePiece with scores (tokenizer.ggml.model "llama", which gemma 1-3 use too) and byte-level BPE
 * with merges ("gpt2", and "gemma4" on unmapped text). Everything is read once by ath_tokenizer_create; after that the
 * object never changes and any number of threads may use it. Nothing points into the GGUF afterwards.
 *
 * Text is bytes: interior NULs are text, and bytes that are no valid UTF-8 become their byte tokens and come back
 * unchanged. Encoding takes time linear in the text, or n log n within one word. */
#ifndef ATH_TOKENIZER_H
#define ATH_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "athanor/athanor.h"
#include "base/error.h"
#include "base/log.h"
#include "gguf/gguf.h"

typedef struct ath_tokenizer ath_tokenizer;

/* log may be NULL; warnings (guessed ids, absent keys) go there. Fails with ATH_ERR_FORMAT for broken metadata and
 * ATH_ERR_UNSUPPORTED for a model or pre-tokenizer that is not known (the message lists those that are). closest_pre: in
 * place of a pre-tokenizer that is not known, the one that fits the vocabulary best, with a warning; no fit: refused. */
ath_status ath_tokenizer_create(ath_tokenizer **out, const ath_gguf *gguf, bool closest_pre, const ath_log *log,
                                ath_error *err);
void ath_tokenizer_free(ath_tokenizer *tokenizer); /* NULL is fine */

/* Token ids of text[size]; flags of ATH_TOKENIZE_*. *tokens is malloc'd, the caller frees it (it is never NULL on
 * ATH_OK, even for n = 0). */
ath_status ath_tokenizer_encode(const ath_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                                int32_t **tokens, size_t *n, ath_error *err);

/* Bytes that a token stands for: at most cap of them go to buf (may be NULL if cap is 0), no NUL is added, and the
 * full size is returned. Control and unknown tokens are empty unless special. SPM's "▁" comes as a space. Ids out of
 * range are empty. */
size_t ath_tokenizer_piece(const ath_tokenizer *tokenizer, int32_t token, bool special, char *buf, size_t cap);

/* Bytes of a list of tokens, joined; SPM drops the one space that encoding put in front. *text is malloc'd, *size
 * bytes and a NUL behind them; the caller frees it. Fails for ids out of range. */
ath_status ath_tokenizer_decode(const ath_tokenizer *tokenizer, const int32_t *tokens, size_t n, bool special,
                                char **text, size_t *size, ath_error *err);

int32_t ath_tokenizer_n_vocab(const ath_tokenizer *tokenizer);
int32_t ath_tokenizer_bos(const ath_tokenizer *tokenizer); /* -1: none */
int32_t ath_tokenizer_eos(const ath_tokenizer *tokenizer);
int32_t ath_tokenizer_eot(const ath_tokenizer *tokenizer);
bool ath_tokenizer_add_bos(const ath_tokenizer *tokenizer);
bool ath_tokenizer_add_eos(const ath_tokenizer *tokenizer);
bool ath_tokenizer_is_eog(const ath_tokenizer *tokenizer, int32_t token); /* ends generation: EOS, EOT and others */
bool ath_tokenizer_is_control(const ath_tokenizer *tokenizer, int32_t token);

/* The token's text as the vocabulary has it ("Ġthe", "▁the"); {NULL, 0} out of range. Lives as long as the tokenizer. */
ath_str ath_tokenizer_text(const ath_tokenizer *tokenizer, int32_t token);
int32_t ath_tokenizer_find(const ath_tokenizer *tokenizer, const char *text, size_t size); /* -1: no such token */

const char *ath_tokenizer_model(const ath_tokenizer *tokenizer); /* "llama", "gpt2", "gemma4" */
const char *ath_tokenizer_pre(const ath_tokenizer *tokenizer);   /* as the file names it, or "default"; SPM: "" */

#endif
