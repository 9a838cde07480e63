/* Pre-tokenizers: how a model's tokenizer cuts text into pieces before it merges bytes. One table row per way to cut;
 * a row is a list of passes, each applied to the pieces that the one before left, each a list of alternatives tried
 * in order, as in a regular expression `a|b|c` whose matches and whose gaps both become pieces.
 *
 * Matched by hand over class masks instead of by a general engine: exact Unicode version, linear time on any input. */
#ifndef ATH_TOKENIZER_PRETOKENIZE_H
#define ATH_TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A character class: any of these bits, and none of those (unicode.h). {0, 0} is the empty class. */
typedef struct ath_class {
    uint32_t any, none;
} ath_class;

typedef enum ath_alt_kind {
    ATH_ALT_END = 0,       /* ends a list */
    ATH_ALT_CONTRACTION,   /* 's|'t|'re|'ve|'m|'ll|'d */
    ATH_ALT_CONTRACTION_I, /* the same, any case */
    ATH_ALT_RUN,           /* prefix? body{min,max} tail* */
    ATH_ALT_AFTER,         /* prefix body{min,max} tail* */
    ATH_ALT_CASED_LOWER,   /* prefix? body* tail+ : body is upper, tail is lower, with characters that are both */
    ATH_ALT_CASED_UPPER,   /* prefix? body+ tail* */
    ATH_ALT_LINES,         /* \s*[\r\n]+ */
    ATH_ALT_SPACES_BEFORE, /* \s+(?!\S) */
    ATH_ALT_SPACES,        /* \s+ */
    ATH_ALT_SPACES_LAST,   /* \s+$ */
} ath_alt_kind;

typedef struct ath_alt {
    ath_alt_kind kind;
    ath_class prefix, body, tail;
    uint32_t min, max; /* of body; max 0: no limit */
    bool contraction;  /* followed by an optional any-case contraction */
} ath_alt;

typedef struct ath_pre {
    const char *names;        /* values of tokenizer.ggml.pre, between spaces */
    const ath_alt *passes[7]; /* NULL-terminated */
    bool ignore_merges;       /* a piece that is a token as it stands is not merged up */
    bool add_bos;             /* default of add_bos_token */
    bool no_bos;              /* without a key, the model has no BOS */
} ath_pre;

extern const ath_pre ath_pre_table[];
extern const size_t ath_pre_count;

/* NULL if no row has that name. */
const ath_pre *ath_pre_find(const char *name, size_t size);

/* Pieces of one text, as offsets into it: piece i is [offsets[i], offsets[i + 1]). Reused from call to call. */
typedef struct ath_pieces {
    uint32_t *offsets; /* [n + 1] */
    size_t n;
    uint32_t *classes; /* work space: [capacity] */
    size_t capacity;
} ath_pieces;

/* Cuts text[size], size < 2^31. A byte that is no valid UTF-8 counts as one code point without any property.
 * False: no memory. */
bool ath_pre_split(const ath_pre *pre, const char *text, size_t size, ath_pieces *pieces);
void ath_pieces_free(ath_pieces *pieces);

#endif
