/* The pre-tokenizers that are known: one row each, by the names that GGUF files use. The comment beside each pass is
 * the regular expression that it stands for; C is (?i:'s|'t|'re|'ve|'m|'ll|'d). */
#include "tokenizer/pretokenize.h"
#include "tokenizer/unicode.h"

/* Classes. ANY makes the complement of the second mask. */
#define ANY ATH_CAT_ANY
#define L ATH_CAT_L
#define M ATH_CAT_M
#define N ATH_CAT_N
#define P ATH_CAT_P
#define S ATH_CAT_S
#define SPACE ATH_CLASS_SPACE
#define NEWLINE ATH_CLASS_NEWLINE
#define UPPER (ATH_CAT_LU | ATH_CAT_LT | ATH_CAT_LM | ATH_CAT_LO | M)
#define LOWER (ATH_CAT_LL | ATH_CAT_LM | ATH_CAT_LO | M)

/* Alternatives. */
#define RUN(...) {.kind = ATH_ALT_RUN, __VA_ARGS__}
#define CONTRACTION {.kind = ATH_ALT_CONTRACTION_I}
#define WORD(prefix_, body_) RUN(.prefix = {ANY, prefix_}, .body = {body_, 0})
#define NUMBER(max_) RUN(.body = {N, 0}, .max = max_)
#define SYMBOLS(none_, tail_) RUN(.prefix = {ATH_CLASS_BLANK, 0}, .body = {ANY, none_}, .tail = {tail_, 0})
#define BLANK_RUN(any_, none_) RUN(.prefix = {ATH_CLASS_BLANK, 0}, .body = {any_, none_})
#define SPACE_RUN(any_) RUN(.prefix = {SPACE, 0}, .body = {any_, 0})
#define CASED(kind_, not_, suffix_)                                                                          \
    {.kind = kind_, .prefix = {ANY, NEWLINE | L | N}, .body = {UPPER, not_}, .tail = {LOWER, not_},           \
     .contraction = suffix_}
#define CASED_WORDS(not_, suffix_)                                                                           \
    CASED(ATH_ALT_CASED_LOWER, not_, suffix_), CASED(ATH_ALT_CASED_UPPER, not_, suffix_)
#define SPACES_BEFORE {.kind = ATH_ALT_SPACES_BEFORE}
#define SPACES {.kind = ATH_ALT_SPACES}
#define LINES_AND_SPACES {.kind = ATH_ALT_LINES}, SPACES_BEFORE, SPACES /* \s*[\r\n]+|\s+(?!\S)|\s+ */
#define END {.kind = ATH_ALT_END}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const ath_alt gpt2[] = {
    {.kind = ATH_ALT_CONTRACTION}, BLANK_RUN(L, 0), BLANK_RUN(N, 0), BLANK_RUN(ANY, SPACE | L | N),
    SPACES_BEFORE, SPACES, END,
};

/* C|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const ath_alt llama3[] = {
    CONTRACTION, WORD(NEWLINE | L | N, L), NUMBER(3), SYMBOLS(SPACE | L | N, NEWLINE), LINES_AND_SPACES, END,
};

/* llama3 with \p{N} */
static const ath_alt qwen2[] = {
    CONTRACTION, WORD(NEWLINE | L | N, L), NUMBER(1), SYMBOLS(SPACE | L | N, NEWLINE), LINES_AND_SPACES, END,
};

/* C|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const ath_alt qwen35[] = {
    CONTRACTION, WORD(NEWLINE | L | N, L | M), NUMBER(1), SYMBOLS(SPACE | L | M | N, NEWLINE), LINES_AND_SPACES, END,
};

/* With u = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], l = [\p{Ll}\p{Lm}\p{Lo}\p{M}], x = [^\r\n\p{L}\p{N}]:
 * x?u*l+|x?u+l*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const ath_alt tekken[] = {
    CASED_WORDS(0, false), NUMBER(1), SYMBOLS(SPACE | L | N, NEWLINE | ATH_CLASS_SLASH), LINES_AND_SPACES, END,
};

/* x?u*l+C?|x?u+l*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const ath_alt gpt4o[] = {
    CASED_WORDS(0, true), NUMBER(3), SYMBOLS(SPACE | L | N, NEWLINE | ATH_CLASS_SLASH), LINES_AND_SPACES, END,
};

/* \p{Han}+, then gpt4o's with u and l without Han, and [\r\n]* for [\r\n/]* */
static const ath_alt kimi_k2[] = {
    RUN(.body = {ATH_CLASS_HAN, 0}), CASED_WORDS(ATH_CLASS_HAN, true), NUMBER(3), SYMBOLS(SPACE | L | N, NEWLINE),
    LINES_AND_SPACES, END,
};

