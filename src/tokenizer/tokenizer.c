/* The tokenizer object: what the file's model and pre-tokenizer names mean, and the two directions. */
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

#define MAX_TEXT ((size_t)1 << 29) /* escaped three times as long, it still has 31-bit offsets */
#define SPACE_MARK "\xE2\x96\x81"  /* U+2581: a space in SentencePiece's texts */

static const char *const model_names[] = {
    [ATH_TOKENIZER_SPM] = "llama", [ATH_TOKENIZER_BPE] = "gpt2", [ATH_TOKENIZER_GEMMA4] = "gemma4"};

static bool equals(ath_str text, const char *word) {
    return text.size == strlen(word) && memcmp(text.data, word, text.size) == 0;
}

static ath_status load_model(ath_tokenizer *t, const ath_gguf *gguf, ath_error *err) {
    const char *key = "tokenizer.ggml.model";
    ath_str model;
    ATH_TRY(ath_gguf_get_str(gguf, &model, err, "%s", key));
    if (!model.data) return ATH_FAIL(err, ATH_ERR_FORMAT, "%s is missing", key);
    for (int kind = ATH_TOKENIZER_SPM; kind <= ATH_TOKENIZER_GEMMA4; kind++) {
        t->kind = (ath_tokenizer_kind)kind;
        if (equals(model, model_names[kind])) return ATH_OK;
    }
    return ATH_FAIL(err, ATH_ERR_UNSUPPORTED, "%s \"%.*s\" is not known; known are llama, gpt2, gemma4", key,
                    (int)(model.size < 60 ? model.size : 60), model.data);
}

/* The first name of a row. */
static ath_str name_of(const ath_pre *pre) {
    return (ath_str){pre->names, strcspn(pre->names, " ")};
}

static ath_status refuse_pre(const char *name, ath_error *err) {
    char names[320] = "";
    size_t used = 0;
    for (size_t i = 0; i < ath_pre_count && used < sizeof names; i++) {
        ath_str known = name_of(&ath_pre_table[i]);
        used += (size_t)snprintf(names + used, sizeof names - used, " %.*s", (int)known.size, known.data);
    }
    return ATH_FAIL(err, ATH_ERR_UNSUPPORTED,
                    "pre-tokenizer \"%s\" is not known; --closest-pre takes one that fits the vocabulary, "
                    "--override-kv tokenizer.ggml.pre=str:NAME one of:%s",
                    name, names);
}

static ath_status take_closest_pre(ath_tokenizer *t, const ath_log *log, ath_error *err) {
    size_t cut, n;
    ATH_TRY(ath_pre_closest(t, &t->pre, &cut, &n, err));
    if (!t->pre)
        return ATH_FAIL(err, ATH_ERR_UNSUPPORTED,
                        "pre-tokenizer \"%s\" is not known, and no other fits the vocabulary: each cuts %zu or more "
                        "of its %zu tokens",
                        t->pre_name, cut, n);
    ath_str name = name_of(t->pre);
    ath_log_line(log, ATH_LOG_WARN,
                 "pre-tokenizer \"%s\" is not known: using \"%.*s\", which cuts %zu of the vocabulary's %zu tokens; "
                 "text may be cut in other ways than the model learned",
                 t->pre_name, (int)name.size, name.data, cut, n);
    snprintf(t->pre_name, sizeof t->pre_name, "%.*s", (int)name.size, name.data);
    return ATH_OK;
}

static ath_status load_pre(ath_tokenizer *t, const ath_gguf *gguf, bool closest, const ath_log *log, ath_error *err) {
    if (t->kind == ATH_TOKENIZER_SPM) return ATH_OK;
    ath_str pre = {"gemma4", 6};
    if (t->kind == ATH_TOKENIZER_BPE) {
        ATH_TRY(ath_gguf_get_str(gguf, &pre, err, "tokenizer.ggml.pre"));
        if (!pre.data) {
            ath_log_line(log, ATH_LOG_WARN, "tokenizer.ggml.pre is missing: using \"default\", text may be cut "
                                            "in other ways than the model learned");
            pre = (ath_str){"default", 7};
        }
    }
    t->pre = ath_pre_find(pre.data, pre.size);
    snprintf(t->pre_name, sizeof t->pre_name, "%.*s", (int)(pre.size < 60 ? pre.size : 60), pre.data);
    if (t->pre) return ATH_OK;
    return closest ? take_closest_pre(t, log, err) : refuse_pre(t->pre_name, err);
}

