/* Classes of code points: ASCII by comparison, the rest by search in the generated runs and in a few range lists. */
#include "tokenizer/unicode.h"

#include <stdbool.h>
#include <string.h>

typedef struct range {
    uint32_t first, last;
} range;

/* \p{Han} of Unicode 16.0. */
static const range han[] = {
    {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},   {0x3007, 0x3007},
    {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},
    {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3}, {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739},
    {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
    {0x30000, 0x3134A}, {0x31350, 0x323AF},
};
static const range cjk_coder[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};
static const range cjk_v3[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
static const range cased_llm[] = {
    {0x0041, 0x005A}, {0x0061, 0x007A}, {0x00B5, 0x00B5}, {0x00C0, 0x00D6}, {0x00D8, 0x00F6}, {0x00F8, 0x01BA},
    {0x01BC, 0x01BF}, {0x01C4, 0x0293}, {0x0295, 0x02AF}, {0x0370, 0x0373}, {0x0376, 0x0377}, {0x037B, 0x037D},
    {0x037F, 0x037F}, {0x0386, 0x0386}, {0x0388, 0x038A}, {0x038C, 0x038C}, {0x038E, 0x03A1}, {0x03A3, 0x03F5},
    {0x03F7, 0x0481}, {0x048A, 0x052F}, {0x0531, 0x0556}, {0x10A0, 0x10C5}, {0x13A0, 0x13F5}, {0x13F8, 0x13FD},
    {0x1C90, 0x1CBA}, {0x1CBD, 0x1CBF}, {0x1D00, 0x1D2B}, {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D}, {0x1F20, 0x1F45}, {0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59}, {0x1F5B, 0x1F5B},
    {0x1F5D, 0x1F5D}, {0x1F5F, 0x1F7D}, {0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC}, {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4},
    {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3}, {0x1FD6, 0x1FDB}, {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FFC},
    {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210A, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211D}, {0x2124, 0x2124},
    {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212A, 0x212D}, {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F},
    {0x2145, 0x2149}, {0x214E, 0x214E}, {0x2183, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4}, {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F}, {0xA771, 0xA787}, {0xA78B, 0xA78E},
    {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17}, {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A},
    {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2},
    {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};
static const range punct_llm[] = {
    {0x0021, 0x002F}, {0x003A, 0x007E}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E},
};

static const struct {
    uint32_t bit;
    const range *ranges;
    size_t n;
} range_classes[] = {
    {ATH_CLASS_HAN, han, sizeof han / sizeof han[0]},
    {ATH_CLASS_CJK_CODER, cjk_coder, sizeof cjk_coder / sizeof cjk_coder[0]},
    {ATH_CLASS_CJK_V3, cjk_v3, sizeof cjk_v3 / sizeof cjk_v3[0]},
    {ATH_CLASS_CASED_LLM, cased_llm, sizeof cased_llm / sizeof cased_llm[0]},
    {ATH_CLASS_PUNCT_LLM, punct_llm, sizeof punct_llm / sizeof punct_llm[0]},
};

static bool in_ranges(uint32_t cp, const range *ranges, size_t n) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > ranges[middle].last) low = middle + 1;
        else high = middle;
    }
    return low < n && cp >= ranges[low].first;
}

static uint32_t category(uint32_t cp) {
    size_t low = 0, high = ath_unicode_n_runs; /* runs[low] starts at or before cp */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (ath_unicode_runs[middle] >> 8 <= cp) low = middle;
        else high = middle;
    }
    return 1u << (ath_unicode_runs[low] & 0xFF);
}

static uint32_t ascii_classes(uint32_t cp) {
    if (cp >= 'a' && cp <= 'z') return ATH_CAT_LL | ATH_CLASS_ALPHA;
    if (cp >= 'A' && cp <= 'Z') return ATH_CAT_LU | ATH_CLASS_ALPHA;
    if (cp == ' ') return ATH_CAT_Z | ATH_CLASS_SPACE | ATH_CLASS_BLANK;
    if (cp >= '0' && cp <= '9') return ATH_CAT_N | ATH_CLASS_DIGIT;
    if (cp < ' ' || cp == 0x7F) {
        if (cp == '\n') return ATH_CAT_C | ATH_CLASS_SPACE | ATH_CLASS_NEWLINE | ATH_CLASS_LINE_FEED;
        if (cp == '\r') return ATH_CAT_C | ATH_CLASS_SPACE | ATH_CLASS_NEWLINE;
        return ATH_CAT_C | (cp >= '\t' && cp <= '\r' ? ATH_CLASS_SPACE : 0);
    }
    bool math = strchr("$+<=>^~|", (int)cp) != NULL;
    uint32_t bits = (math || cp == '`' ? ATH_CAT_S : ATH_CAT_P) | ATH_CLASS_PUNCT;
    if (math) bits |= ATH_CLASS_MATH;
    if (cp == '`') bits |= ATH_CLASS_BACKTICK;
    if (cp == '/') bits |= ATH_CLASS_SLASH;
    return bits;
}

uint32_t ath_unicode_classes(uint32_t code_point, uint32_t wanted) {
    uint32_t bits = code_point < 0x80 ? ascii_classes(code_point) : category(code_point);
    /* White_Space beyond ASCII: all separators, and NEL. */
    if (code_point >= 0x80 && ((bits & ATH_CAT_Z) || code_point == 0x85)) bits |= ATH_CLASS_SPACE;
    for (size_t i = 0; i < sizeof range_classes / sizeof range_classes[0]; i++) {
        if (!(wanted & range_classes[i].bit)) continue;
        if (in_ranges(code_point, range_classes[i].ranges, range_classes[i].n)) bits |= range_classes[i].bit;
    }
    return bits;
}

size_t ath_utf8_decode(const char *text, size_t size, uint32_t *code_point) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *code_point = s[0];
        return 1;
    }
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n > size) return 0;
    uint32_t cp = s[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        cp = cp << 6 | (s[i] & 0x3F);
    }
    if (cp < smallest[n] || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return 0;
    *code_point = cp;
    return n;
}

size_t ath_utf8_encode(uint32_t code_point, char out[4]) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    size_t n = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code_point >>= 6) out[i] = (char)(0x80 | (code_point & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xFF) | code_point);
    return n;
}