/* C|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const ath_alt seed_coder[] = {
    CONTRACTION, WORD(NEWLINE | L | N, L), NUMBER(1), BLANK_RUN(ANY, SPACE | L | N), LINES_AND_SPACES, END,
};

static const ath_alt numbers[] = {NUMBER(0), END};                                      /* \p{N}+ */
static const ath_alt one_number[] = {NUMBER(1), END};                                   /* \p{N} */
static const ath_alt three_numbers[] = {NUMBER(3), END};                                /* \p{N}{1,3} */
static const ath_alt three_digits[] = {RUN(.body = {ATH_CLASS_DIGIT, 0}, .min = 3, .max = 3), END}; /* [0-9]{3} */
static const ath_alt newline[] = {RUN(.body = {NEWLINE, 0}, .max = 1), END};            /* [\r\n] */
static const ath_alt spaced_letters[] = {SPACE_RUN(L), END};                            /* \s?\p{L}+ */
static const ath_alt spaced_punctuation[] = {SPACE_RUN(P), END};                        /* \s?\p{P}+ */
static const ath_alt spaced_cased[] = {SPACE_RUN(ATH_CLASS_CASED_LLM), END};            /* \s?[A-Za-zµÀ-Ö...]+ */
static const ath_alt spaced_punct_llm[] = {SPACE_RUN(ATH_CLASS_PUNCT_LLM), END};        /* \s?[!-/:-~！-／...]+ */
static const ath_alt last_spaces[] = {{.kind = ATH_ALT_SPACES_LAST}, END};              /* \s+$ */
static const ath_alt cjk_coder[] = {RUN(.body = {ATH_CLASS_CJK_CODER, 0}), END};        /* [一-龥ࠀ-一가-퟿]+ */
static const ath_alt cjk_v3[] = {RUN(.body = {ATH_CLASS_CJK_V3, 0}), END};              /* [一-龥぀-ゟ゠-ヿ]+ */
static const ath_alt symbols_falcon[] = {                                               /* [\p{P}\$\+<=>\^~\|`]+ */
    RUN(.body = {P | ATH_CLASS_MATH | ATH_CLASS_BACKTICK, 0}), END};
static const ath_alt symbols_default[] = {RUN(.body = {P | ATH_CLASS_MATH, 0}), END};   /* [\p{P}\$\+<=>\^~\|]+ */

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static const ath_alt deepseek_v3[] = {
    {.kind = ATH_ALT_AFTER, .prefix = {ATH_CLASS_PUNCT, 0}, .body = {ATH_CLASS_ALPHA, 0}},
    WORD(NEWLINE | L | P | S, L | M),
    RUN(.prefix = {ATH_CLASS_BLANK, 0}, .body = {P | S, 0}, .tail = {NEWLINE, 0}),
    LINES_AND_SPACES, END,
};

/* [^\n]+|[\n]+ */
static const ath_alt lines[] = {
    RUN(.body = {ANY, ATH_CLASS_LINE_FEED}), RUN(.body = {ATH_CLASS_LINE_FEED, 0}), END,
};

const ath_pre ath_pre_table[] = {
    {.names = "default", .passes = {symbols_default, gpt2, numbers, three_digits}},
    {.names = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", .passes = {llama3},
     .ignore_merges = true, .add_bos = true},
    {.names = "dbrx smaug-bpe", .passes = {llama3}},
    {.names = "glm4 chatglm-bpe", .passes = {llama3}, .no_bos = true},
    {.names = "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan", .passes = {qwen2}},
    {.names = "qwen35", .passes = {qwen35}},
    {.names = "gpt-2 phi-2 olmo mpt jais trillion granite-docling gigachat roberta-bpe jina-es jina-de jina-v1-en "
              "jina-v2-es jina-v2-de jina-v2-code a.x-4.0 mellum modern-bert exaone4",
     .passes = {gpt2}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b", .passes = {one_number, gpt2}},
    {.names = "tekken", .passes = {tekken}, .ignore_merges = true, .add_bos = true},
    {.names = "gpt-4o llama4 kanana2 talkie", .passes = {gpt4o}},
    {.names = "kimi-k2", .passes = {kimi_k2}},
    {.names = "seed-coder", .passes = {seed_coder}},
    {.names = "deepseek-llm",
     .passes = {newline, spaced_cased, spaced_punct_llm, last_spaces, cjk_coder, numbers}},
    {.names = "deepseek-coder", .passes = {newline, spaced_letters, spaced_punctuation, cjk_coder, one_number}},
    {.names = "deepseek-v3 hunyuan-dense", .passes = {three_numbers, cjk_v3, deepseek_v3}},
    {.names = "falcon", .passes = {symbols_falcon, gpt2, three_digits}},
    {.names = "gemma4", .passes = {lines}},
};
const size_t ath_pre_count = sizeof ath_pre_table / sizeof ath_pre_table[0];
