/* The matcher of pre-tokenizer patterns. Each alternative's cost is bounded by what it consumes, or by a run of
 * characters that the next alternative is certain to consume, so that a pass is linear. */
#include "tokenizer/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/unicode.h"

#define CUT 0x80000000u /* in a class word: a piece starts at this code point */

/* One text, by code points; [begin, end) is the piece that the pass works on. */
typedef struct scan {
    const char *text;
    const uint32_t *offsets; /* [n + 1] bytes */
    uint32_t *classes;       /* [n] */
    size_t begin, end;
} scan;

const ath_pre *ath_pre_find(const char *name, size_t size) {
    if (size == 0 || memchr(name, ' ', size)) return NULL;
    for (size_t i = 0; i < ath_pre_count; i++) {
        for (const char *at = ath_pre_table[i].names; *at; at += strspn(at, " ")) {
            size_t length = strcspn(at, " ");
            if (length == size && memcmp(at, name, size) == 0) return &ath_pre_table[i];
            at += length;
        }
    }
    return NULL;
}

static bool in_class(uint32_t classes, ath_class c) { return (classes & c.any) && !(classes & c.none); }

/* End of the run of c that starts at i; at most max long if max > 0. */
static size_t run_end(const scan *s, size_t i, ath_class c, size_t max) {
    size_t stop = max && max < s->end - i ? i + max : s->end;
    while (i < stop && in_class(s->classes[i], c)) i++;
    return i;
}

/* The ASCII letter at i, lower case if fold; 0 if there is none. U+017F folds to s. */
static char letter_at(const scan *s, size_t i, bool fold) {
    if (i >= s->end) return 0;
    const char *at = s->text + s->offsets[i];
    size_t size = s->offsets[i + 1] - s->offsets[i];
    if (fold && size == 2 && memcmp(at, "\xC5\xBF", 2) == 0) return 's';
    if (size != 1) return 0;
    return fold && *at >= 'A' && *at <= 'Z' ? (char)(*at + 32) : *at;
}

