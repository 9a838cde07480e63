/* GGUF files that lie: each is refused by a sentence that names the key, tensor or field; none crashes. */
#include "gguf/gguf_sample.h"
#include "fuzz/fuzz_gguf.c"

/* ---- the table: one number of the sample is overwritten, or the file is cut there */

enum { CUT = 0 };
typedef struct hostile {
    const char *anchor; /* bytes to look for; NULL: the beginning */
    int delta;          /* from the anchor's end; for an anchor of a key: the value type */
    int width;          /* bytes to overwrite, CUT: truncate */
    uint64_t value;
    const char *expect;
} hostile;

/* Anchor and delta of the length that stands before a name. */
#define LENGTH_OF(name) name, -8 - (int)sizeof(name) + 1
#define NEGATIVE(n)     ((uint64_t) - (int64_t)(n))

static const hostile hostiles[] = {
    /* header */
    {NULL, 0, CUT, 0, "the file is empty"},
    {NULL, 3, CUT, 0, "the file ends inside its header"},
    {NULL, 23, CUT, 0, "the file ends inside its header"},
    {NULL, 24, CUT, 0, "n_kv is 28, more than a file of 24 bytes can hold"},
    {NULL, 0, 4, 0x04034b50, "not a GGUF file: it looks like a zip archive"},
    {NULL, 0, 4, 0xdeadbeef, "not a GGUF file: it does not begin with"},
    {NULL, 0, 4, 0x47475546, "not a GGUF file: its magic is byte-swapped"},
    {NULL, 0, 4, 0x67676d6c, "old GGML file"},
    {NULL, 0, 4, 0x464c457f, "ELF"},
    {NULL, 4, 4, 0, "version 0"},
    {NULL, 4, 4, 1, "version 1"},
    {NULL, 4, 4, 4, "version 4"},
    {NULL, 4, 4, 0xffffffff, "version 4294967295"},
    {NULL, 4, 4, 0x03000000, "big-endian"},
    {NULL, 4, 4, 0x02000000, "big-endian"},
    {NULL, 8, 8, NEGATIVE(1), "n_tensors is negative"},
    {NULL, 8, 8, INT64_MAX, "n_tensors is 9223372036854775807, more than"},
    {NULL, 8, 8, 1ull << 40, "n_tensors"},
    {NULL, 8, 8, 4, "tensor number 4"},
    {NULL, 16, 8, NEGATIVE(1), "n_kv is negative"},
    {NULL, 16, 8, 1ull << 63, "n_kv is negative"},
    {NULL, 16, 8, INT64_MAX, "n_kv is 9223372036854775807, more than"},
    {NULL, 16, 8, 1ull << 40, "n_kv"},
    {NULL, 16, 8, SAMPLE_KEYS + 1, "tensor"},
    {NULL, 16, 8, SAMPLE_KEYS - 1, "tensor 'test.none'"},
    /* keys */
    {LENGTH_OF("general.architecture"), 8, 0, "key number 1: its name is empty"},
    {LENGTH_OF("test.u32"), 8, 0, "key number"},
    {LENGTH_OF("test.u32"), 8, (1ull << 30) + 1, "2^30"},
    {LENGTH_OF("test.u32"), 8, 1ull << 63, "key number 11: its name claims"},
    {LENGTH_OF("test.u32"), 8, UINT64_MAX, "key number 11: its name claims"},
    {LENGTH_OF("test.u32"), 8, 100000, "key number 11: the file ends inside its name"},
    {"test.i32", -3, 1, 'u', "key 'test.u32': it occurs twice"},
    {"test.i32", 0, 4, 13, "key 'test.i32': its value type is 13"},
    {"test.i32", 0, 4, NEGATIVE(1), "key 'test.i32': its value type is -1"},
    {"test.i32", 0, 4, INT32_MAX, "key 'test.i32': its value type"},
    {"test.i32", 0, 4, ATH_GGUF_STRING, "key 'test.i32'"},
    {"test.i32", 2, CUT, 0, "key 'test.i32': the file ends inside its value type"},
    {"test.i32", 7, CUT, 0, "key 'test.i32': the file ends inside its value"},
    {"test.f64", 11, CUT, 0, "key 'test.f64': the file ends inside its value"},
    {"test.string", 4, 8, (1ull << 30) + 1, "key 'test.string': its value claims a length of 1073741825"},
    {"test.string", 4, 8, UINT64_MAX, "key 'test.string': its value claims"},
    {"test.string", 4, 8, 1 << 30, "key 'test.string': the file ends inside its value"},
    {"test.bool", 4, 1, 2, "key 'test.bool': a bool of it is neither 0 nor 1: 2"},
    {"test.arr_bool", 18, 1, 255, "key 'test.arr_bool': a bool"},
    {"test.arr_i32", 4, 4, ATH_GGUF_ARRAY, "key 'test.arr_i32': arrays of arrays"},
    {"test.arr_i32", 4, 4, 13, "key 'test.arr_i32': its array element type is 13"},
    {"test.arr_i32", 4, 4, NEGATIVE(7), "key 'test.arr_i32': its array element type is -7"},
    {"test.arr_i32", 8, 8, (1ull << 30) + 1, "key 'test.arr_i32': it claims an array of 1073741825"},
    {"test.arr_i32", 8, 8, 1ull << 62, "key 'test.arr_i32': it claims"},
    {"test.arr_i32", 8, 8, 1 << 30, "key 'test.arr_i32': the file ends inside its value"},
    {"test.arr_i32", 12, CUT, 0, "key 'test.arr_i32': the file ends inside its array length"},
    {"test.strings", 8, 8, 1 << 30, "key 'test.strings'"},
    {"test.strings", 8, 8, UINT64_MAX, "key 'test.strings': it claims"},
    {"test.strings", 16, 8, UINT64_MAX, "key 'test.strings': its array of strings claims"},
    {"test.strings", 16, 8, 1 << 20, "key 'test.strings': the file ends inside its array of strings"},
    {"test.strings", 25, CUT, 0, "key 'test.strings': the file ends inside its array of strings"},
    {"general.alignment", 4, 4, 0, "key 'general.alignment': 0 is not a power of two"},
    {"general.alignment", 4, 4, 24, "key 'general.alignment': 24"},
    {"general.alignment", 4, 4, 0x80000001, "key 'general.alignment'"},
    {"general.alignment", 4, 4, 1u << 31,
     "tensor 'b.weight': its offset 256 is not a multiple of the alignment"},
    {"general.alignment", 0, 4, ATH_GGUF_I32, "key 'general.alignment': it must be a u32, not i32"},
    {"general.alignment", 0, 4, ATH_GGUF_F32, "key 'general.alignment': it must be a u32, not f32"},
    /* tensors; "a.weight": n_dims 0, ne 4 and 12, type 20, offset 24; "b.weight": n_dims 0, ne 4, type 12,
       offset 16 */
    {LENGTH_OF("a.weight"), 8, 0, "tensor number 1: its name is empty"},
    {LENGTH_OF("a.weight"), 8, 64, "its name has 64 bytes, at most 63"},
    {LENGTH_OF("b.weight"), 8, 1ull << 62, "tensor number 2: its name claims"},
    {LENGTH_OF("b.weight"), 8, 1 << 20, "tensor number 2: the file ends inside its name"},
    {"b.weight", -8, 1, 'a', "tensor 'a.weight': it occurs twice"},
    {"a.weight", 0, 4, 5, "tensor 'a.weight': it has 5 dimensions"},
    {"a.weight", 0, 4, UINT32_MAX, "tensor 'a.weight': it has 4294967295 dimensions"},
    {"a.weight", 4, 8, 0, "tensor 'a.weight': its ne[0] is 0"},
    {"a.weight", 12, 8, NEGATIVE(1), "tensor 'a.weight': its ne[1] is -1"},
    {"a.weight", 4, 8, 1ull << 62, "tensor 'a.weight': the product of its shape overflows"},
    {"a.weight", 12, 8, 1ull << 62, "tensor 'a.weight': the product of its shape overflows"},
    {"a.weight", 4, 8, 1ull << 61, "tensor 'a.weight': its size in bytes overflows"},
    {"a.weight", 4, 8, 1ull << 40, "tensor 'b.weight': its offset is 256"},
    {"b.weight", 4, 8, 255, "tensor 'b.weight': its ne[0] is 255, not a multiple of Q4_K's block of 256"},
    {"b.weight", 4, 8, 512, "tensor 'c.weight': its offset is 416 where 544 is due"},
    {"b.weight", 12, 4, 4, "tensor 'b.weight': its type id 4"},
    {"b.weight", 12, 4, 5, "tensor 'b.weight': its type id 5"},
    {"b.weight", 12, 4, 31, "tensor 'b.weight': its type id 31"},
    {"b.weight", 12, 4, 36, "tensor 'b.weight': its type id 36"},
    {"b.weight", 12, 4, 43, "tensor 'b.weight': its type id 43"},
    {"b.weight", 12, 4, NEGATIVE(1), "tensor 'b.weight': its type id -1"},
    {"b.weight", 12, 4, INT32_MAX, "tensor 'b.weight': its type id 2147483647"},
    {"b.weight", 16, 8, 257, "tensor 'b.weight': its offset 257 is not a multiple"},
    {"b.weight", 16, 8, 0, "tensor 'b.weight': its offset is 0 where 256 is due"},
    {"b.weight", 16, 8, 288, "tensor 'b.weight': its offset is 288 where 256 is due"},
    {"b.weight", 16, 8, 1ull << 63, "tensor 'b.weight': its offset is"},
    {"a.weight", 24, 8, 32, "tensor 'a.weight': its offset is 32 where 0 is due"},
    {"c.weight", 4, 8, 1ull << 40, "tensor 'c.weight': its data"},
    {"c.weight", 4, 8, INT64_MAX, "tensor 'c.weight': its offset plus its size overflows"},
    {"c.weight", 4, 8, INT64_MAX - 208, "tensor 'c.weight': its offset plus its size overflows"},
    {"c.weight", 4, 8, 1ull << 62, "tensor 'c.weight': its data"},
    {"c.weight", 19, CUT, 0, "tensor 'c.weight': the file ends inside its offset"},
    {"c.weight", 24, CUT, 0, "tensor 'a.weight': its data"},
    {"\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7", -1, CUT, 0, "tensor 'c.weight': its data (8 bytes"},
};

