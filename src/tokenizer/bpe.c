/* BPE by merge ranks, on bytes (GPT-2's way) or on characters (gemma4). Merges are pairs of symbols; a text that
 * merges pass through without its being a token is a symbol too, so that merging never looks at strings. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

uint32_t ath_bpe_code_point(unsigned char byte) {
    if (byte <= 32) return 256u + byte;
    if (byte >= 127 && byte <= 160) return 289u + (byte - 127u);
    return byte == 173 ? 323 : byte;
}

int ath_bpe_byte(uint32_t code_point) {
    if (code_point >= 256 && code_point <= 288) return (int)code_point - 256;
    if (code_point >= 289 && code_point <= 322) return (int)code_point - 289 + 127;
    if (code_point == 323) return 173;
    return code_point < 256 && ath_bpe_code_point((unsigned char)code_point) == code_point ? (int)code_point : -1;
}

static size_t merge_slot(const ath_tokenizer *t, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = t->n_merge_slots - 1, slot = (size_t)(key * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (t->merges[slot].left >= 0 && (t->merges[slot].left != left || t->merges[slot].right != right)) {
        slot = (slot + 1) & mask;
    }
    return slot;
}

/* One entry "left right" of the list. The text may begin with the separator (gemma4 merges spaces). */
static ath_status add_merge(ath_tokenizer *t, ath_str merge, uint32_t rank, char *joined, ath_error *err) {
    const char *space = merge.size > 2 ? memchr(merge.data + 1, ' ', merge.size - 2) : NULL;
    if (!space) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "tokenizer.ggml.merges: entry %u is no pair: \"%.*s\"", rank,
                        (int)(merge.size < 60 ? merge.size : 60), merge.data);
    }
    size_t left_size = (size_t)(space - merge.data), right_size = merge.size - left_size - 1;
    int32_t left, right, id;
    ATH_TRY(ath_vocab_intern(&t->vocab, merge.data, left_size, &left, err));
    ATH_TRY(ath_vocab_intern(&t->vocab, space + 1, right_size, &right, err));
    memcpy(joined, merge.data, left_size);
    memcpy(joined + left_size, space + 1, right_size);
    ATH_TRY(ath_vocab_intern(&t->vocab, joined, left_size + right_size, &id, err));
    ath_bpe_merge *slot = &t->merges[merge_slot(t, left, right)];
    if (slot->left < 0) *slot = (ath_bpe_merge){left, right, id, rank};
    return ATH_OK;
}

static ath_status load_merges(ath_tokenizer *t, const ath_gguf_kv *kv, ath_error *err) {
    size_t longest = 0;
    for (uint64_t i = 0; i < kv->count; i++) {
        if (kv->strings[i].size > longest) longest = kv->strings[i].size;
    }
    for (t->n_merge_slots = 1024; t->n_merge_slots < 2 * kv->count;) t->n_merge_slots *= 2;
    t->merges = malloc(t->n_merge_slots * sizeof *t->merges);
    char *joined = malloc(longest + 1);
    if (!t->merges || !joined) {
        free(joined);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %llu merges", (unsigned long long)kv->count);
    }
    for (size_t i = 0; i < t->n_merge_slots; i++) t->merges[i].left = -1;
    ath_status status = ATH_OK;
    for (uint64_t i = 0; i < kv->count && status == ATH_OK; i++) {
        status = add_merge(t, kv->strings[i], (uint32_t)i, joined, err);
    }
    free(joined);
    return status;
}

ath_status ath_bpe_load(ath_tokenizer *tokenizer, const ath_gguf *gguf, ath_error *err) {
    const char *key = "tokenizer.ggml.merges";
    const ath_gguf_kv *kv = ath_gguf_find(gguf, key);
    if (!kv) return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is missing", key);
    if (kv->type != ATH_GGUF_ARRAY || kv->item_type != ATH_GGUF_STRING) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is no array of strings", key);
    }
    if (kv->count > 1 << 26) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s has %llu entries", key, (unsigned long long)kv->count);
    }
    ATH_TRY(load_merges(tokenizer, kv, err));
    if (tokenizer->kind == ATH_TOKENIZER_GEMMA4) return ATH_OK;
    for (int byte = 0; byte < 256; byte++) {
        char text[4];
        size_t size = ath_utf8_encode(ath_bpe_code_point((unsigned char)byte), text);
        ATH_TRY(ath_vocab_intern(&tokenizer->vocab, text, size, &tokenizer->byte_symbols[byte], err));
    }
    return ATH_OK;
}

