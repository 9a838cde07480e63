/* GGUF: what the writer writes the reader reads, by every getter; splits; what the writer refuses.
 *
 * `test_gguf --dump FILE` and `test_gguf --write FILE` serve test_gguf_python.py. */
#include <sys/stat.h>

#include "gguf/gguf_sample.h"

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

/* n_dims 0 is a scalar: a tensor of one element. */
static void scalar_tensor_is_a_vector_of_one(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = sample_bytes(&size);
    uint8_t *dims = (uint8_t *)memmem(bytes, size, "c.weight", 8) + 8;
    ath_gguf *g;
    ath_error err;
    const size_t data_size = 256 + 160 + 32;
    memset(dims, 0, 4);
    memmove(dims + 4, dims + 12,
            12); /* type and offset; the data section follows, eight bytes earlier, aligned */
    size_t start = ((size_t)(dims - bytes) + 16 + 31) / 32 * 32;
    memmove(bytes + start, bytes + size - data_size, data_size);
    check(ath_gguf_open_memory(&g, bytes, size, "m", &err), &err);
    check_tensor(g, "c.weight", ATH_TYPE_F16, 1, (int64_t[]){1, 1, 1, 1}, sample_c, 2);
    ath_gguf_close(g);
    free(bytes);
}

/* Dropping pages of a file is harmless, they are read again; pages of the caller's memory would come back
 * zero. */
static void borrowed_memory_is_never_released(void **state) {
    (void)state;
    enum { BYTES = 1 << 16 };
    uint8_t *data = malloc(BYTES);
    ath_gguf_writer *w;
    ath_gguf *g;
    ath_error err;
    size_t size;
    memset(data, 42, BYTES);
    check(ath_gguf_writer_create(&w, &err), &err);
    check(ath_gguf_put_tensor(w, "t", ATH_TYPE_I8, 1, (int64_t[]){BYTES}, data, &err), &err);
    check(ath_gguf_write(w, path_of("pages.gguf"), &err), &err);
    ath_gguf_writer_free(w);
    uint8_t *bytes = read_bytes(path_of("pages.gguf"), &size), *aligned = aligned_alloc(BYTES, 2 * BYTES);
    memcpy(aligned, bytes, size);
    check(ath_gguf_open_memory(&g, aligned, size, "m", &err), &err);
    ath_gguf_release_tensor(g, ath_gguf_tensor_at(g, 0));
    check_tensor(g, "t", ATH_TYPE_I8, 1, (int64_t[]){BYTES, 1, 1, 1}, data, BYTES);
    ath_gguf_close(g);
    free(aligned);
    free(bytes);
    free(data);
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
    ath_gguf_writer *w;
    uint32_t no = 0, count = 70000;
    check(ath_gguf_writer_create(&w, &err), &err);
    check(ath_gguf_put_scalar(w, "split.count", ATH_GGUF_U32, &count, &err), &err);
    check(ath_gguf_write(w, path_of("m-00001-of-70000.gguf"), &err), &err);
    check_refused(ath_gguf_open(&g, path_of("m-00001-of-70000.gguf"), &err), ATH_ERR_FORMAT, &err,
                  "key 'split.no' is missing");
    check(ath_gguf_put_scalar(w, "split.no", ATH_GGUF_U32, &no, &err), &err);
    check(ath_gguf_put_scalar(w, "split.tensors.count", ATH_GGUF_U32, &no, &err), &err);
    check(ath_gguf_write(w, path_of("m-00001-of-70000.gguf"), &err), &err);
    check_refused(ath_gguf_open(&g, path_of("m-00001-of-70000.gguf"), &err), ATH_ERR_FORMAT, &err,
                  "'split.count' is 70000, more than 65535");
    ath_gguf_writer_free(w);
    unlink(split_path(1));
    check_refused(ath_gguf_open(&g, split_path(0), &err), ATH_ERR_IO, &err, "model-00002-of-00003.gguf");
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

/* Runs last: whatever was opened is unmapped again. */
static void nothing_stays_mapped(void **state) {
    (void)state;
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) assert_null(strstr(line, folder));
    fclose(maps);
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
        cmocka_unit_test(scalar_tensor_is_a_vector_of_one),
        cmocka_unit_test(borrowed_memory_is_never_released),
        cmocka_unit_test(many_names_are_found),
        cmocka_unit_test(alignment_and_empty_files),
        cmocka_unit_test(getters_convert),
        cmocka_unit_test(getters_refuse),
        cmocka_unit_test(items_convert),
        cmocka_unit_test(splits_open_as_one),
        cmocka_unit_test(broken_splits_are_refused),
        cmocka_unit_test(offsets_are_64_bit),
        cmocka_unit_test(writer_refuses),
        cmocka_unit_test(nothing_stays_mapped),
    };
    RUN_IN_FOLDER(tests);
}