static size_t find_offset(const uint8_t *bytes, size_t size, const hostile *h) {
    if (!h->anchor) return (size_t)h->delta;
    size_t length = strlen(h->anchor);
    const uint8_t *at = memmem(bytes, size, h->anchor, length);
    assert_non_null(at);
    return (size_t)(at - bytes + (ptrdiff_t)length + h->delta);
}

static void hostile_files_are_refused_by_name(void **state) {
    (void)state;
    size_t size;
    uint8_t *sample = sample_bytes(&size);
    ath_gguf *g;
    ath_error err;
    for (size_t i = 0; i < sizeof hostiles / sizeof *hostiles; i++) {
        const hostile *h = &hostiles[i];
        size_t at = find_offset(sample, size, h), hostile_size = h->width == CUT ? at : size;
        assert_true(at + (size_t)h->width <= size);
        uint8_t *bytes = malloc(hostile_size + !hostile_size); /* to the byte, for the sanitizer */
        memcpy(bytes, sample, hostile_size);
        memcpy(bytes + at * (h->width != CUT), &h->value, (size_t)h->width);
        write_bytes(path_of("hostile.gguf"), bytes, hostile_size);
        g = (ath_gguf *)&err;
        check_refused(ath_gguf_open(&g, path_of("hostile.gguf"), &err), ATH_ERR_FORMAT, &err, h->expect);
        assert_null(g);
        assert_non_null(strstr(err.message, "hostile.gguf: "));
        check_refused(ath_gguf_open_memory(&g, bytes, hostile_size, "m", &err), ATH_ERR_FORMAT, &err,
                      h->expect);
        assert_false(fuzz_gguf_one(bytes, hostile_size));
        free(bytes);
    }
    free(sample);
}