static bool pair(const void *context, const ath_symbol *left, const ath_symbol *right, uint32_t *priority,
                 int32_t *id) {
    const ath_tokenizer *t = context;
    if (left->id < 0 || right->id < 0) return false;
    const ath_bpe_merge *merge = &t->merges[merge_slot(t, left->id, right->id)];
    *priority = merge->rank;
    *id = merge->id;
    return merge->left >= 0;
}

/* Sets *id to the token that is the whole piece as it stands; -1: there is none. False: no memory. */
static bool whole_token(ath_encoder *encoder, const char *piece, size_t size, int32_t *id) {
    const ath_tokenizer *t = encoder->tokenizer;
    *id = -1;
    if (size > t->vocab.max_size) return true;
    if (t->kind == ATH_TOKENIZER_GEMMA4) {
        *id = ath_vocab_find(&t->vocab, piece, size);
        return true;
    }
    if (!ath_encoder_reserve_text(encoder, 2 * size)) return false; /* a byte maps to two at most */
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += ath_utf8_encode(ath_bpe_code_point((unsigned char)piece[i]), encoder->text + n);
    }
    *id = ath_vocab_find(&t->vocab, encoder->text, n);
    return true;
}

static bool add_symbols(ath_encoder *encoder, const char *text, size_t start, size_t end) {
    const ath_tokenizer *t = encoder->tokenizer;
    encoder->merger.n_symbols = 0;
    for (size_t at = start; at < end;) {
        uint32_t cp;
        size_t length = 1;
        int32_t id = t->byte_symbols[(unsigned char)text[at]];
        if (t->kind == ATH_TOKENIZER_GEMMA4) {
            length = ath_utf8_decode(text + at, end - at, &cp);
            id = length ? ath_vocab_find(&t->vocab, text + at, length) : -1;
            if (!length) length = 1;
        }
        if (!ath_merger_add(&encoder->merger, id, (uint32_t)at, (uint32_t)length)) return false;
        at += length;
    }
    return true;
}

static bool encode_piece(ath_encoder *encoder, const char *text, size_t start, size_t end) {
    const ath_tokenizer *t = encoder->tokenizer;
    if (t->pre->ignore_merges || (t->kind == ATH_TOKENIZER_GEMMA4 && text[start] == '\n')) {
        int32_t whole;
        if (!whole_token(encoder, text + start, end - start, &whole)) return false;
        if (ath_vocab_is_plain(&t->vocab, whole)) return ath_encoder_push(encoder, whole);
    }
    if (!add_symbols(encoder, text, start, end)) return false;
    if (!ath_merger_run(&encoder->merger, pair, t)) return false;
    const ath_symbol *symbols = encoder->merger.symbols;
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        if (ath_vocab_is_plain(&t->vocab, symbols[i].id)) {
            if (!ath_encoder_push(encoder, symbols[i].id)) return false;
            continue;
        }
        for (uint32_t b = 0; b < symbols[i].size; b++) {
            if (!ath_encoder_push_byte(encoder, (unsigned char)text[symbols[i].start + b])) return false;
        }
    }
    return true;
}

bool ath_bpe_encode(ath_encoder *encoder, const char *text, size_t size) {
    if (encoder->tokenizer->kind == ATH_TOKENIZER_GEMMA4) {
        if (!ath_encoder_escape(encoder, text, size, false, &size)) return false;
        text = encoder->text;
    }
    if (!ath_pre_split(encoder->tokenizer->pre, text, size, &encoder->pieces)) return false;
    const ath_pieces *pieces = &encoder->pieces;
    for (size_t i = 0; i < pieces->n; i++) {
        if (!encode_piece(encoder, text, pieces->offsets[i], pieces->offsets[i + 1])) return false;
    }
    return true;
}