static void load_byte_tokens(ath_tokenizer *t, const ath_log *log) {
    int missing = 0;
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        size_t size = 6;
        if (t->kind == ATH_TOKENIZER_BPE) size = ath_utf8_encode(ath_bpe_code_point((unsigned char)byte), text);
        else snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        int32_t id = ath_vocab_find(&t->vocab, text, size);
        if (!ath_vocab_is_plain(&t->vocab, id)) id = t->kind == ATH_TOKENIZER_BPE ? -1 : t->unk;
        missing += id < 0;
        t->byte_tokens[byte] = id;
    }
    if (missing) {
        ath_log_line(log, ATH_LOG_DEBUG, "%d of 256 bytes have no token and are dropped from texts", missing);
    }
}

static ath_status load(ath_tokenizer *t, const ath_gguf *gguf, bool closest_pre, const ath_log *log, ath_error *err) {
    ATH_TRY(load_model(t, gguf, err));
    ATH_TRY(ath_vocab_load(&t->vocab, gguf, err));
    ATH_TRY(load_pre(t, gguf, closest_pre, log, err));
    if (t->kind == ATH_TOKENIZER_SPM) ATH_TRY(ath_spm_load(t, gguf, err));
    else ATH_TRY(ath_bpe_load(t, gguf, err));
    ATH_TRY(ath_special_load(t, gguf, log, err));
    load_byte_tokens(t, log);
    return ATH_OK;
}

ath_status ath_tokenizer_create(ath_tokenizer **out, const ath_gguf *gguf, bool closest_pre, const ath_log *log,
                                ath_error *err) {
    *out = NULL;
    ath_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the tokenizer");
    ath_status status = load(t, gguf, closest_pre, log, err);
    if (status == ATH_OK) *out = t;
    else ath_tokenizer_free(t);
    return status;
}

void ath_tokenizer_free(ath_tokenizer *tokenizer) {
    if (!tokenizer) return;
    ath_vocab_free(&tokenizer->vocab);
    free(tokenizer->priorities);
    free(tokenizer->merges);
    free(tokenizer->special_sizes);
    free(tokenizer);
}

/* ---- encoding */

bool ath_encoder_push(ath_encoder *encoder, int32_t id) {
    if (encoder->n_ids == encoder->ids_capacity) {
        size_t capacity = encoder->ids_capacity ? 2 * encoder->ids_capacity : 64;
        int32_t *ids = realloc(encoder->ids, capacity * sizeof *ids);
        if (!ids) return false;
        encoder->ids = ids;
        encoder->ids_capacity = capacity;
    }
    encoder->ids[encoder->n_ids++] = id;
    return true;
}

bool ath_encoder_push_byte(ath_encoder *encoder, unsigned char byte) {
    int32_t id = encoder->tokenizer->byte_tokens[byte];
    return id < 0 || ath_encoder_push(encoder, id);
}

bool ath_encoder_reserve_text(ath_encoder *encoder, size_t size) {
    if (size <= encoder->text_capacity) return true;
    char *text = realloc(encoder->text, size);
    if (!text) return false;
    encoder->text = text;
    encoder->text_capacity = size;
    return true;
}

bool ath_encoder_escape(ath_encoder *encoder, const char *text, size_t size, bool prefix, size_t *escaped) {
    if (!ath_encoder_reserve_text(encoder, 3 * (size + 1))) return false;
    char *out = encoder->text;
    if (prefix) out = (char *)memcpy(out, SPACE_MARK, 3) + 3;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == ' ') out = (char *)memcpy(out, SPACE_MARK, 3) + 3;
        else *out++ = text[i];
    }
    *escaped = (size_t)(out - encoder->text);
    return true;
}

