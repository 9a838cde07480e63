/* Special tokens: the ids with a role, the set that ends generation, attributes that no key carries, and the search
 * that cuts a text at special tokens: left-most first, of those the longest. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tokenizer/tokenizer_impl.h"

/* Names are tried in order. */
static const char *const eot_names[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>", NULL,
};
static const char *const eom_names[] = {"<|eom_id|>", NULL};
static const char *const fim_pad_names[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", NULL};
static const char *const fim_rep_names[] = {
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", NULL,
};
static const char *const fim_sep_names[] = {"<|file_sep|>", NULL};
static const char *const eog_names[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", NULL,
};

static int32_t find_token(const ath_tokenizer *t, const char *text) {
    int32_t id = ath_vocab_find(&t->vocab, text, strlen(text));
    return id < t->vocab.n_tokens ? id : -1;
}

/* *id holds the default. An id beyond the vocabulary is ignored: such files exist and work without it. */
static ath_status read_id(const ath_tokenizer *t, const ath_gguf *gguf, const char *role, int32_t *id,
                          const ath_log *log, ath_error *err) {
    uint32_t value;
    if (*id >= t->vocab.n_tokens) *id = -1;
    ATH_TRY(ath_gguf_get_u32(gguf, &value, (uint32_t)*id, err, "tokenizer.ggml.%s_token_id", role));
    if (value < (uint32_t)t->vocab.n_tokens) {
        *id = (int32_t)value;
    } else if (value != UINT32_MAX) {
        ath_log_line(log, ATH_LOG_WARN, "tokenizer.ggml.%s_token_id is %u, but the vocabulary ends at %d: ignored",
                     role, value, t->vocab.n_tokens - 1);
    }
    return ATH_OK;
}

static ath_status read_or_guess_id(const ath_tokenizer *t, const ath_gguf *gguf, const char *role,
                                   const char *const *names, int32_t *id, const ath_log *log, ath_error *err) {
    *id = -1;
    ATH_TRY(read_id(t, gguf, role, id, log, err));
    for (; *names && *id < 0; names++) {
        *id = find_token(t, *names);
        if (*id < 0) continue;
        ath_log_line(log, ATH_LOG_DEBUG, "no tokenizer.ggml.%s_token_id: taking %d, %s", role, *id, *names);
    }
    return ATH_OK;
}

static void mark_eog(ath_tokenizer *t, int32_t id) {
    if (id >= 0) t->vocab.flags[id] |= ATH_TOKEN_EOG;
}

static void unmark_eog(ath_tokenizer *t, const char *text) {
    int32_t id = find_token(t, text);
    if (id >= 0) t->vocab.flags[id] &= (uint8_t)~ATH_TOKEN_EOG;
}

/* Files exist whose end-of-turn token is typed as normal text, so that a chat template's would not be recognised. But
 * "</s>" is an ordinary word of some vocabularies (Qwen's): it stays one unless it is the EOS. */
static void mark_eog_names(ath_tokenizer *t, const ath_log *log) {
    for (const char *const *name = eog_names; *name; name++) {
        int32_t id = find_token(t, *name);
        if (id < 0) continue;
        mark_eog(t, id);
        uint8_t *type = &t->vocab.types[id];
        if (*type == ATH_TOKEN_CONTROL || (strcmp(*name, "</s>") == 0 && id != t->eos)) continue;
        ath_log_line(log, ATH_LOG_WARN, "token %d %s is not marked as a control token: taken as one", id, *name);
        *type = ATH_TOKEN_CONTROL;
    }
}

static ath_status load_eog(ath_tokenizer *t, const ath_gguf *gguf, const ath_log *log, ath_error *err) {
    static const struct {
        const char *role;
        const char *const *names;
    } others[] = {{"eom", eom_names}, {"fim_pad", fim_pad_names}, {"fim_rep", fim_rep_names}, {"fim_sep", fim_sep_names}};
    ATH_TRY(read_or_guess_id(t, gguf, "eot", eot_names, &t->eot, log, err));
    mark_eog_names(t, log);
    mark_eog(t, t->eos);
    mark_eog(t, t->eot);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        int32_t id;
        ATH_TRY(read_or_guess_id(t, gguf, others[i].role, others[i].names, &id, log, err));
        mark_eog(t, id);
    }
    if (find_token(t, "<|tool_response>") >= 0) unmark_eog(t, "</s>"); /* gemma4 */
    if (find_token(t, "<|return|>") < 0 || find_token(t, "<|call|>") < 0) return ATH_OK;
    /* gpt-oss: <|end|> ends a channel, not the answer, and the channel markers are part of what it says. */
    static const char *const markers[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};
    unmark_eog(t, "<|end|>");
    for (size_t i = 0; i < sizeof markers / sizeof markers[0]; i++) {
        int32_t id = find_token(t, markers[i]);
        if (id >= 0) t->vocab.types[id] = ATH_TOKEN_USER_DEFINED;
    }
    return ATH_OK;
}

