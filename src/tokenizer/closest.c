/* A way of cutting text for a vocabulary whose own is not known, told from its tokens.
 *
 * Byte-level BPE merges within pieces only: the way that a vocabulary was learned with leaves each of its tokens whole. So of the
 * known ways those fit that cut fewest tokens; and of these the one that cuts text finest is taken, since where it cuts and the
 * right one doesn't, no token lies across, while a coarser one might merge what the model never saw as one token. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

enum { FITS_FROM = 200 }; /* a way that cuts more than one token in so many doesn't fit */

typedef struct sample { /* the tokens that are text by themselves, one after another */
    char *text;
    uint32_t *sizes; /* [n] */
    size_t n, size;
} sample;

static bool is_utf8(const char *text, size_t size) {
    uint32_t code_point;
    for (size_t at = 0, step; at < size; at += step) {
        step = ath_utf8_decode(text + at, size - at, &code_point);
        if (step == 0) return false;
    }
    return true;
}

static bool take_sample(const ath_tokenizer *t, sample *s) {
    const ath_vocab *v = &t->vocab;
    *s = (sample){.text = malloc(v->arena_size + 1), .sizes = malloc(((size_t)v->n_tokens + 1) * sizeof *s->sizes)};
    if (!s->text || !s->sizes) return false;
    for (int32_t id = 0; id < v->n_tokens; id++) {
        size_t size = v->types[id] == ATH_TOKEN_NORMAL ? ath_tokenizer_piece(t, id, false, NULL, 0) : 0;
        if (size == 0 || size > v->arena_size - s->size) continue;
        ath_tokenizer_piece(t, id, false, s->text + s->size, size);
        if (!is_utf8(s->text + s->size, size)) continue;
        s->sizes[s->n++] = (uint32_t)size;
        s->size += size;
    }
    return true;
}

/* How many tokens `pre` cuts, and how many pieces it makes of all of them together. */
static bool measure(const ath_pre *pre, const sample *s, size_t *cut, size_t *n_pieces) {
    ath_pieces pieces = {0};
    bool ok = true;
    *cut = 0;
    for (size_t i = 0, at = 0; ok && i < s->n; at += s->sizes[i++]) {
        ok = ath_pre_split(pre, s->text + at, s->sizes[i], &pieces);
        *cut += ok && pieces.n > 1;
    }
    ok = ok && ath_pre_split(pre, s->text, s->size, &pieces);
    *n_pieces = pieces.n;
    ath_pieces_free(&pieces);
    return ok;
}

static bool is_candidate(const ath_pre *pre) { /* the two others are a stopgap, and for text that is not mapped */
    return strcmp(pre->names, "default") != 0 && strcmp(pre->names, "gemma4") != 0;
}

ath_status ath_pre_closest(const ath_tokenizer *t, const ath_pre **out, size_t *cut, size_t *n, ath_error *err) {
    sample s;
    bool ok = take_sample(t, &s);
    size_t most_pieces = 0;
    *out = NULL;
    *cut = 0;
    for (size_t i = 0; ok && i < ath_pre_count; i++) {
        size_t this_cut, pieces;
        if (!is_candidate(&ath_pre_table[i])) continue;
        ok = measure(&ath_pre_table[i], &s, &this_cut, &pieces);
        if (!ok || (*out && (this_cut > *cut || (this_cut == *cut && pieces <= most_pieces)))) continue;
        *out = &ath_pre_table[i];
        *cut = this_cut;
        most_pieces = pieces;
    }
    *n = s.n;
    free(s.text);
    free(s.sizes);
    if (!ok) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the tokenizer");
    if (*cut > *n / FITS_FROM) *out = NULL;
    return ATH_OK;
}