/* The text between two special tokens. SPM's space in front comes behind every special token, not just at the start. */
static bool encode_fragment(ath_encoder *encoder, const char *text, size_t size) {
    if (size == 0) return true;
    if (encoder->tokenizer->kind == ATH_TOKENIZER_SPM) return ath_spm_encode(encoder, text, size);
    return ath_bpe_encode(encoder, text, size);
}

static bool encode(ath_encoder *encoder, const char *text, size_t size, unsigned flags) {
    const ath_tokenizer *t = encoder->tokenizer;
    bool parse = flags & ATH_TOKENIZE_PARSE_SPECIAL, special = flags & ATH_TOKENIZE_ADD_SPECIAL;
    if (special && t->add_bos && !ath_encoder_push(encoder, t->bos)) return false;
    for (size_t from = 0; from < size;) {
        size_t start = size, end = size;
        int32_t id = -1;
        bool found = ath_special_next(t, text, size, from, parse, &start, &end, &id);
        if (!encode_fragment(encoder, text + from, start - from)) return false;
        if (found && !ath_encoder_push(encoder, id)) return false;
        from = end;
    }
    return !special || !t->add_eos || ath_encoder_push(encoder, t->eos);
}

ath_status ath_tokenizer_encode(const ath_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                                int32_t **tokens, size_t *n, ath_error *err) {
    *tokens = NULL;
    *n = 0;
    if (size > MAX_TEXT) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "text of more than %zu MiB", MAX_TEXT >> 20);
    ath_encoder encoder = {.tokenizer = tokenizer};
    encoder.ids_capacity = size / 3 + 8;
    encoder.ids = malloc(encoder.ids_capacity * sizeof *encoder.ids);
    bool ok = encoder.ids && encode(&encoder, text, size, flags);
    ath_merger_free(&encoder.merger);
    ath_pieces_free(&encoder.pieces);
    free(encoder.text);
    if (!ok) {
        free(encoder.ids);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory to tokenize %zu bytes", size);
    }
    *tokens = encoder.ids;
    *n = encoder.n_ids;
    return ATH_OK;
}

/* ---- decoding */

typedef struct writer { /* bytes beyond cap are counted only */
    char *buf;
    size_t cap, n;
} writer;

static void put(writer *w, const char *bytes, size_t size) {
    if (w->n < w->cap) memcpy(w->buf + w->n, bytes, size < w->cap - w->n ? size : w->cap - w->n);
    w->n += size;
}

/* The inverse of GPT-2's byte map; characters outside of it stand for themselves. */
static void put_unmapped(writer *w, ath_str text) {
    for (size_t at = 0; at < text.size;) {
        uint32_t cp = 0;
        size_t length = ath_utf8_decode(text.data + at, text.size - at, &cp);
        int byte = length ? ath_bpe_byte(cp) : -1;
        if (!length) length = 1;
        if (byte >= 0) put(w, &(char){(char)byte}, 1);
        else put(w, text.data + at, length);
        at += length;
    }
}