static void foreign_files_are_named(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    const struct {
        const char *bytes;
        size_t size;
        const char *expect;
    } cases[] = {
        {"\x0a\0\0\0\0\0\0\0{\"a\":true} ", 19, "safetensors"},
        {"\x80\x02}q\x00", 5, "pickle"},
        {"\x1f\x8b\x08\x00", 4, "gzip"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS"},
        {"<!DOCTYPE html><html>", 21, "web page"},
        {"{\"model_type\": \"llama\"}\n", 24, "text file"},
        {"tjgg\x01\0\0\0", 8, "GGJT"},
        {"\0\0\0\0\0\0\0\0\0\0\0\0", 12, "not a GGUF file"},
        {"G", 1, "ends inside its header"},
        {"\x07", 1, "not a GGUF file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bytes(path_of("foreign.gguf"), cases[i].bytes, cases[i].size);
        check_refused(ath_gguf_open(&g, path_of("foreign.gguf"), &err), ATH_ERR_FORMAT, &err,
                      cases[i].expect);
    }
    check_refused(ath_gguf_open(&g, path_of("absent.gguf"), &err), ATH_ERR_IO, &err, "absent.gguf");
    check_refused(ath_gguf_open(&g, folder, &err), ATH_ERR_IO, &err, folder);
}

/* Names from the file reach terminals and logs: no control characters, no endless lines. */
static void messages_are_printable_and_short(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = sample_bytes(&size);
    ath_gguf *g;
    ath_error err;
    uint8_t *key = memmem(bytes, size, "test.i32", 8);
    memcpy(key, "\x1b[2J\n\0\xff", 8);
    memcpy(key + 8, &(uint32_t){99}, 4);
    check_refused(ath_gguf_open_memory(&g, bytes, size, "m", &err), ATH_ERR_FORMAT, &err,
                  "key '?[2J???\?': its value");
    free(bytes);

    char path[1200];
    memset(path, 'p', sizeof path);
    strcpy(path + 1000, "/end.gguf");
    check_refused(ath_gguf_open_memory(&g, "x", 1, path, &err), ATH_ERR_FORMAT, &err,
                  "p/end.gguf: not a GGUF");
    assert_int_equal(memcmp(err.message, "...p", 4), 0);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    size_t size;
    uint8_t *sample = sample_bytes(&size);
    ath_gguf *g;
    ath_error err;
    size_t end =
        (size_t)((uint8_t *)memmem(sample, size, sample_c, sizeof sample_c) - sample) + sizeof sample_c;
    for (size_t cut = 0; cut <= size; cut++) {
        uint8_t *bytes = malloc(cut + !cut);
        memcpy(bytes, sample, cut);
        ath_status status = ath_gguf_open_memory(&g, bytes, cut, "cut", &err);
        if (cut < end) {
            assert_int_equal(status, ATH_ERR_FORMAT);
        } else { /* only padding is missing */
            check(status, &err);
            check_sample(g);
            ath_gguf_close(g);
        }
        free(bytes);
    }
    free(sample);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du >> 16;
}

static void mutate(uint8_t *bytes, size_t size, uint64_t *random) {
    static const uint64_t interesting[] = {0,
                                           1,
                                           2,
                                           8,
                                           9,
                                           63,
                                           64,
                                           255,
                                           1 << 20,
                                           1 << 30,
                                           (1 << 30) + 1ull,
                                           1ull << 31,
                                           UINT32_MAX,
                                           1ull << 32,
                                           1ull << 40,
                                           1ull << 61,
                                           INT64_MAX,
                                           1ull << 63,
                                           UINT64_MAX};
    size_t at = next_random(random) % size;
    uint64_t value = interesting[next_random(random) % (sizeof interesting / sizeof *interesting)];
    size_t width = (size_t)1 << next_random(random) % 4;
    if (width > size - at) width = 1;
    switch (next_random(random) % 4) {
    case 0: bytes[at] ^= (uint8_t)(1u << next_random(random) % 8); break;
    case 1: bytes[at] = (uint8_t)next_random(random); break;
    case 2: memcpy(bytes + at, &value, width); break;
    default: memmove(bytes + at, bytes + next_random(random) % (size - width + 1), width); break;
    }
}

static void random_mutations_do_not_crash(void **state) {
    (void)state;
    enum { RUNS = 20000 };
    const uint64_t seed = 20261201;
    uint64_t random = seed;
    size_t size, accepted = 0;
    uint8_t *sample = sample_bytes(&size);
    size_t meta = (size_t)((uint8_t *)memmem(sample, size, "c.weight", 8) - sample) + 32;
    print_message("seed %" PRIu64 ", %d mutations of %zu bytes\n", seed, RUNS, size);
    for (int run = 0; run < RUNS; run++) {
        size_t keep = next_random(&random) % 8 ? size : next_random(&random) % size + 1;
        uint8_t *bytes = malloc(keep);
        memcpy(bytes, sample, keep);
        for (uint64_t n = next_random(&random) % 4 + 1; n > 0; n--)
            mutate(bytes, keep < meta ? keep : meta, &random);
        accepted += fuzz_gguf_one(bytes, keep);
        free(bytes);
    }
    print_message("%zu accepted\n", accepted);
    assert_in_range(accepted, RUNS / 100, RUNS / 2);
    free(sample);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_files_are_refused_by_name), cmocka_unit_test(foreign_files_are_named),
        cmocka_unit_test(messages_are_printable_and_short),  cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(random_mutations_do_not_crash),
    };
    RUN_IN_FOLDER(tests);
}
