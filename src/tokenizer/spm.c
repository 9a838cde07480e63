/* SentencePiece by scores: starts from characters and merges the neighbours that together are the token with the
 * highest score. Characters that no token covers fall back to byte tokens. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

#define MARK "\xE2\x96\x81" /* U+2581, a space */

/* First place behind start where a mark follows something else, which ends a word; size if there is none. */
static size_t word_end(const char *text, size_t start, size_t size) {
    for (size_t at = start + 1; at + 3 <= size; at++) {
        if (memcmp(text + at, MARK, 3) != 0) continue;
        if (at < start + 3 || memcmp(text + at - 3, MARK, 3) != 0) return at;
    }
    return size;
}

/* Merging never crosses the end of a word unless a token does: ">▁</" in gemma's vocabulary, so that there only words
 * that end in ">" are merged together with what follows. */
static void find_joins(ath_tokenizer *t) {
    for (int32_t id = 0; id < t->vocab.n_tokens; id++) {
        ath_str text = ath_vocab_text_of(&t->vocab, id);
        if (!ath_vocab_is_plain(&t->vocab, id) || text.size == 0) continue;
        for (size_t at = 0; (at = word_end(text.data, at, text.size)) < text.size;) {
            t->joins[(unsigned char)text.data[at - 1]] = true;
        }
    }
}

ath_status ath_spm_load(ath_tokenizer *tokenizer, const ath_gguf *gguf, ath_error *err) {
    const char *key = "tokenizer.ggml.scores";
    const ath_gguf_kv *kv = ath_gguf_find(gguf, key);
    size_t n = (size_t)tokenizer->vocab.n_tokens;
    if (!kv) return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is missing", key);
    if (kv->type != ATH_GGUF_ARRAY || kv->item_type != ATH_GGUF_F32) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is no array of f32", key);
    }
    if (kv->count < n) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s has %llu entries for %zu tokens", key,
                        (unsigned long long)kv->count, n);
    }
    tokenizer->priorities = malloc(n * sizeof *tokenizer->priorities);
    if (!tokenizer->priorities) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the vocabulary");
    for (size_t i = 0; i < n; i++) {
        float score = (float)ath_gguf_item_f64(kv, i) + 0.0f; /* -0 becomes 0 */
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        /* Ascending integers for descending floats. */
        tokenizer->priorities[i] = bits >> 31 ? bits : ~(bits | 0x80000000u);
    }
    find_joins(tokenizer);
    return ATH_OK;
}

static bool pair(const void *context, const ath_symbol *left, const ath_symbol *right, uint32_t *priority,
                 int32_t *id) {
    const ath_encoder *encoder = context;
    const ath_tokenizer *tokenizer = encoder->tokenizer;
    size_t size = (size_t)left->size + right->size;
    if (size > tokenizer->vocab.max_size) return false;
    *id = ath_vocab_find(&tokenizer->vocab, encoder->text + left->start, size);
    if (!ath_vocab_is_plain(&tokenizer->vocab, *id)) return false;
    *priority = tokenizer->priorities[*id];
    return true;
}

static bool encode_range(ath_encoder *encoder, size_t start, size_t end) {
    const ath_vocab *vocab = &encoder->tokenizer->vocab;
    ath_merger *m = &encoder->merger;
    m->n_symbols = 0;
    for (size_t at = start; at < end;) {
        uint32_t cp;
        size_t length = ath_utf8_decode(encoder->text + at, end - at, &cp);
        int32_t id = length ? ath_vocab_find(vocab, encoder->text + at, length) : -1;
        if (!length) length = 1;
        if (!ath_merger_add(m, ath_vocab_is_plain(vocab, id) ? id : -1, (uint32_t)at, (uint32_t)length)) return false;
        at += length;
    }
    if (!ath_merger_run(m, pair, encoder)) return false;
    for (int32_t i = 0; i >= 0; i = m->symbols[i].next) {
        const ath_symbol *symbol = &m->symbols[i];
        if (symbol->id >= 0) {
            if (!ath_encoder_push(encoder, symbol->id)) return false;
            continue;
        }
        for (uint32_t b = 0; b < symbol->size; b++) {
            if (!ath_encoder_push_byte(encoder, (unsigned char)encoder->text[symbol->start + b])) return false;
        }
    }
    return true;
}

bool ath_spm_encode(ath_encoder *encoder, const char *text, size_t size) {
    const ath_tokenizer *t = encoder->tokenizer;
    size_t escaped;
    if (!ath_encoder_escape(encoder, text, size, t->add_space_prefix, &escaped)) return false;
    for (size_t start = 0, end = 0; start < escaped; start = end) {
        do end = word_end(encoder->text, end, escaped);
        while (end < escaped && t->joins[(unsigned char)encoder->text[end - 1]]);
        if (!encode_range(encoder, start, end)) return false;
    }
    return true;
}