static bool is_special(const ath_vocab *vocab, int32_t id) {
    return vocab->types[id] == ATH_TOKEN_CONTROL || vocab->types[id] == ATH_TOKEN_UNKNOWN ||
           vocab->types[id] == ATH_TOKEN_USER_DEFINED;
}

static bool contains(ath_str text, const char *word) {
    size_t size = strlen(word);
    for (size_t i = 0; i + size <= text.size; i++) {
        if (strncasecmp(text.data + i, word, size) == 0) return true;
    }
    return false;
}

/* Stripping is no key of the format; it belongs to two model families. */
static ath_status load_stripping(ath_tokenizer *t, const ath_gguf *gguf, ath_error *err) {
    ath_str name;
    ATH_TRY(ath_gguf_get_str(gguf, &name, err, "general.name"));
    if (contains(name, "phi-3") || contains(name, "phi3")) {
        static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
        for (int32_t id = 0; id < t->vocab.n_tokens; id++) {
            if (is_special(&t->vocab, id)) t->vocab.flags[id] |= ATH_TOKEN_RSTRIP;
        }
        for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
            int32_t id = find_token(t, plain[i]);
            if (id >= 0) t->vocab.flags[id] &= (uint8_t)~ATH_TOKEN_RSTRIP;
        }
    }
    bool jina = strcmp(t->pre_name, "jina-v2-de") == 0 || strcmp(t->pre_name, "jina-v2-es") == 0 ||
                strcmp(t->pre_name, "jina-v2-code") == 0 || strcmp(t->pre_name, "modern-bert") == 0;
    int32_t mask = jina ? find_token(t, "<mask>") : -1;
    if (mask >= 0) t->vocab.flags[mask] |= ATH_TOKEN_LSTRIP;
    return ATH_OK;
}

typedef struct special_key {
    unsigned char first;
    uint32_t size;
} special_key;

static int compare_keys(const void *a, const void *b) {
    const special_key *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size;
}

static ath_status build_index(ath_tokenizer *t, ath_error *err) {
    size_t n = 0;
    for (int32_t id = 0; id < t->vocab.n_tokens; id++) n += is_special(&t->vocab, id);
    special_key *keys = malloc((n + 1) * sizeof *keys);
    t->special_sizes = malloc((n + 1) * sizeof *t->special_sizes);
    if (!keys || !t->special_sizes) {
        free(keys);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the special tokens");
    }
    n = 0;
    for (int32_t id = 0; id < t->vocab.n_tokens; id++) {
        ath_str text = ath_vocab_text_of(&t->vocab, id);
        if (is_special(&t->vocab, id) && text.size > 0) {
            keys[n++] = (special_key){(unsigned char)text.data[0], (uint32_t)text.size};
        }
    }
    qsort(keys, n, sizeof *keys, compare_keys);
    size_t used = 0;
    unsigned byte = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && compare_keys(&keys[i - 1], &keys[i]) == 0) continue;
        while (byte <= keys[i].first) t->special_begin[byte++] = (uint32_t)used;
        t->special_sizes[used++] = keys[i].size;
    }
    while (byte <= 256) t->special_begin[byte++] = (uint32_t)used;
    free(keys);
    return ATH_OK;
}

