/* GGUF: what the writer writes the reader reads; splits; hostile files are refused by name; nothing crashes.
 *
 * `test_gguf --dump FILE` and `test_gguf --write FILE` serve test_gguf_python.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "fuzz/fuzz_gguf.c"

static char folder[] = "/tmp/test_gguf_XXXXXX";

/* A path in the test's folder; four may be in use at once. */
static const char *path_of(const char *name) {
    static char paths[4][300];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void check(ath_status status, const ath_error *err) {
    if (status != ATH_OK) fail_msg("%s: %s", err->where, err->message);
}

/* Refused with that code, and the message names what is wrong. */
static void check_refused(ath_status status, ath_status code, const ath_error *err, const char *expect) {
    if (status != code || !strstr(err->message, expect)) {
        fail_msg("status %d (want %d), message '%s' (want '%s' in it)", status, code,
                 status == ATH_OK ? "" : err->message, expect);
    }
    assert_int_equal(err->code, code);
    assert_null(strchr(err->message, '\n'));
}

static void write_bytes(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static uint8_t *read_bytes(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*size);
    assert_int_equal(fread(data, 1, *size, f), *size);
    fclose(f);
    return data;
}

/* ---- the sample: every value type, three tensors */

static const uint8_t sample_u8[] = {0, 7, 255};
static const int8_t sample_i8[] = {-128, 0, 127};
static const uint16_t sample_u16[] = {0, 500, 65535};
static const int16_t sample_i16[] = {-32768, 5, 32767};
static const uint32_t sample_u32[] = {0, 70000, 4294967295u};
static const int32_t sample_i32[] = {INT32_MIN, -3, INT32_MAX};
static const float sample_f32[] = {-1.5f, 3.14159274f, 1e-40f};
static const uint8_t sample_bool[] = {1, 0, 1};
static const uint64_t sample_u64[] = {0, 1ull << 40, UINT64_MAX};
static const int64_t sample_i64[] = {INT64_MIN, -1, INT64_MAX};
static const double sample_f64[] = {-2.5, 1e300, 0.1};
static const char *const sample_strings[] = {"one", "", "drei \xc3\xa9"};

static const struct {
    const char *name;
    ath_gguf_type type;
    const void *items;
    size_t size;
} sample_values[] = {
    {"u8", ATH_GGUF_U8, sample_u8, 1},    {"i8", ATH_GGUF_I8, sample_i8, 1},
    {"u16", ATH_GGUF_U16, sample_u16, 2}, {"i16", ATH_GGUF_I16, sample_i16, 2},
    {"u32", ATH_GGUF_U32, sample_u32, 4}, {"i32", ATH_GGUF_I32, sample_i32, 4},
    {"f32", ATH_GGUF_F32, sample_f32, 4}, {"bool", ATH_GGUF_BOOL, sample_bool, 1},
    {"u64", ATH_GGUF_U64, sample_u64, 8}, {"i64", ATH_GGUF_I64, sample_i64, 8},
    {"f64", ATH_GGUF_F64, sample_f64, 8},
};
enum { N_VALUES = sizeof sample_values / sizeof *sample_values, SAMPLE_KEYS = 2 * N_VALUES + 6 };

static float sample_a[64];
static uint8_t sample_b[144], sample_c[8];

/* Scalars are test.TYPE (the arrays' element 1), arrays test.arr_TYPE. */
static ath_gguf_writer *sample_writer(void) {
    ath_gguf_writer *w;
    ath_error err;
    char key[64];
    uint32_t alignment = 32;
    for (int i = 0; i < 64; i++) sample_a[i] = (float)i * 0.25f;
    for (int i = 0; i < 144; i++) sample_b[i] = (uint8_t)(i * 7 + 1);
    for (int i = 0; i < 8; i++) sample_c[i] = (uint8_t)(0xf0 + i);
    check(ath_gguf_writer_create(&w, &err), &err);
    check(ath_gguf_put_str(w, "general.architecture", "llama", &err), &err);
    check(ath_gguf_put_scalar(w, "general.alignment", ATH_GGUF_U32, &alignment, &err), &err);
    for (int i = 0; i < N_VALUES; i++) {
        const uint8_t *items = sample_values[i].items;
        snprintf(key, sizeof key, "test.%s", sample_values[i].name);
        check(ath_gguf_put_scalar(w, key, sample_values[i].type, items + sample_values[i].size, &err), &err);
        snprintf(key, sizeof key, "test.arr_%s", sample_values[i].name);
        check(ath_gguf_put_array(w, key, sample_values[i].type, items, 3, &err), &err);
    }
    check(ath_gguf_put_str(w, "test.string", "Grüße", &err), &err);
    check(ath_gguf_put_str(w, "test.empty", "", &err), &err);
    check(ath_gguf_put_str_array(w, "test.strings", sample_strings, 3, &err), &err);
    check(ath_gguf_put_array(w, "test.none", ATH_GGUF_F32, NULL, 0, &err), &err);
    check(ath_gguf_put_tensor(w, "a.weight", ATH_TYPE_F32, 2, (int64_t[]){32, 2}, sample_a, &err), &err);
    check(ath_gguf_put_tensor(w, "b.weight", ATH_TYPE_Q4_K, 1, (int64_t[]){256}, sample_b, &err), &err);
    check(ath_gguf_put_tensor(w, "c.weight", ATH_TYPE_F16, 1, (int64_t[]){4}, sample_c, &err), &err);
    return w;
}

static void write_sample(const char *path) {
    ath_gguf_writer *w = sample_writer();
    ath_error err;
    check(ath_gguf_write(w, path, &err), &err);
    ath_gguf_writer_free(w);
}

static uint8_t *sample_bytes(size_t *size) {
    write_sample(path_of("sample.gguf"));
    return read_bytes(path_of("sample.gguf"), size);
}

static void check_str(ath_str s, const char *expect) {
    assert_int_equal(s.size, strlen(expect));
    assert_memory_equal(s.data, expect, s.size);
}

static void check_tensor(const ath_gguf *g, const char *name, ath_tensor_type type, int n_dims,
                         const int64_t ne[4], const void *data, size_t size) {
    const ath_gguf_tensor *t = ath_gguf_find_tensor(g, name);
    assert_non_null(t);
    check_str(t->name, name);
    assert_int_equal(t->type, type);
    assert_int_equal(t->n_dims, n_dims);
    assert_memory_equal(t->ne, ne, 4 * sizeof *ne);
    assert_int_equal(t->size, size);
    assert_memory_equal(t->data, data, size);
}

static void check_sample(const ath_gguf *g) {
    char key[64];
    ath_error err;
    ath_str s;
    assert_int_equal(ath_gguf_version(g), 3);
    assert_int_equal(ath_gguf_n_kv(g), SAMPLE_KEYS);
    assert_int_equal(ath_gguf_n_tensors(g), 3);
    for (int i = 0; i < N_VALUES; i++) {
        const uint8_t *items = sample_values[i].items;
        size_t size = sample_values[i].size;
        snprintf(key, sizeof key, "test.%s", sample_values[i].name);
        const ath_gguf_kv *kv = ath_gguf_find(g, key);
        assert_non_null(kv);
        assert_int_equal(kv->type, sample_values[i].type);
        assert_int_equal(kv->count, 1);
        assert_memory_equal(kv->data, items + size, size);
        snprintf(key, sizeof key, "test.arr_%s", sample_values[i].name);
        kv = ath_gguf_find(g, key);
        assert_non_null(kv);
        assert_int_equal(kv->type, ATH_GGUF_ARRAY);
        assert_int_equal(kv->item_type, sample_values[i].type);
        assert_int_equal(kv->count, 3);
        assert_memory_equal(kv->data, items, 3 * size);
    }
    const ath_gguf_kv *strings = ath_gguf_find(g, "test.strings");
    assert_int_equal(strings->count, 3);
    for (int i = 0; i < 3; i++) check_str(strings->strings[i], sample_strings[i]);
    assert_int_equal(ath_gguf_find(g, "test.none")->count, 0);
    check(ath_gguf_get_str(g, &s, &err, "test.%s", "string"), &err);
    check_str(s, "Grüße");
    check(ath_gguf_get_str(g, &s, &err, "test.empty"), &err);
    assert_int_equal(s.size, 0);
    check_tensor(g, "a.weight", ATH_TYPE_F32, 2, (int64_t[]){32, 2, 1, 1}, sample_a, sizeof sample_a);
    check_tensor(g, "b.weight", ATH_TYPE_Q4_K, 1, (int64_t[]){256, 1, 1, 1}, sample_b, sizeof sample_b);
    check_tensor(g, "c.weight", ATH_TYPE_F16, 1, (int64_t[]){4, 1, 1, 1}, sample_c, sizeof sample_c);
    assert_null(ath_gguf_find(g, "test.absent"));
    assert_null(ath_gguf_find_tensor(g, "test.u8"));
}

static void every_type_comes_back(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    write_sample(path_of("all.gguf"));
    check(ath_gguf_open(&g, path_of("all.gguf"), &err), &err);
    check_sample(g);
    assert_string_equal(ath_gguf_path(g), path_of("all.gguf"));
    assert_int_equal(ath_gguf_n_parts(g), 1);
    for (int64_t i = 0; i < 3; i++) {
        const ath_gguf_tensor *t = ath_gguf_tensor_at(g, i);
        assert_int_equal((uintptr_t)t->data % 32, 0);
        ath_gguf_release_tensor(g, t);
    }
    check_sample(g); /* released pages come back from the file */
    size_t size;
    uint8_t *bytes = read_bytes(path_of("all.gguf"), &size);
    assert_int_equal(ath_gguf_file_bytes(g), size);
    ath_gguf_close(g);
    ath_gguf_close(NULL);

    check(ath_gguf_open_memory(&g, bytes, size, "memory", &err), &err);
    for (int64_t i = 0; i < 3; i++) ath_gguf_release_tensor(g, ath_gguf_tensor_at(g, i));
    check_sample(g);
    ath_gguf_close(g);
    bytes[4] = 2; /* version 2 has the same layout */
    check(ath_gguf_open_memory(&g, bytes, size, "memory", &err), &err);
    assert_int_equal(ath_gguf_version(g), 2);
    ath_gguf_close(g);
    free(bytes);
}

static void many_names_are_found(void **state) {
    (void)state;
    enum { N = 5000 };
    ath_gguf_writer *w;
    ath_gguf *g;
    ath_error err;
    char name[64];
    uint32_t value;
    check(ath_gguf_writer_create(&w, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%" PRIu32, i);
        check(ath_gguf_put_scalar(w, name, ATH_GGUF_U32, &i, &err), &err);
        snprintf(name, sizeof name, "blk.%" PRIu32 ".weight", i);
        check(ath_gguf_put_tensor(w, name, ATH_TYPE_I8, 1, (int64_t[]){1}, &sample_u8[i % 3], &err), &err);
    }
    check(ath_gguf_write(w, path_of("many.gguf"), &err), &err);
    ath_gguf_writer_free(w);
    check(ath_gguf_open(&g, path_of("many.gguf"), &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        check(ath_gguf_get_u32(g, &value, N, &err, "key.%" PRIu32, i), &err);
        assert_int_equal(value, i);
        snprintf(name, sizeof name, "blk.%" PRIu32 ".weight", i);
        assert_int_equal(ath_gguf_find_tensor(g, name)->data[0], sample_u8[i % 3]);
    }
    assert_null(ath_gguf_find(g, "key.5000"));
    ath_gguf_close(g);
}

/* Alignment 512, a vocabulary-only file, a replaced key. */
static void alignment_and_empty_files(void **state) {
    (void)state;
    ath_gguf_writer *w;
    ath_gguf *g;
    ath_error err;
    uint32_t alignment = 512, value = 1;
    check(ath_gguf_writer_create(&w, &err), &err);
    check(ath_gguf_write(w, path_of("empty.gguf"), &err), &err);
    check(ath_gguf_open(&g, path_of("empty.gguf"), &err), &err);
    assert_int_equal(ath_gguf_n_kv(g) + ath_gguf_n_tensors(g), 0);
    assert_null(ath_gguf_find(g, "general.architecture"));
    ath_gguf_close(g);
    check(ath_gguf_put_scalar(w, "k", ATH_GGUF_U32, &value, &err), &err);
    check(ath_gguf_put_str(w, "k", "later", &err), &err);
    check(ath_gguf_put_scalar(w, "general.alignment", ATH_GGUF_U32, &alignment, &err), &err);
    check(ath_gguf_put_tensor(w, "a", ATH_TYPE_F16, 1, (int64_t[]){4}, sample_c, &err), &err);
    check(ath_gguf_put_tensor(w, "b", ATH_TYPE_F16, 4, (int64_t[]){1, 2, 1, 2}, sample_c, &err), &err);
    check(ath_gguf_write(w, path_of("empty.gguf"), &err), &err); /* over the old one */
    ath_gguf_writer_free(w);
    check(ath_gguf_open(&g, path_of("empty.gguf"), &err), &err);
    assert_int_equal(ath_gguf_n_kv(g), 2);
    assert_int_equal(ath_gguf_find(g, "k")->type, ATH_GGUF_STRING);
    assert_int_equal((uintptr_t)ath_gguf_find_tensor(g, "b")->data % 512, 0);
    check_tensor(g, "b", ATH_TYPE_F16, 4, (int64_t[]){1, 2, 1, 2}, sample_c, 8);
    ath_gguf_close(g);
}

/* ---- getters */

static void getters_convert(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    uint32_t u, list[3];
    float f;
    bool b;
    ath_str s;
    write_sample(path_of("get.gguf"));
    check(ath_gguf_open(&g, path_of("get.gguf"), &err), &err);
    const struct {
        const char *key;
        uint32_t u;
        float f;
    } numbers[] = {{"u8", 7, 7},  {"i8", 0, 0},         {"u16", 500, 500},
                   {"i16", 5, 5}, {"u32", 70000, 7e4f}, {"absent", 99, 98}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        check(ath_gguf_get_u32(g, &u, 99, &err, "test.%s", numbers[i].key), &err);
        assert_int_equal(u, numbers[i].u);
        check(ath_gguf_get_f32(g, &f, 98, &err, "test.%s", numbers[i].key), &err);
        assert_true(f == numbers[i].f);
    }
    check(ath_gguf_get_u32(g, &u, 9, &err, "test.bool"), &err);
    assert_int_equal(u, 0);
    check(ath_gguf_get_f32(g, &f, 0, &err, "test.f32"), &err);
    assert_true(f == sample_f32[1]);
    check(ath_gguf_get_f32(g, &f, 0, &err, "test.i32"), &err);
    assert_true(f == -3);
    check(ath_gguf_get_f32(g, &f, 0, &err, "test.u64"), &err);
    assert_true(f == 0x1p40f);
    check(ath_gguf_get_bool(g, &b, true, &err, "test.bool"), &err);
    assert_false(b);
    check(ath_gguf_get_bool(g, &b, true, &err, "test.i8"), &err);
    assert_false(b);
    check(ath_gguf_get_bool(g, &b, true, &err, "test.absent"), &err);
    assert_true(b);
    check(ath_gguf_get_str(g, &s, &err, "test.absent"), &err);
    assert_null(s.data);
    check(ath_gguf_get_u32_array(g, list, 3, 5, &err, "test.arr_u16"), &err);
    assert_true(list[0] == 0 && list[1] == 500 && list[2] == 65535);
    check(ath_gguf_get_u32_array(g, list, 2, 5, &err, "test.arr_bool"), &err);
    assert_true(list[0] == 1 && list[1] == 0);
    check(ath_gguf_get_u32_array(g, list, 3, 5, &err, "test.u8"), &err);
    assert_true(list[0] == 7 && list[1] == 7 && list[2] == 7);
    check(ath_gguf_get_u32_array(g, list, 3, 5, &err, "test.absent"), &err);
    assert_true(list[0] == 5 && list[1] == 5 && list[2] == 5);
    ath_gguf_close(g);
}

static void getters_refuse(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    uint32_t u, list[4];
    float f;
    bool b;
    ath_str s;
    ath_status bad = ATH_ERR_FORMAT;
    write_sample(path_of("get.gguf"));
    check(ath_gguf_open(&g, path_of("get.gguf"), &err), &err);
    check_refused(ath_gguf_get_u32(g, &u, 0, &err, "test.string"), bad, &err, "'test.string'");
    check_refused(ath_gguf_get_u32(g, &u, 0, &err, "test.f32"), bad, &err, "'test.f32'");
    check_refused(ath_gguf_get_u32(g, &u, 0, &err, "test.arr_u8"), bad, &err,
                  "'test.arr_u8' is an array of u8");
    check_refused(ath_gguf_get_u32(g, &u, 0, &err, "test.i32"), bad, &err, "'test.i32' holds -3");
    check_refused(ath_gguf_get_u32(g, &u, 0, &err, "test.u64"), bad, &err, "'test.u64' holds 1099511627776");
    check_refused(ath_gguf_get_f32(g, &f, 0, &err, "test.f64"), bad, &err, "'test.f64' holds 1e+300");
    check_refused(ath_gguf_get_f32(g, &f, 0, &err, "test.bool"), bad, &err, "'test.bool'");
    check_refused(ath_gguf_get_f32(g, &f, 0, &err, "test.strings"), bad, &err, "'test.strings'");
    check_refused(ath_gguf_get_bool(g, &b, 0, &err, "test.u8"), bad, &err, "'test.u8' is 7");
    check_refused(ath_gguf_get_bool(g, &b, 0, &err, "test.f32"), bad, &err, "'test.f32'");
    check_refused(ath_gguf_get_str(g, &s, &err, "test.u8"), bad, &err, "'test.u8'");
    check_refused(ath_gguf_get_str(g, &s, &err, "test.strings"), bad, &err, "'test.strings'");
    check_refused(ath_gguf_get_u32_array(g, list, 4, 0, &err, "test.arr_u8"), bad, &err, "has 3 elements");
    check_refused(ath_gguf_get_u32_array(g, list, 3, 0, &err, "test.arr_i8"), bad, &err,
                  "'test.arr_i8' holds -128");
    check_refused(ath_gguf_get_u32_array(g, list, 3, 0, &err, "test.arr_u64"), bad, &err, "'test.arr_u64'");
    check_refused(ath_gguf_get_u32_array(g, list, 1, 0, &err, "test.strings"), bad, &err, "'test.strings'");
    check_refused(ath_gguf_get_u32(g, &u, 0, &err, "%1000d", 1), bad, &err, "too long");
    assert_int_equal(ath_gguf_get_u32(g, &u, 0, NULL, "test.string"), bad);
    ath_gguf_close(g);
}

static void items_convert(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    write_sample(path_of("get.gguf"));
    check(ath_gguf_open(&g, path_of("get.gguf"), &err), &err);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_i8"), i), sample_i8[i]);
        assert_int_equal(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_i16"), i), sample_i16[i]);
        assert_int_equal(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_i32"), i), sample_i32[i]);
        assert_int_equal(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_u32"), i), sample_u32[i]);
        assert_true(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_i64"), i) == sample_i64[i]);
        assert_true(ath_gguf_item_f64(ath_gguf_find(g, "test.arr_u64"), i) == (double)sample_u64[i]);
        assert_true(ath_gguf_item_f64(ath_gguf_find(g, "test.arr_i64"), i) == (double)sample_i64[i]);
        assert_true(ath_gguf_item_f64(ath_gguf_find(g, "test.arr_f32"), i) == (double)sample_f32[i]);
        assert_true(ath_gguf_item_f64(ath_gguf_find(g, "test.arr_f64"), i) == sample_f64[i]);
    }
    assert_true(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_u64"), 2) == INT64_MAX);
    assert_true(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_f64"), 0) == -2);
    assert_true(ath_gguf_item_i64(ath_gguf_find(g, "test.arr_f64"), 1) == INT64_MAX);
    ath_gguf_close(g);
}

/* ---- splits */

typedef struct split_plan {
    int no[3], count[3], total;
    bool duplicate;
} split_plan;
static const split_plan good_split = {{0, 1, 2}, {3, 3, 3}, 4, false};

static const char *split_path(int part) {
    char name[64];
    snprintf(name, sizeof name, "model-%05d-of-00003.gguf", part + 1);
    return path_of(name);
}

/* Part 0 holds t0 and t1, the others one tensor each; every part has its own "who" key. */
static void write_split(split_plan plan) {
    ath_error err;
    for (int part = 0; part < 3; part++) {
        ath_gguf_writer *w;
        char name[16];
        uint16_t no = (uint16_t)plan.no[part], count = (uint16_t)plan.count[part];
        check(ath_gguf_writer_create(&w, &err), &err);
        check(ath_gguf_put_scalar(w, "split.no", ATH_GGUF_U16, &no, &err), &err);
        check(ath_gguf_put_scalar(w, "split.count", ATH_GGUF_U16, &count, &err), &err);
        check(ath_gguf_put_scalar(w, "split.tensors.count", ATH_GGUF_I32, &plan.total, &err), &err);
        check(ath_gguf_put_scalar(w, "who", ATH_GGUF_U16, &no, &err), &err);
        for (int t = part ? part + 1 : 0; t <= part + 1; t++) {
            snprintf(name, sizeof name, "t%d", plan.duplicate && t == 3 ? 1 : t);
            check(ath_gguf_put_tensor(w, name, ATH_TYPE_F32, 1, (int64_t[]){8}, sample_a + t, &err), &err);
        }
        check(ath_gguf_write(w, split_path(part), &err), &err);
        ath_gguf_writer_free(w);
    }
}

static void splits_open_as_one(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    uint32_t who;
    for (int i = 0; i < 64; i++) sample_a[i] = (float)i;
    write_split(good_split);
    check(ath_gguf_open(&g, split_path(0), &err), &err);
    assert_int_equal(ath_gguf_n_parts(g), 3);
    assert_int_equal(ath_gguf_n_tensors(g), 4);
    assert_int_equal(ath_gguf_n_kv(g), 4);
    check(ath_gguf_get_u32(g, &who, 9, &err, "who"), &err);
    assert_int_equal(who, 0);
    for (int t = 0; t < 4; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", t);
        check_tensor(g, name, ATH_TYPE_F32, 1, (int64_t[]){8, 1, 1, 1}, sample_a + t, 32);
        assert_int_equal(ath_gguf_find_tensor(g, name)->part, t < 2 ? 0 : t - 1);
        ath_gguf_release_tensor(g, ath_gguf_find_tensor(g, name));
    }
    struct stat st;
    size_t bytes = 0;
    for (int part = 0; part < 3; part++) {
        assert_int_equal(stat(split_path(part), &st), 0);
        bytes += (size_t)st.st_size;
    }
    assert_int_equal(ath_gguf_file_bytes(g), bytes);
    ath_gguf_close(g);
}

static void broken_splits_are_refused(void **state) {
    (void)state;
    ath_gguf *g;
    ath_error err;
    const struct {
        split_plan plan;
        const char *expect;
    } cases[] = {
        {{{0, 1, 2}, {3, 3, 3}, 5, false}, "'split.tensors.count' is 5, but the 3 parts hold 4"},
        {{{0, 1, 2}, {3, 3, 3}, -1, false}, "'split.tensors.count'"},
        {{{0, 1, 2}, {2, 3, 3}, 4, false}, "'split.count' says 2 parts"},
        {{{0, 1, 2}, {4, 3, 3}, 4, false}, "'split.count' says 4 parts"},
        {{{0, 1, 2}, {3, 3, 4}, 4, false}, "00003-of-00003.gguf: key 'split.count' is 4"},
        {{{0, 2, 1}, {3, 3, 3}, 4, false}, "00002-of-00003.gguf: key 'split.no' is 2"},
        {{{1, 1, 2}, {3, 3, 3}, 4, false}, "'split.no' is 1: this is not the first of 3"},
        {{{0, 1, 2}, {3, 3, 3}, 4, true}, "00003-of-00003.gguf: tensor 't1': it occurs twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_split(cases[i].plan);
        check_refused(ath_gguf_open(&g, split_path(0), &err), ATH_ERR_FORMAT, &err, cases[i].expect);
    }
    write_split(good_split);
    check_refused(ath_gguf_open(&g, split_path(1), &err), ATH_ERR_FORMAT, &err,
                  "this is not the first of 3 parts");
    size_t size;
    uint8_t *bytes = read_bytes(split_path(0), &size);
    check_refused(ath_gguf_open_memory(&g, bytes, size, "m", &err), ATH_ERR_FORMAT, &err,
                  "'split.count' is 3");
    write_bytes(path_of("renamed.gguf"), bytes, size);
    check_refused(ath_gguf_open(&g, path_of("renamed.gguf"), &err), ATH_ERR_FORMAT, &err,
                  "-00001-of-00003.gguf");
    free(bytes);
    bytes = read_bytes(split_path(2), &size);
    write_bytes(split_path(2), bytes, size - 1); /* one byte of the last tensor is missing */
    free(bytes);
    check_refused(ath_gguf_open(&g, split_path(0), &err), ATH_ERR_FORMAT, &err, "00003.gguf: tensor 't3'");
    unlink(split_path(1));
    check_refused(ath_gguf_open(&g, split_path(0), &err), ATH_ERR_IO, &err, "model-00002-of-00003.gguf");
}

/* ---- hostile files: one number of the sample is overwritten, or the file is cut there */

enum { CUT = 0 };
typedef struct hostile {
    const char *anchor; /* bytes to look for; NULL: the beginning */
    int delta;          /* from the anchor's end; for an anchor of a key: the value type */
    int width;          /* bytes to overwrite, CUT: truncate */
    uint64_t value;
    const char *expect;
} hostile;

/* Before the end of NAME: its length stands -8 - strlen. */
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

/* A sparse file of 5 GiB: tensors lie behind 2^32. */
static void offsets_are_64_bit(void **state) {
    (void)state;
    const int64_t big = 5ll << 30;
    size_t size;
    uint8_t *bytes = sample_bytes(&size);
    uint8_t *a = (uint8_t *)memmem(bytes, size, "a.weight", 8) + 8,
            *b = (uint8_t *)memmem(bytes, size, "b.weight", 8) + 8;
    uint8_t *c = (uint8_t *)memmem(bytes, size, "c.weight", 8) + 8;
    memcpy(a + 4, &(int64_t){big / 8}, 8); /* F32, ne[1] = 2 */
    memcpy(b + 16, &big, 8);
    memcpy(c + 16, &(int64_t){big + 160}, 8);
    size_t data = (size_t)((uint8_t *)memmem(bytes, size, sample_b, sizeof sample_b) - bytes) - 256;
    FILE *f = fopen(path_of("big.gguf"), "wb");
    fwrite(bytes, 1, data, f);
    fseeko(f, big, SEEK_CUR);
    fwrite(bytes + data + 256, 1, size - data - 256, f);
    assert_int_equal(fclose(f), 0);
    free(bytes);
    ath_gguf *g;
    ath_error err;
    check(ath_gguf_open(&g, path_of("big.gguf"), &err), &err);
    check_tensor(g, "c.weight", ATH_TYPE_F16, 1, (int64_t[]){4, 1, 1, 1}, sample_c, sizeof sample_c);
    assert_int_equal(ath_gguf_find_tensor(g, "a.weight")->size, big);
    ath_gguf_close(g);
    unlink(path_of("big.gguf"));
}

/* ---- the writer's own refusals */

static void writer_refuses(void **state) {
    (void)state;
    ath_gguf_writer *w = sample_writer();
    ath_error err;
    ath_status bad = ATH_ERR_ARGUMENT;
    uint32_t three = 3;
    int64_t ne[4] = {256, 1, 1, 1}, overflow[2] = {INT64_MAX / 2, INT64_MAX / 2}, zero[1] = {0};
    const char *long_name = "0123456789012345678901234567890123456789012345678901234567890123";
    ath_tensor_type f32 = ATH_TYPE_F32;
    check_refused(ath_gguf_put_str(w, "", "x", &err), bad, &err, "empty");
    check_refused(ath_gguf_put_scalar(w, "k", ATH_GGUF_STRING, &three, &err), bad, &err, "'k'");
    check_refused(ath_gguf_put_array(w, "k", ATH_GGUF_ARRAY, &three, 1, &err), bad, &err, "'k'");
    check_refused(ath_gguf_put_scalar(w, "k", (ath_gguf_type)77, &three, &err), bad, &err, "'k'");
    check_refused(ath_gguf_put_scalar(w, "k", ATH_GGUF_BOOL, &three, &err), bad, &err, "'k'");
    check_refused(ath_gguf_put_scalar(w, "general.alignment", ATH_GGUF_U32, &three, &err), bad, &err,
                  "alignment");
    check_refused(ath_gguf_put_str(w, "general.alignment", "32", &err), bad, &err, "alignment");
    check_refused(ath_gguf_put_tensor(w, "a.weight", f32, 1, ne, sample_b, &err), bad, &err, "'a.weight'");
    check_refused(ath_gguf_put_tensor(w, "", f32, 1, ne, sample_b, &err), bad, &err, "1 to 63");
    check_refused(ath_gguf_put_tensor(w, long_name, f32, 1, ne, sample_b, &err), bad, &err, "64");
    check_refused(ath_gguf_put_tensor(w, "t", f32, 5, ne, sample_b, &err), bad, &err, "5 dimensions");
    check_refused(ath_gguf_put_tensor(w, "t", f32, 0, ne, sample_b, &err), bad, &err, "0 dimensions");
    check_refused(ath_gguf_put_tensor(w, "t", f32, 1, zero, sample_b, &err), bad, &err, "ne[0]");
    check_refused(ath_gguf_put_tensor(w, "t", f32, 2, overflow, sample_b, &err), bad, &err, "ne[");
    ne[0] = 255;
    check_refused(ath_gguf_put_tensor(w, "t", ATH_TYPE_Q4_K, 1, ne, sample_b, &err), bad, &err, "Q4_K");
    check_refused(ath_gguf_put_tensor(w, "t", (ath_tensor_type)4, 1, ne, sample_b, &err), bad, &err,
                  "type 4");
    check_refused(ath_gguf_write(w, path_of("no/such/folder.gguf"), &err), ATH_ERR_IO, &err,
                  "no/such/folder.gguf");
    mkdir(path_of("taken.gguf"),
          0777); /* a folder of that name: the rename fails, nothing may be left behind */
    check_refused(ath_gguf_write(w, path_of("taken.gguf"), &err), ATH_ERR_IO, &err, "taken.gguf");
    assert_int_equal(rmdir(path_of("taken.gguf")), 0);
    char command[400];
    snprintf(command, sizeof command, "test -z \"$(ls %s | grep tmp)\"", folder);
    assert_int_equal(system(command), 0);
    check(ath_gguf_write(w, path_of("still.gguf"), &err), &err); /* the refusals changed nothing */
    ath_gguf_writer_free(w);
    ath_gguf_writer_free(NULL);
    ath_gguf *g;
    check(ath_gguf_open(&g, path_of("still.gguf"), &err), &err);
    check_sample(g);
    ath_gguf_close(g);
}

/* ---- serving test_gguf_python.py */

static void print_hex(const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", ((const uint8_t *)data)[i]);
}

/* One line per key: kv, key in hex, type, element type, count, elements (strings in hex, floats as %a). One
 * line per tensor: tensor, name, type id, part, size in bytes, dims, the first and last 32 bytes. */
static int dump(const char *path) {
    ath_gguf *g;
    ath_error err;
    if (ath_gguf_open(&g, path, &err) != ATH_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int64_t i = 0; i < ath_gguf_n_kv(g); i++) {
        const ath_gguf_kv *kv = ath_gguf_kv_at(g, i);
        printf("kv\t");
        print_hex(kv->key.data, kv->key.size);
        printf("\t%d\t%d\t%" PRIu64, kv->type, kv->item_type, kv->count);
        for (uint64_t j = 0; j < kv->count; j++) {
            ath_str s = {0};
            putchar('\t');
            if (kv->type == ATH_GGUF_STRING)
                ath_gguf_get_str(g, &s, &err, "%.*s", (int)kv->key.size, kv->key.data);
            if (kv->strings) s = kv->strings[j];
            if (kv->item_type == ATH_GGUF_STRING) {
                print_hex(s.data, s.size);
            } else if (kv->item_type == ATH_GGUF_F32 || kv->item_type == ATH_GGUF_F64) {
                printf("%a", ath_gguf_item_f64(kv, j));
            } else if (kv->item_type == ATH_GGUF_U64) {
                uint64_t value;
                memcpy(&value, kv->data + 8 * j, 8);
                printf("%" PRIu64, value);
            } else {
                printf("%" PRId64, ath_gguf_item_i64(kv, j));
            }
        }
        putchar('\n');
    }
    for (int64_t i = 0; i < ath_gguf_n_tensors(g); i++) {
        const ath_gguf_tensor *t = ath_gguf_tensor_at(g, i);
        size_t n = t->size < 32 ? t->size : 32;
        printf("tensor\t%.*s\t%d\t%d\t%zu\t", (int)t->name.size, t->name.data, t->type, t->part, t->size);
        for (int d = 0; d < t->n_dims; d++) printf("%s%" PRId64, d ? "," : "", t->ne[d]);
        putchar('\t');
        print_hex(t->data, n);
        print_hex(t->data + t->size - n, n);
        putchar('\n');
    }
    ath_gguf_close(g);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--dump") == 0) return dump(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        write_sample(argv[2]);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_comes_back),
        cmocka_unit_test(many_names_are_found),
        cmocka_unit_test(alignment_and_empty_files),
        cmocka_unit_test(getters_convert),
        cmocka_unit_test(getters_refuse),
        cmocka_unit_test(items_convert),
        cmocka_unit_test(splits_open_as_one),
        cmocka_unit_test(broken_splits_are_refused),
        cmocka_unit_test(hostile_files_are_refused_by_name),
        cmocka_unit_test(foreign_files_are_named),
        cmocka_unit_test(messages_are_printable_and_short),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(random_mutations_do_not_crash),
        cmocka_unit_test(offsets_are_64_bit),
        cmocka_unit_test(writer_refuses),
    };
    if (!mkdtemp(folder)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0 || failed != 0;
}
