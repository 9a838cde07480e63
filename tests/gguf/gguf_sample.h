/* What the GGUF tests share: a folder of their own, checks, and a sample file with every value type. */
#ifndef ATH_TEST_GGUF_SAMPLE_H
#define ATH_TEST_GGUF_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "gguf/gguf.h"

static char folder[] = "/tmp/test_gguf_XXXXXX";

/* A path in the test's folder; four may be in use at once. */
static inline const char *path_of(const char *name) {
    static char paths[4][300];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void check(ath_status status, const ath_error *err) {
    if (status != ATH_OK) fail_msg("%s: %s", err->where, err->message);
}

/* Refused with that code, and the message names what is wrong. */
static inline void check_refused(ath_status status, ath_status code, const ath_error *err,
                                 const char *expect) {
    if (status != code || !strstr(err->message, expect)) {
        fail_msg("status %d (want %d), message '%s' (want '%s' in it)", status, code,
                 status == ATH_OK ? "" : err->message, expect);
    }
    assert_int_equal(err->code, code);
    assert_null(strchr(err->message, '\n'));
}

static inline void write_bytes(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline uint8_t *read_bytes(const char *path, size_t *size) {
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
static inline ath_gguf_writer *sample_writer(void) {
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

static inline void write_sample(const char *path) {
    ath_gguf_writer *w = sample_writer();
    ath_error err;
    check(ath_gguf_write(w, path, &err), &err);
    ath_gguf_writer_free(w);
}

static inline uint8_t *sample_bytes(size_t *size) {
    write_sample(path_of("sample.gguf"));
    return read_bytes(path_of("sample.gguf"), size);
}

static inline void check_str(ath_str s, const char *expect) {
    assert_int_equal(s.size, strlen(expect));
    assert_memory_equal(s.data, expect, s.size);
}

static inline void check_tensor(const ath_gguf *g, const char *name, ath_tensor_type type, int n_dims,
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

static inline void check_sample(const ath_gguf *g) {
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

/* What main does around the tests of one program. */
#define RUN_IN_FOLDER(tests)                                                                                 \
    do {                                                                                                     \
        if (!mkdtemp(folder)) return 1;                                                                      \
        int failed_ = cmocka_run_group_tests(tests, NULL, NULL);                                             \
        char command_[300];                                                                                  \
        snprintf(command_, sizeof command_, "rm -r %s", folder);                                             \
        return system(command_) != 0 || failed_ != 0;                                                        \
    } while (0)

#endif