static size_t match_contraction(const scan *s, size_t i, bool fold) {
    if (letter_at(s, i, false) != '\'') return i;
    char a = letter_at(s, i + 1, fold), b = letter_at(s, i + 2, fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return i;
}

/* body* tail+ from i: the body run gives back characters until the tail has one. */
static size_t match_cased_lower(const scan *s, size_t i, const ath_alt *alt) {
    size_t upper = run_end(s, i, alt->body, 0);
    size_t lower = run_end(s, upper, alt->tail, 0);
    if (lower > upper) return lower;
    while (upper > i && !in_class(s->classes[upper - 1], alt->tail)) upper--;
    return upper;
}

/* What follows the prefix; i if nothing matches. */
static size_t match_body(const scan *s, size_t i, const ath_alt *alt) {
    if (alt->kind == ATH_ALT_CASED_LOWER) return match_cased_lower(s, i, alt);
    size_t end = run_end(s, i, alt->body, alt->max);
    if (end - i < (alt->min ? alt->min : 1)) return i;
    return alt->tail.any ? run_end(s, end, alt->tail, 0) : end;
}

static size_t match_word(const scan *s, size_t i, const ath_alt *alt) {
    size_t end = i;
    if (in_class(s->classes[i], alt->prefix)) {
        end = match_body(s, i + 1, alt);
        if (end == i + 1) end = i;
    }
    if (end == i && alt->kind != ATH_ALT_AFTER) end = match_body(s, i, alt);
    return end > i && alt->contraction ? match_contraction(s, end, true) : end;
}

static size_t match_spaces(const scan *s, size_t i, ath_alt_kind kind) {
    static const ath_class space = {ATH_CLASS_SPACE, 0};
    /* Only the first of a run can start a match that must reach the end: the others need not look. */
    if (kind == ATH_ALT_SPACES_LAST && i > s->begin && in_class(s->classes[i - 1], space)) return i;
    size_t end = run_end(s, i, space, 0);
    switch (kind) {
    case ATH_ALT_LINES:
        while (end > i && !(s->classes[end - 1] & ATH_CLASS_NEWLINE)) end--;
        return end;
    case ATH_ALT_SPACES_BEFORE: return end == s->end || end == i ? end : end - 1;
    case ATH_ALT_SPACES_LAST: return end == s->end ? end : i;
    default: return end;
    }
}

/* End of the match at i; i if the alternative does not match there. */
static size_t match_alt(const scan *s, size_t i, const ath_alt *alt) {
    switch (alt->kind) {
    case ATH_ALT_CONTRACTION: return match_contraction(s, i, false);
    case ATH_ALT_CONTRACTION_I: return match_contraction(s, i, true);
    case ATH_ALT_RUN:
    case ATH_ALT_AFTER:
    case ATH_ALT_CASED_LOWER:
    case ATH_ALT_CASED_UPPER: return match_word(s, i, alt);
    default: return match_spaces(s, i, alt->kind);
    }
}

static void split_piece(scan *s, const ath_alt *pass) {
    for (size_t i = s->begin; i < s->end;) {
        size_t end = i;
        for (const ath_alt *alt = pass; end == i && alt->kind != ATH_ALT_END; alt++) end = match_alt(s, i, alt);
        if (end == i) { /* a gap: the code point joins what is unmatched around it */
            i++;
            continue;
        }
        s->classes[i] |= CUT;
        if (end < s->end) s->classes[end] |= CUT;
        i = end;
    }
}

static bool reserve(ath_pieces *pieces, size_t n) {
    if (n <= pieces->capacity) return true;
    uint32_t *offsets = realloc(pieces->offsets, n * sizeof *offsets);
    if (!offsets) return false;
    pieces->offsets = offsets;
    uint32_t *classes = realloc(pieces->classes, n * sizeof *classes);
    if (!classes) return false;
    pieces->classes = classes;
    pieces->capacity = n;
    return true;
}

void ath_pieces_free(ath_pieces *pieces) {
    free(pieces->offsets);
    free(pieces->classes);
    *pieces = (ath_pieces){0};
}

static uint32_t wanted_classes(const ath_pre *pre) {
    uint32_t wanted = 0;
    for (const ath_alt *const *pass = pre->passes; *pass; pass++) {
        for (const ath_alt *alt = *pass; alt->kind != ATH_ALT_END; alt++) {
            wanted |= alt->prefix.any | alt->prefix.none | alt->body.any | alt->body.none | alt->tail.any |
                      alt->tail.none;
        }
    }
    return wanted;
}

bool ath_pre_split(const ath_pre *pre, const char *text, size_t size, ath_pieces *pieces) {
    if (!reserve(pieces, size + 1)) return false;
    uint32_t wanted = wanted_classes(pre);
    size_t n = 0;
    for (size_t at = 0; at < size; n++) {
        uint32_t cp = 0;
        size_t length = ath_utf8_decode(text + at, size - at, &cp);
        pieces->offsets[n] = (uint32_t)at;
        pieces->classes[n] = length ? ath_unicode_classes(cp, wanted) : ATH_CAT_C;
        at += length ? length : 1;
    }
    pieces->offsets[n] = (uint32_t)size;
    pieces->classes[0] |= n ? CUT : 0;

    for (const ath_alt *const *pass = pre->passes; *pass; pass++) {
        for (size_t begin = 0, end; begin < n; begin = end) {
            for (end = begin + 1; end < n && !(pieces->classes[end] & CUT);) end++;
            scan s = {text, pieces->offsets, pieces->classes, begin, end};
            split_piece(&s, *pass);
        }
    }
    pieces->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (pieces->classes[i] & CUT) pieces->offsets[pieces->n++] = pieces->offsets[i];
    }
    pieces->offsets[pieces->n] = (uint32_t)size;
    return true;
}
