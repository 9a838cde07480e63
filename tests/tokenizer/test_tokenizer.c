/* The tokenizer: loading, hostile metadata, round trips, linear time. Also the driver of the Python tests:
 *   test_tokenizer --encode FILE.gguf FLAGS   a line per string: ids, a tab, the decoded bytes in hex
 *   test_tokenizer --split PRE                a line per string: sizes of the pieces in bytes
 *   test_tokenizer --classes                  a line per code point: its ATH_CAT_* and ATH_CLASS_* bits
 *   test_tokenizer --info FILE.gguf           ids with a role, the end-of-generation set
 * Strings come on stdin, each behind its size as four little-endian bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

/* ---- driver */

static char *read_string(size_t *size) {
    unsigned char head[4];
    if (fread(head, 1, 4, stdin) != 4) return NULL;
    *size = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    char *text = malloc(*size + 1);
    if (!text || fread(text, 1, *size, stdin) != *size) exit(2);
    return text;
}

static void print_log(void *user, ath_log_level level, const char *line) {
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static ath_tokenizer *load_file(const char *path) {
    ath_error err = {0};
    ath_gguf *gguf;
    ath_tokenizer *tokenizer;
    ath_log log = {print_log, NULL};
    if (ath_gguf_open(&gguf, path, &err) != ATH_OK || ath_tokenizer_create(&tokenizer, gguf, false, &log, &err) != ATH_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    ath_gguf_close(gguf);
    return tokenizer;
}

static int drive_encode(const char *path, unsigned flags) {
    ath_tokenizer *tokenizer = load_file(path);
    size_t size, n, decoded_size;
    for (char *text; (text = read_string(&size)); free(text)) {
        int32_t *ids;
        char *decoded;
        if (ath_tokenizer_encode(tokenizer, text, size, flags, &ids, &n, NULL) != ATH_OK) return 1;
        if (ath_tokenizer_decode(tokenizer, ids, n, true, &decoded, &decoded_size, NULL) != ATH_OK) return 1;
        for (size_t i = 0; i < n; i++) printf("%d ", ids[i]);
        printf("\t");
        for (size_t i = 0; i < decoded_size; i++) printf("%02x", (unsigned char)decoded[i]);
        printf("\n");
        free(ids);
        free(decoded);
    }
    ath_tokenizer_free(tokenizer);
    return 0;
}

static int drive_split(const char *name) {
    const ath_pre *pre = ath_pre_find(name, strlen(name));
    if (!pre) return 1;
    ath_pieces pieces = {0};
    size_t size;
    for (char *text; (text = read_string(&size)); free(text)) {
        if (!ath_pre_split(pre, text, size, &pieces)) return 1;
        for (size_t i = 0; i < pieces.n; i++) printf("%u ", pieces.offsets[i + 1] - pieces.offsets[i]);
        printf("\n");
    }
    ath_pieces_free(&pieces);
    return 0;
}

static int drive_classes(void) {
    for (uint32_t cp = 0; cp < 0x110000; cp++) printf("%u\n", ath_unicode_classes(cp, UINT32_MAX));
    return 0;
}

static int drive_info(const char *path) {
    ath_tokenizer *t = load_file(path);
    printf("model %s\npre %s\nn_vocab %d\nbos %d\neos %d\neot %d\nadd_bos %d\nadd_eos %d\neog", ath_tokenizer_model(t),
           ath_tokenizer_pre(t), ath_tokenizer_n_vocab(t), ath_tokenizer_bos(t), ath_tokenizer_eos(t),
           ath_tokenizer_eot(t), ath_tokenizer_add_bos(t), ath_tokenizer_add_eos(t));
    for (int32_t id = 0; id < ath_tokenizer_n_vocab(t); id++) {
        if (ath_tokenizer_is_eog(t, id)) printf(" %d", id);
    }
    printf("\n");
    ath_tokenizer_free(t);
    return 0;
}

/* ---- vocabularies made here */

typedef struct recipe {
    const char *model, *pre;
    const char *tokens[400];
    int32_t types[400];
    float scores[400];
    size_t n_tokens, n_types, n_scores;
    const char *merges[40];
    size_t n_merges;
    bool no_merges;
    const char *id_key; /* one more key */
    uint32_t id;
    const char *name; /* general.name */
} recipe;

static void add_token(recipe *r, const char *text, int32_t type, float score) {
    r->tokens[r->n_tokens] = text;
    r->types[r->n_types++] = type;
    r->scores[r->n_scores++] = score;
    r->n_tokens++;
}

static char byte_texts[256][8];

static recipe spm_recipe(void) {
    recipe r = {.model = "llama"};
    add_token(&r, "<unk>", 2, 0);
    add_token(&r, "<s>", 3, 0);
    add_token(&r, "</s>", 3, 0);
    for (int b = 0; b < 256; b++) {
        snprintf(byte_texts[b], sizeof byte_texts[b], "<0x%02X>", (unsigned)b);
        add_token(&r, byte_texts[b], 6, 0);
    }
    static const char *const words[] = {"▁", "a", "b", "ab", "▁a", "▁ab", "bb", "aa", "<", "s", ">", "<s", "▁▁", "s▁"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) add_token(&r, words[i], 1, -(float)i);
    add_token(&r, "[tool]", 4, 0);
    return r;
}

static recipe bpe_recipe(const char *pre) {
    static char texts[256][8];
    recipe r = {.model = "gpt2", .pre = pre};
    for (int b = 0; b < 256; b++) {
        uint32_t cp = b <= 32 ? 256u + (unsigned)b : b >= 127 && b <= 160 ? 289u + (unsigned)b - 127 : b == 173 ? 323u : (unsigned)b;
        texts[b][ath_utf8_encode(cp, texts[b])] = 0;
        add_token(&r, texts[b], 1, 0);
    }
    static const char *const words[] = {"ab", "abc", "bc", "Ġa", "aa", "aaaa", "ĠĠ"};
    static const char *const merges[] = {"b c", "a b", "ab c", "Ġ a", "a a", "aa aa", "Ġ Ġ", "x y", "xy z"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) add_token(&r, words[i], 1, 0);
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) r.merges[r.n_merges++] = merges[i];
    add_token(&r, "xyz", 1, 0);
    add_token(&r, "<|im_end|>", 3, 0);
    add_token(&r, "<|im_end|>x", 4, 0);
    return r;
}

static ath_status build(const recipe *r, ath_tokenizer **out, ath_error *err) {
    char path[] = "/tmp/ath_tokenizer_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    ath_gguf_writer *w;
    assert_int_equal(ath_gguf_writer_create(&w, NULL), ATH_OK);
    ath_gguf_put_str(w, "general.architecture", "llama", NULL);
    if (r->name) ath_gguf_put_str(w, "general.name", r->name, NULL);
    if (r->model) ath_gguf_put_str(w, "tokenizer.ggml.model", r->model, NULL);
    if (r->pre) ath_gguf_put_str(w, "tokenizer.ggml.pre", r->pre, NULL);
    ath_gguf_put_str_array(w, "tokenizer.ggml.tokens", r->tokens, r->n_tokens, NULL);
    ath_gguf_put_array(w, "tokenizer.ggml.token_type", ATH_GGUF_I32, r->types, r->n_types, NULL);
    ath_gguf_put_array(w, "tokenizer.ggml.scores", ATH_GGUF_F32, r->scores, r->n_scores, NULL);
    if (!r->no_merges) ath_gguf_put_str_array(w, "tokenizer.ggml.merges", r->merges, r->n_merges, NULL);
    if (r->id_key) ath_gguf_put_scalar(w, r->id_key, ATH_GGUF_U32, &r->id, NULL);
    assert_int_equal(ath_gguf_write(w, path, NULL), ATH_OK);
    ath_gguf_writer_free(w);
    ath_gguf *gguf;
    assert_int_equal(ath_gguf_open(&gguf, path, NULL), ATH_OK);
    ath_status status = ath_tokenizer_create(out, gguf, false, NULL, err);
    ath_gguf_close(gguf);
    unlink(path);
    return status;
}

static ath_tokenizer *built(const recipe *r) {
    ath_tokenizer *t;
    ath_error err = {0};
    if (build(r, &t, &err) != ATH_OK) fail_msg("%s", err.message);
    return t;
}

static void check_refused(const recipe *r, ath_status status, const char *word) {
    ath_tokenizer *t = (ath_tokenizer *)&t;
    ath_error err = {0};
    assert_int_equal(build(r, &t, &err), status);
    assert_null(t);
    if (!strstr(err.message, word)) fail_msg("\"%s\" does not say \"%s\"", err.message, word);
}

/* Encodes and compares with the texts of the expected tokens, joined by '|'. */
static void check_tokens(const ath_tokenizer *t, const char *text, size_t size, unsigned flags, const char *expected) {
    int32_t *ids;
    size_t n, used = 0;
    char line[400] = "";
    assert_int_equal(ath_tokenizer_encode(t, text, size, flags, &ids, &n, NULL), ATH_OK);
    for (size_t i = 0; i < n; i++) {
        ath_str token = ath_tokenizer_text(t, ids[i]);
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%.*s", i ? "|" : "", (int)token.size, token.data);
    }
    free(ids);
    assert_string_equal(line, expected);
}

static void check_round_trip(const ath_tokenizer *t, const char *text, size_t size, unsigned flags) {
    int32_t *ids;
    size_t n, decoded_size;
    char *decoded;
    assert_int_equal(ath_tokenizer_encode(t, text, size, flags, &ids, &n, NULL), ATH_OK);
    assert_int_equal(ath_tokenizer_decode(t, ids, n, false, &decoded, &decoded_size, NULL), ATH_OK);
    assert_int_equal(decoded_size, size);
    assert_memory_equal(decoded, text, size);
    free(ids);
    free(decoded);
}

#define CHECK(t, text, flags, expected) check_tokens(t, text, sizeof text - 1, flags, expected)

static void test_spm(void **state) {
    (void)state;
    recipe r = spm_recipe();
    ath_tokenizer *t = built(&r);
    CHECK(t, "", ATH_TOKENIZE_ADD_SPECIAL, "<s>");
    CHECK(t, "abb", ATH_TOKENIZE_ADD_SPECIAL, "<s>|▁ab|b"); /* ab before ▁a and bb */
    CHECK(t, "a  b", 0, "▁a|▁▁|b");
    CHECK(t, "s b a", 0, "▁|s▁|b|▁a"); /* a token over the end of a word */
    CHECK(t, "\xC3\xA9\xFF", 0, "▁|<0xC3>|<0xA9>|<0xFF>");
    CHECK(t, "<s>a", 0, "▁|<s|>|a"); /* control tokens never come out of plain text */
    CHECK(t, "<s>a", ATH_TOKENIZE_PARSE_SPECIAL, "<s>|▁a");
    CHECK(t, "[tool]a", 0, "[tool]|▁a");
    assert_int_equal(ath_tokenizer_bos(t), 1);
    assert_int_equal(ath_tokenizer_eos(t), 2);
    assert_true(ath_tokenizer_is_eog(t, 2));
    assert_false(ath_tokenizer_is_eog(t, -1));
    assert_false(ath_tokenizer_is_eog(t, 1 << 30));
    assert_true(ath_tokenizer_is_control(t, 1));
    assert_int_equal(ath_tokenizer_find(t, "▁ab", 5), 259 + 5);
    assert_int_equal(ath_tokenizer_find(t, "zz", 2), -1);
    check_round_trip(t, " a", 2, ATH_TOKENIZE_ADD_SPECIAL);
    check_round_trip(t, "a\0b", 3, ATH_TOKENIZE_ADD_SPECIAL);
    ath_tokenizer_free(t);
}

static void test_bpe(void **state) {
    (void)state;
    recipe r = bpe_recipe("gpt-2");
    ath_tokenizer *t = built(&r);
    CHECK(t, "abc", 0, "a|bc"); /* bc has the lower rank */
    CHECK(t, "aaaaaaa", 0, "aaaa|aa|a");
    CHECK(t, "xyz xy", 0, "xyz|Ġ|x|y"); /* xy is on the way to xyz, but no token */
    CHECK(t, "<|im_end|>x", ATH_TOKENIZE_PARSE_SPECIAL, "<|im_end|>x"); /* the longest */
    CHECK(t, "<|im_end|>y", ATH_TOKENIZE_PARSE_SPECIAL, "<|im_end|>|y");
    CHECK(t, "<|im_end|>y", 0, "<|||i|m|_|e|n|d|||>|y");
    assert_int_equal(ath_tokenizer_eot(t), ath_tokenizer_find(t, "<|im_end|>", 10));
    assert_true(ath_tokenizer_is_eog(t, ath_tokenizer_eot(t)));
    assert_int_equal(ath_tokenizer_piece(t, ath_tokenizer_eot(t), false, NULL, 0), 0);
    char buf[4];
    assert_int_equal(ath_tokenizer_piece(t, ath_tokenizer_eot(t), true, buf, 4), 10);
    assert_memory_equal(buf, "<|im", 4);
    ath_tokenizer_free(t);
}

static void test_ignore_merges(void **state) {
    (void)state;
    recipe r = bpe_recipe("llama-bpe");
    ath_tokenizer *t = built(&r);
    CHECK(t, "abc", 0, "abc");
    assert_true(ath_tokenizer_add_bos(t));
    assert_int_equal(ath_tokenizer_bos(t), 11);
    ath_tokenizer_free(t);
}

static void test_stripping(void **state) {
    (void)state;
    recipe r = spm_recipe();
    r.name = "Phi-3 mini";
    ath_tokenizer *t = built(&r);
    CHECK(t, "</s> \n a", ATH_TOKENIZE_PARSE_SPECIAL, "</s>|▁a");
    CHECK(t, "<s> a", ATH_TOKENIZE_PARSE_SPECIAL, "<s>|▁|▁a");
    ath_tokenizer_free(t);
}

static void test_eog_exceptions(void **state) {
    (void)state;
    recipe r = bpe_recipe("gpt-4o");
    add_token(&r, "<|end|>", 3, 0);
    add_token(&r, "<|return|>", 3, 0);
    ath_tokenizer *t = built(&r);
    assert_true(ath_tokenizer_is_eog(t, ath_tokenizer_find(t, "<|end|>", 7)));
    ath_tokenizer_free(t);
    add_token(&r, "<|call|>", 3, 0);
    add_token(&r, "<|channel|>", 3, 0);
    t = built(&r);
    assert_false(ath_tokenizer_is_eog(t, ath_tokenizer_find(t, "<|end|>", 7)));
    assert_true(ath_tokenizer_is_eog(t, ath_tokenizer_find(t, "<|call|>", 8)));
    assert_int_equal(ath_tokenizer_piece(t, ath_tokenizer_find(t, "<|channel|>", 11), false, NULL, 0), 11);
    ath_tokenizer_free(t);

    r = bpe_recipe("qwen2"); /* "</s>" is a word there; a mistyped end of turn is not */
    add_token(&r, "</s>", 1, 0);
    add_token(&r, "<|eot_id|>", 1, 0);
    t = built(&r);
    CHECK(t, "</s><|eot_id|>", ATH_TOKENIZE_PARSE_SPECIAL, "<|/|s|>|<|eot_id|>");
    assert_true(ath_tokenizer_is_control(t, ath_tokenizer_find(t, "<|eot_id|>", 10)));
    ath_tokenizer_free(t);
}

static void test_gemma4(void **state) {
    (void)state;
    recipe r = spm_recipe();
    r.model = "gemma4";
    add_token(&r, "\n", 1, 0);
    add_token(&r, "\n\n\n", 1, 0);
    static const char *const merges[] = {"a b", "▁ ab", "▁ ▁"};
    for (size_t i = 0; i < 3; i++) r.merges[r.n_merges++] = merges[i];
    ath_tokenizer *t = built(&r);
    CHECK(t, " ab\n\n\na", 0, "▁ab|\n\n\n|a");
    CHECK(t, "\n\n", 0, "\n|\n");
    CHECK(t, "\xFF\xC3\xA9", ATH_TOKENIZE_ADD_SPECIAL, "</s>|<0xFF>|<0xC3>|<0xA9>"); /* BOS is 2 by default */
    check_round_trip(t, " a  b\n\xE9", 7, ATH_TOKENIZE_ADD_SPECIAL);
    ath_tokenizer_free(t);
}

static void test_hostile(void **state) {
    (void)state;
    ath_tokenizer *t;
    recipe r = bpe_recipe("gpt-2");
    r.n_tokens = 0;
    check_refused(&r, ATH_ERR_FORMAT, "tokenizer.ggml.tokens");
    r = bpe_recipe("gpt-2");
    r.no_merges = true;
    check_refused(&r, ATH_ERR_FORMAT, "tokenizer.ggml.merges");
    r = bpe_recipe("no-such-pre");
    check_refused(&r, ATH_ERR_UNSUPPORTED, "one of: default llama3 ");
    r = bpe_recipe("olmo mpt");
    check_refused(&r, ATH_ERR_UNSUPPORTED, "olmo mpt");
    r = bpe_recipe("gpt-2");
    r.model = "rwkv";
    check_refused(&r, ATH_ERR_UNSUPPORTED, "rwkv");
    r.model = NULL;
    check_refused(&r, ATH_ERR_FORMAT, "tokenizer.ggml.model");
    r = bpe_recipe("gpt-2");
    r.n_types--;
    check_refused(&r, ATH_ERR_FORMAT, "token_type");
    r.n_types++;
    r.types[3] = 77;
    check_refused(&r, ATH_ERR_FORMAT, "77");
    static const char *const bad_merges[] = {"", "a", " ", "ab", " a", "a "};
    for (size_t i = 0; i < sizeof bad_merges / sizeof bad_merges[0]; i++) {
        r = bpe_recipe("gpt-2");
        r.merges[1] = bad_merges[i];
        check_refused(&r, ATH_ERR_FORMAT, "entry 1");
    }
    r = spm_recipe();
    r.n_scores--;
    check_refused(&r, ATH_ERR_FORMAT, "scores");

    r = bpe_recipe("gpt-2"); /* unknown symbols in merges, missing byte tokens, ids beyond the end: harmless */
    r.tokens['q'] = "never";
    r.merges[0] = "no such";
    r.id_key = "tokenizer.ggml.eos_token_id";
    r.id = 70000;
    t = built(&r);
    CHECK(t, "aqa", 0, "a|a");
    assert_int_equal(ath_tokenizer_eos(t), 11);
    int32_t bad = ath_tokenizer_n_vocab(t);
    char *text;
    size_t size;
    assert_int_equal(ath_tokenizer_decode(t, &bad, 1, true, &text, &size, NULL), ATH_ERR_ARGUMENT);
    assert_int_equal(ath_tokenizer_piece(t, bad, true, NULL, 0), 0);
    assert_int_equal(ath_tokenizer_piece(t, -1, true, NULL, 0), 0);
    assert_null(ath_tokenizer_text(t, bad).data);
    ath_tokenizer_free(t);
}

static uint32_t next_random(uint32_t *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

static void test_any_bytes(void **state) {
    (void)state;
    uint32_t seed = 7;
    print_message("seed %u\n", seed);
    recipe spm = spm_recipe();
    ath_tokenizer *t = built(&spm);
    char text[64];
    for (int i = 0; i < 300; i++) {
        size_t size = next_random(&seed) % sizeof text;
        for (size_t b = 0; b < size; b++) text[b] = (char)next_random(&seed);
        check_round_trip(t, text, size, ATH_TOKENIZE_ADD_SPECIAL);
    }
    ath_tokenizer_free(t);
    for (size_t row = 0; row < ath_pre_count; row++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(ath_pre_table[row].names, " "), ath_pre_table[row].names);
        recipe r = bpe_recipe(name);
        t = built(&r);
        for (int i = 0; i < 100; i++) {
            size_t size = next_random(&seed) % sizeof text;
            for (size_t b = 0; b < size; b++) text[b] = (char)next_random(&seed);
            check_round_trip(t, text, size, 0);
        }
        ath_tokenizer_free(t);
    }
}

static double encode_seconds(const ath_tokenizer *t, const char *text, size_t size) {
    double best = 1e9;
    for (int i = 0; i < 2; i++) {
        struct timespec a, b;
        int32_t *ids;
        size_t n;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        assert_int_equal(ath_tokenizer_encode(t, text, size, ATH_TOKENIZE_PARSE_SPECIAL, &ids, &n, NULL), ATH_OK);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        free(ids);
        double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (seconds < best) best = seconds;
    }
    return best;
}

static char *repeat(const char *unit, size_t size) {
    char *text = malloc(size);
    for (size_t i = 0; i < size; i++) text[i] = unit[i % strlen(unit)];
    return text;
}

static void check_linear(const ath_tokenizer *t, const char *name) {
    static const char *const units[] = {
        "a", " ", "7", "\n", "A", ".", "'", "<", "\xFF", "\t ", "中A", "中AAAAAAAAAAAAAAAAAAAAAAA", "\xCC\x81", " \n x",
        "<|im_end|>", "<|im_end|",
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        char *text = repeat(units[i], 100000);
        if (strcmp(units[i], "\t ") == 0) text[99999] = 'x';
        double whole = encode_seconds(t, text, 100000), half = encode_seconds(t, text + 50000, 50000);
        if (whole > 3 * half && whole > 0.05) {
            fail_msg("%s: 100 KB of \"%s\" take %.4f s, half of it %.4f s", name, units[i], whole, half);
        }
        free(text);
    }
}

static void test_linear(void **state) {
    (void)state;
    recipe r = spm_recipe();
    ath_tokenizer *t = built(&r);
    check_linear(t, "spm");
    ath_tokenizer_free(t);
    static const char *const names[] = {"default", "gpt-4o", "deepseek-llm", "deepseek-v3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        r = bpe_recipe(names[i]);
        t = built(&r);
        check_linear(t, names[i]);
        ath_tokenizer_free(t);
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--encode") == 0) return drive_encode(argv[2], (unsigned)atoi(argv[3]));
    if (argc == 3 && strcmp(argv[1], "--split") == 0) return drive_split(argv[2]);
    if (argc == 2 && strcmp(argv[1], "--classes") == 0) return drive_classes();
    if (argc == 3 && strcmp(argv[1], "--info") == 0) return drive_info(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm),       cmocka_unit_test(test_bpe),     cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_stripping), cmocka_unit_test(test_gemma4),  cmocka_unit_test(test_eog_exceptions),
        cmocka_unit_test(test_hostile),   cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