static void put_unescaped(writer *w, ath_str text) {
    for (size_t at = 0; at < text.size;) {
        bool mark = text.size - at >= 3 && memcmp(text.data + at, SPACE_MARK, 3) == 0;
        put(w, mark ? " " : text.data + at, 1);
        at += mark ? 3 : 1;
    }
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" */
static void put_byte_token(writer *w, ath_str text) {
    int high = text.size == 6 ? hex_digit(text.data[3]) : -1, low = text.size == 6 ? hex_digit(text.data[4]) : -1;
    if (high < 0 || low < 0) put(w, text.data, text.size);
    else put(w, &(char){(char)(high * 16 + low)}, 1);
}

static void put_piece(const ath_tokenizer *t, int32_t token, bool special, writer *w) {
    if (token < 0 || token >= t->vocab.n_tokens) return;
    ath_str text = ath_vocab_text_of(&t->vocab, token);
    switch ((ath_token_type)t->vocab.types[token]) {
    case ATH_TOKEN_CONTROL:
    case ATH_TOKEN_UNKNOWN:
        if (special) put(w, text.data, text.size);
        return;
    case ATH_TOKEN_UNUSED: return;
    case ATH_TOKEN_BYTE: put_byte_token(w, text); return;
    case ATH_TOKEN_USER_DEFINED:
        if (t->kind == ATH_TOKENIZER_BPE) put(w, text.data, text.size);
        else put_unescaped(w, text);
        return;
    default:
        if (t->kind == ATH_TOKENIZER_BPE) put_unmapped(w, text);
        else put_unescaped(w, text);
    }
}

size_t ath_tokenizer_piece(const ath_tokenizer *tokenizer, int32_t token, bool special, char *buf, size_t cap) {
    writer w = {buf, cap, 0};
    put_piece(tokenizer, token, special, &w);
    return w.n;
}

static void put_all(const ath_tokenizer *t, const int32_t *tokens, size_t n, bool special, writer *w) {
    for (size_t i = 0; i < n; i++) put_piece(t, tokens[i], special, w);
}

ath_status ath_tokenizer_decode(const ath_tokenizer *tokenizer, const int32_t *tokens, size_t n, bool special,
                                char **text, size_t *size, ath_error *err) {
    *text = NULL;
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= tokenizer->vocab.n_tokens) {
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "token id %d is not in the vocabulary of %d", tokens[i],
                            tokenizer->vocab.n_tokens);
        }
    }
    writer w = {0};
    put_all(tokenizer, tokens, n, special, &w);
    char *out = malloc(w.n + 1);
    if (!out) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %zu bytes of text", w.n);
    w = (writer){out, w.n, 0};
    put_all(tokenizer, tokens, n, special, &w);
    if (tokenizer->add_space_prefix && w.n > 0 && out[0] == ' ') memmove(out, out + 1, --w.n);
    out[w.n] = 0;
    *text = out;
    *size = w.n;
    return ATH_OK;
}

/* ---- what it knows */

int32_t ath_tokenizer_n_vocab(const ath_tokenizer *tokenizer) { return tokenizer->vocab.n_tokens; }
int32_t ath_tokenizer_bos(const ath_tokenizer *tokenizer) { return tokenizer->bos; }
int32_t ath_tokenizer_eos(const ath_tokenizer *tokenizer) { return tokenizer->eos; }
int32_t ath_tokenizer_eot(const ath_tokenizer *tokenizer) { return tokenizer->eot; }
bool ath_tokenizer_add_bos(const ath_tokenizer *tokenizer) { return tokenizer->add_bos; }
bool ath_tokenizer_add_eos(const ath_tokenizer *tokenizer) { return tokenizer->add_eos; }

bool ath_tokenizer_is_eog(const ath_tokenizer *tokenizer, int32_t token) {
    return token >= 0 && token < tokenizer->vocab.n_tokens && (tokenizer->vocab.flags[token] & ATH_TOKEN_EOG);
}

bool ath_tokenizer_is_control(const ath_tokenizer *tokenizer, int32_t token) {
    return token >= 0 && token < tokenizer->vocab.n_tokens && tokenizer->vocab.types[token] == ATH_TOKEN_CONTROL;
}

ath_str ath_tokenizer_text(const ath_tokenizer *tokenizer, int32_t token) {
    if (token < 0 || token >= tokenizer->vocab.n_tokens) return (ath_str){NULL, 0};
    return ath_vocab_text_of(&tokenizer->vocab, token);
}

int32_t ath_tokenizer_find(const ath_tokenizer *tokenizer, const char *text, size_t size) {
    int32_t id = ath_vocab_find(&tokenizer->vocab, text, size);
    return id < tokenizer->vocab.n_tokens ? id : -1;
}

const char *ath_tokenizer_model(const ath_tokenizer *tokenizer) { return model_names[tokenizer->kind]; }
const char *ath_tokenizer_pre(const ath_tokenizer *tokenizer) { return tokenizer->pre_name; }
