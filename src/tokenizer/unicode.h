/* UTF-8 and the classes of code points that pre-tokenizers ask for, one bit each, so that a character class of a
 * pattern is a mask. Pinned to Unicode 16.0 (gen_unicode.py says why); classes named after one model are that model's
 * own lists of ranges. */
#ifndef ATH_TOKENIZER_UNICODE_H
#define ATH_TOKENIZER_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum {
    ATH_CAT_LU = 1 << 0, /* general categories; every code point has exactly one of these 11 bits */
    ATH_CAT_LL = 1 << 1,
    ATH_CAT_LT = 1 << 2,
    ATH_CAT_LM = 1 << 3,
    ATH_CAT_LO = 1 << 4,
    ATH_CAT_M = 1 << 5,
    ATH_CAT_N = 1 << 6,
    ATH_CAT_P = 1 << 7,
    ATH_CAT_S = 1 << 8,
    ATH_CAT_Z = 1 << 9,
    ATH_CAT_C = 1 << 10,
    ATH_CAT_L = ATH_CAT_LU | ATH_CAT_LL | ATH_CAT_LT | ATH_CAT_LM | ATH_CAT_LO,
    ATH_CAT_ANY = (1 << 11) - 1,
    ATH_CLASS_SPACE = 1 << 11,    /* White_Space */
    ATH_CLASS_NEWLINE = 1 << 12,  /* \r \n */
    ATH_CLASS_BLANK = 1 << 13,    /* U+0020 */
    ATH_CLASS_SLASH = 1 << 14,    /* / */
    ATH_CLASS_DIGIT = 1 << 15,    /* 0-9 */
    ATH_CLASS_ALPHA = 1 << 16,    /* A-Z a-z */
    ATH_CLASS_PUNCT = 1 << 17,    /* ASCII punctuation and symbols */
    ATH_CLASS_MATH = 1 << 18,     /* $ + < = > ^ ~ | */
    ATH_CLASS_BACKTICK = 1 << 19,  /* ` */
    ATH_CLASS_LINE_FEED = 1 << 20, /* \n */
    ATH_CLASS_HAN = 1 << 21,       /* Script=Han */
    ATH_CLASS_CJK_CODER = 1 << 22, /* deepseek-coder and -llm: [一-龥ࠀ-一가-퟿] */
    ATH_CLASS_CJK_V3 = 1 << 23,    /* deepseek-v3: [一-龥぀-ゟ゠-ヿ] */
    ATH_CLASS_CASED_LLM = 1 << 24, /* deepseek-llm: its list of cased letters */
    ATH_CLASS_PUNCT_LLM = 1 << 25, /* deepseek-llm: [!-/:-~！-／：-～‘-‟　-。] */
};

/* Length in bytes (1..4) of the code point at text, size > 0; 0 if the bytes there are no valid UTF-8. */
size_t ath_utf8_decode(const char *text, size_t size, uint32_t *code_point);
/* Writes 1..4 bytes, returns how many. code_point <= 0x10FFFF. */
size_t ath_utf8_encode(uint32_t code_point, char out[4]);

/* All bits of a code point. The ones from range lists (HAN and below) cost a search each: only those in wanted. */
uint32_t ath_unicode_classes(uint32_t code_point, uint32_t wanted);

extern const size_t ath_unicode_n_runs;
extern const uint32_t ath_unicode_runs[];

#endif