ath_status ath_special_load(ath_tokenizer *tokenizer, const ath_gguf *gguf, const ath_log *log, ath_error *err) {
    static const int32_t defaults[][3] = { /* bos, eos, unk */
        [ATH_TOKENIZER_SPM] = {1, 2, 0}, [ATH_TOKENIZER_BPE] = {11, 11, -1}, [ATH_TOKENIZER_GEMMA4] = {2, 1, 3},
    };
    ath_tokenizer *t = tokenizer;
    bool spm = t->kind == ATH_TOKENIZER_SPM;
    t->bos = t->pre && t->pre->no_bos ? -1 : defaults[t->kind][0];
    t->eos = defaults[t->kind][1];
    t->unk = defaults[t->kind][2];
    ATH_TRY(read_id(t, gguf, "bos", &t->bos, log, err));
    ATH_TRY(read_id(t, gguf, "eos", &t->eos, log, err));
    ATH_TRY(read_id(t, gguf, "unknown", &t->unk, log, err));
    bool add_bos = spm || (t->pre && t->pre->add_bos);
    ATH_TRY(ath_gguf_get_bool(gguf, &t->add_bos, add_bos, err, "tokenizer.ggml.add_bos_token"));
    ATH_TRY(ath_gguf_get_bool(gguf, &t->add_eos, false, err, "tokenizer.ggml.add_eos_token"));
    ATH_TRY(ath_gguf_get_bool(gguf, &t->add_space_prefix, spm, err, "tokenizer.ggml.add_space_prefix"));
    if (t->kind == ATH_TOKENIZER_GEMMA4) t->add_bos = true;
    if (t->bos < 0) t->add_bos = false;
    if (t->eos < 0) t->add_eos = false;
    if (!spm) t->add_space_prefix = false;
    ATH_TRY(load_eog(t, gguf, log, err));
    ATH_TRY(load_stripping(t, gguf, err));
    return build_index(t, err);
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Longest special token that starts at text[at]; -1: none. */
static int32_t longest_at(const ath_tokenizer *t, const char *text, size_t size, size_t at, bool parse) {
    unsigned char first = (unsigned char)text[at];
    uint32_t hash = ATH_VOCAB_HASH_SEED;
    size_t hashed = 0;
    int32_t best = -1;
    for (uint32_t i = t->special_begin[first]; i < t->special_begin[first + 1]; i++) {
        size_t length = t->special_sizes[i];
        if (length > size - at) break;
        for (; hashed < length; hashed++) hash = ath_vocab_hash_byte(hash, text[at + hashed]);
        int32_t id = ath_vocab_find_hashed(&t->vocab, text + at, length, hash);
        if (id < 0 || id >= t->vocab.n_tokens || !is_special(&t->vocab, id)) continue;
        if (parse || t->vocab.types[id] == ATH_TOKEN_USER_DEFINED) best = id;
    }
    return best;
}

bool ath_special_next(const ath_tokenizer *tokenizer, const char *text, size_t size, size_t from, bool parse,
                      size_t *start, size_t *end, int32_t *id) {
    for (size_t at = from; at < size; at++) {
        *id = longest_at(tokenizer, text, size, at, parse);
        if (*id < 0) continue;
        uint8_t flags = tokenizer->vocab.flags[*id];
        *start = at;
        *end = at + ath_vocab_text_of(&tokenizer->vocab, *id).size;
        while ((flags & ATH_TOKEN_LSTRIP) && *start > from && is_blank(text[*start - 1])) --*start;
        while ((flags & ATH_TOKEN_RSTRIP) && *end < size && is_blank(text[*end])) ++*end;
        return true;
    }
    return false;
}
