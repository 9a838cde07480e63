/* Attention over the paged cache as the device offers it: against a double-precision judge, and bit for bit
 * against itself on other instruction sets (but for matrix products), thread counts, batches and chunks. --bench [TYPE ...] prints its
 * speed instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "attend_bench.h"
#include "attend_fixture.h"
#include "kernels/cpu_flags.h"

/* [0] is plain C; the last two may use matrix instructions, whose products aren't its bits. */
enum { N_EXACT = 5, MATRIX = N_EXACT, N_DEVICES = N_EXACT + 2, VECTORS = ~ATH_CPU_AMX };
static const struct {
    uint32_t mask;
    int threads;
} device_kinds[N_DEVICES] = {{0, 1},       {ATH_CPU_AVX2, 1}, {(uint32_t)VECTORS, 1}, {(uint32_t)VECTORS, 2},
                             {ATH_CPU_AVX2, 2}, {~0u, 1},          {~0u, 2}};
static ath_device *devices[N_DEVICES];

static int make_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_DEVICES; i++) {
        ath_device_params params = {.n_threads = device_kinds[i].threads,
                                    .n_threads_batch = device_kinds[i].threads,
                                    .cpu_mask = device_kinds[i].mask,
                                    .max_rows = 512};
        ath_error err;
        if (ath_device_cpu_create(&devices[i], &params, &err) != ATH_OK) return -1;
    }
    return 0;
}

static int free_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_DEVICES; i++) ath_device_free(devices[i]);
    return 0;
}

static const char *describe(const attend_config *c, const batch_seq *b) {
    static char text[200];
    snprintf(text, sizeof text, "%s x %s, head_dim %d/%d, heads %d/%d, window %d, softcap %g, rows %d at %d",
             ath_kv_type_name(c->type_k), ath_kv_type_name(c->type_v), c->head_dim_k, c->head_dim_v,
             c->n_heads, c->n_kv_heads, (int)c->window, (double)c->softcap, (int)b->n_rows, (int)b->pos0);
    return text;
}

/* Relative root mean square error of rows against the judge (all heads of the first, middle and last row). */
static double error_of(const batch_seq *b, const float *q, const float *out) {
    const attend_config *c = &b->cache->c;
    double error = 0, total = 0, *want = xmalloc((size_t)c->head_dim_v * sizeof *want);
    int64_t rows[3] = {0, b->n_rows / 2, b->n_rows - 1};
    for (int i = b->n_rows == 1 ? 2 : 0; i < 3; i++) {
        for (int h = 0; h < c->n_heads; h++) {
            int64_t at = rows[i] * c->n_heads + h;
            judge(b->cache, b->pos0 + rows[i], h, q + at * c->head_dim_k, want);
            for (int j = 0; j < c->head_dim_v; j++) {
                double d = want[j] - (double)out[at * c->head_dim_v + j];
                error += d * d;
                total += want[j] * want[j];
            }
        }
    }
    free(want);
    return sqrt(error / total);
}

/* Decode on encoded pages rounds the query to 16 bits, so each channel is off by .29 / 32639 of the largest,
 * or by 3.4e-5 rms at a largest of 3.8 sigma; the score, a sum of unit-variance products over sqrt(head_dim),
 * by as much, and so the output relative to itself. Weights lose up to twice that (15 bits), relative to the
 * largest of a page, which is some 5 times their rms. Everything else rounds in f32 only: scores of a few
 * units to 1e-6. */
static double tolerance_of(const attend_config *c, const batch_seq *b) {
    bool rounds = b->n_rows == 1 && !(ath_kv_type_is_raw(c->type_k) && ath_kv_type_is_raw(c->type_v));
    return rounds ? 1.5e-4 : 5e-6;
}

static void check_matrix(const attend_config *c, const batch_seq *b, const float *q, float *out, float *again) {
    size_t size = (size_t)(b->n_rows * c->n_heads * c->head_dim_v) * sizeof *out;
    ath_attn_counters counters = {0};
    attend(devices[MATRIX], b, 1, q, out, &counters);
    double error = error_of(b, q, out);
    if (!(error <= tolerance_of(c, b))) fail_msg("error %g with matrix products: %s", error, describe(c, b));
    memset(again, 0xff, size);
    attend(devices[MATRIX + 1], b, 1, q, again, &counters);
    if (memcmp(out, again, size) != 0) fail_msg("two threads change matrix products: %s", describe(c, b));
}

/* Against the judge in plain C, then the other devices against plain C. */
static void check(const attend_config *c, const batch_seq *b) {
    size_t n = (size_t)(b->n_rows * c->n_heads * c->head_dim_v);
    float *q = random_queries(c, b->n_rows, 99), *out = xmalloc(n * sizeof *out),
          *again = xmalloc(n * sizeof *again);
    ath_attn_counters counters = {0};
    attend(devices[0], b, 1, q, out, &counters);
    double error = error_of(b, q, out);
    if (!(error <= tolerance_of(c, b))) fail_msg("error %g: %s", error, describe(c, b));
    for (int i = 1; i < N_EXACT; i++) {
        memset(again, 0xff, n * sizeof *again);
        attend(devices[i], b, 1, q, again, &counters);
        for (size_t j = 0; j < n; j++)
            if (ath_f32_bits(out[j]) != ath_f32_bits(again[j]))
                fail_msg("%s, at most %d threads, differs from plain C at %d: %a, %a: %s",
                         ath_device_describe(devices[i]), device_kinds[i].threads, (int)j, (double)out[j],
                         (double)again[j], describe(c, b));
    }
    check_matrix(c, b, q, out, again);
    free(q);
    free(out);
    free(again);
}

/* The cache ends with the batch, so that NaN follows it. */
static void check_rows(const attend_config *c, int64_t pos0, int64_t n_rows) {
    batch_seq b = {cache_new(c, pos0 + n_rows, 7), pos0, n_rows};
    check(c, &b);
    cache_free((cache *)b.cache);
}

static void test_type_pairs(void **state) {
    (void)state;
    static const int dims[] = {64, 128, 256};
    for (int k = 0; k < ATH_KV_TYPE_COUNT; k++)
        for (int v = 0; v < ATH_KV_TYPE_COUNT; v++) {
            int dim = dims[(k + v) % 3];
            attend_config c = {(ath_kv_type)k, (ath_kv_type)v, dim, dim, 2, 1, 0, 0, false};
            batch_seq b = {cache_new(&c, 402, 7 + (uint64_t)k), 401, 1};
            check(&c, &b);
            b = (batch_seq){b.cache, 399, 3};
            check(&c, &b);
            cache_free((cache *)b.cache);
        }
}

static void test_head_dims(void **state) {
    (void)state;
    static const int dims[] = {16, 80, 96, 112, 192, 576};
    static const ath_kv_type types[] = {ATH_KV_TURBO4_TCQ, ATH_KV_TURBO3, ATH_KV_TURBO2_TCQ, ATH_KV_F16};
    for (int i = 0; i < 6; i++)
        for (int t = 0; t < 4; t++) {
            attend_config c = {types[t], types[(t + i) % 4], dims[i], dims[(i + t) % 6], 2, 1, 0, 0, false};
            check_rows(&c, 387, 1);
            check_rows(&c, 384, 2);
        }
}

/* Raw types take any head size. */
static void test_odd_head_dims(void **state) {
    (void)state;
    static const int dims[] = {2, 24, 40, 100};
    for (int i = 0; i < 4; i++)
        for (int type = ATH_KV_F32; type <= ATH_KV_BF16; type++) {
            attend_config c = {(ath_kv_type)type, (ath_kv_type)type, dims[i], dims[i], 4, 2, 0, 0, false};
            check_rows(&c, 150, 1);
            check_rows(&c, 150, 3);
        }
}

static void test_v_in_k(void **state) {
    (void)state;
    static const int dims[][2] = {{576, 512}, {96, 64}, {48, 40}};
    for (int type = 0; type < ATH_KV_TYPE_COUNT; type++)
        for (int i = 0; i < 3; i++) {
            bool blocks = !ath_kv_type_is_raw((ath_kv_type)type) && !ath_kv_type_is_turbo((ath_kv_type)type);
            if (blocks && dims[i][0] % 32) continue;
            if (ath_kv_type_is_turbo((ath_kv_type)type) && dims[i][1] % 16) continue;
            attend_config c = {(ath_kv_type)type,
                               (ath_kv_type)type,
                               dims[i][0],
                               dims[i][1],
                               20,
                               1,
                               i == 1 ? 300 : 0,
                               0,
                               false};
            for (int rows = 1; rows <= 3; rows += 2) {
                cache *x = cache_new(&c, 390 + rows, 7);
                x->v_in_k = true;
                batch_seq b = {x, 390, rows};
                check(&c, &b);
                cache_free(x);
            }
        }
}

static void test_groups(void **state) {
    (void)state;
    static const int groups[] = {1, 2, 3, 4, 5, 7, 16, 19};
    for (int i = 0; i < 8; i++)
        for (int raw = 0; raw < 2; raw++) {
            ath_kv_type type = raw ? ATH_KV_F16 : ATH_KV_TURBO3;
            attend_config c = {type, type, 64, 64, 2 * groups[i], 2, 0, raw ? 3.0f : 0, i % 2 == 0};
            check_rows(&c, 300, 1);
            check_rows(&c, 297, 3);
        }
}

static void test_windows(void **state) {
    (void)state;
    static const int windows[] = {16, 128, 129, 300, 512};
    static const ath_kv_type types[] = {ATH_KV_TURBO3, ATH_KV_Q4_0, ATH_KV_F16, ATH_KV_F32};
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 4; t++) {
            attend_config c = {types[t], types[t], 64, 64, 2, 1, windows[i], t % 2 ? 0 : 20.0f, t == 1};
            for (int64_t pos = 510; pos <= 640; pos += 65) check_rows(&c, pos, 1);
            check_rows(&c, 630, 13);
            check_rows(&c, 0, 140);
        }
}

static void test_row_counts(void **state) {
    (void)state;
    attend_config c = {ATH_KV_TURBO3, ATH_KV_TURBO2, 32, 32, 3, 1, 0, 0, false};
    for (int64_t rows = 1; rows <= 33; rows += rows < 8 ? 1 : 5) {
        check_rows(&c, 0, rows);
        check_rows(&c, 500, rows);
    }
    check_rows(&c, 0, 300);
    c.type_k = c.type_v = ATH_KV_BF16;
    check_rows(&c, 120, 150);
}

/* More than the most splits, so that a split has more pages than at first. */
static void test_long(void **state) {
    (void)state;
    attend_config c = {ATH_KV_F16, ATH_KV_TURBO3, 16, 16, 1, 1, 0, 0, false};
    check_rows(&c, 133 * 128 + 5, 1);
    check_rows(&c, 133 * 128 + 5, 2);
}

static void expect_same(const float *a, const float *b, size_t n, const char *what, const char *text) {
    for (size_t i = 0; i < n; i++)
        if (ath_f32_bits(a[i]) != ath_f32_bits(b[i])) fail_msg("%s differs at %d: %s", what, (int)i, text);
}

/* Each sequence of a batch gets the bits it gets alone, whatever the neighbours and the threads. */
static void test_batch_equals_alone(void **state) {
    (void)state;
    static const ath_kv_type types[] = {ATH_KV_F32, ATH_KV_TURBO3, ATH_KV_Q8_0};
    for (int t = 0; t < 3; t++) {
        attend_config c = {types[t], types[t], 64, 64, 4, 2, t == 1 ? 400 : 0, 0, false};
        int64_t pos[5] = {0, 300, 255, 520, 640}, rows[5] = {1, 1, 40, 1, 2};
        batch_seq batch[5];
        size_t width_q = (size_t)(c.n_heads * c.head_dim_k), width = (size_t)(c.n_heads * c.head_dim_v);
        for (int i = 0; i < 5; i++)
            batch[i] = (batch_seq){cache_new(&c, pos[i] + rows[i], (uint64_t)i), pos[i], rows[i]};
        float *q = random_queries(&c, 45, 5), *out = xmalloc(45 * width * sizeof *out),
              *alone = xmalloc(45 * width * sizeof *out);
        ath_attn_counters counters = {0};
        for (int d = 2; d < N_DEVICES; d++) {
            if (d == 4) continue; /* AVX2 */
            attend(devices[d], batch, 5, q, out, &counters);
            size_t row = 0;
            for (int i = 0; i < 5; i++) {
                attend(devices[d < N_EXACT ? 2 : MATRIX], &batch[i], 1, q + row * width_q, alone, &counters);
                expect_same(out + row * width, alone, (size_t)rows[i] * width, "batch",
                            describe(&c, &batch[i]));
                row += (size_t)rows[i];
            }
        }
        for (int i = 0; i < 5; i++) cache_free((cache *)batch[i].cache);
        free(q);
        free(out);
        free(alone);
    }
}

/* Rows don't depend on the chunk that brings them; with raw types, decode gives the same bits as prefill. */
static void check_chunks(ath_device *dev) {
    static const ath_kv_type types[] = {ATH_KV_F32, ATH_KV_F16, ATH_KV_TURBO3, ATH_KV_Q5_1};
    for (int t = 0; t < 4; t++) {
        attend_config c = {types[t], types[t], 64, 64, 4, 2, t == 1 ? 200 : 0, 0, true};
        const int64_t pos0 = 590, n = 100;
        cache *x = cache_new(&c, pos0 + n, 3);
        size_t width_q = (size_t)(c.n_heads * c.head_dim_k), width = (size_t)(c.n_heads * c.head_dim_v);
        float *q = random_queries(&c, n, 5), *out = xmalloc((size_t)n * width * sizeof *out),
              *part = xmalloc((size_t)n * width * sizeof *out);
        ath_attn_counters counters = {0};
        batch_seq all = {x, pos0, n};
        attend(dev, &all, 1, q, out, &counters);
        int64_t smallest = ath_kv_type_is_raw(types[t]) ? 1 : 2;
        for (int64_t chunk = smallest; chunk < 50; chunk = chunk * 3 + 1)
            for (int64_t at = 0; at + chunk <= n; at += chunk) {
                batch_seq b = {x, pos0 + at, chunk};
                attend(dev, &b, 1, q + (size_t)at * width_q, part, &counters);
                expect_same(part, out + (size_t)at * width, (size_t)chunk * width, "chunk", describe(&c, &b));
            }
        cache_free(x);
        free(q);
        free(out);
        free(part);
    }
}

static void test_chunks(void **state) {
    (void)state;
    check_chunks(devices[2]);
    check_chunks(devices[MATRIX]);
}

/* Where the CPU has matrix instructions they are used, and in prefill on encoded pages alone. */
static void test_where_matrix_products_are(void **state) {
    (void)state;
    static const ath_kv_type types[] = {ATH_KV_TURBO3, ATH_KV_Q4_0, ATH_KV_F16};
    if (!(ath_cpu_flags(~0u) & ATH_CPU_AMX)) skip();
    for (int t = 0; t < 3; t++)
        for (int64_t rows = 1; rows <= 2; rows++) {
            attend_config c = {types[t], types[t], 64, 64, 2, 1, 0, 0, false};
            batch_seq b = {cache_new(&c, 500 + rows, 7), 500, rows};
            float *q = random_queries(&c, rows, 5), out[2][256];
            ath_attn_counters counters = {0};
            for (int i = 0; i < 2; i++) attend(devices[i ? MATRIX : 2], &b, 1, q, out[i], &counters);
            bool same = memcmp(out[0], out[1], (size_t)rows * 128 * sizeof(float)) == 0;
            assert_int_equal(same, rows == 1 || types[t] == ATH_KV_F16);
            cache_free((cache *)b.cache);
            free(q);
        }
}

static void test_counters(void **state) {
    (void)state;
    static const int64_t cases[][3] = {{0, 1, 0},     {0, 300, 0},    {511, 3, 0},  {640, 1, 0},
                                       {700, 1, 130}, {600, 90, 300}, {400, 1, 399}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attend_config c = {ATH_KV_TURBO2, i % 2 ? ATH_KV_F16 : ATH_KV_Q8_0, 32, 32, 2, 1, cases[i][2], 0,
                           false};
        batch_seq b = {cache_new(&c, cases[i][0] + cases[i][1], 7), cases[i][0], cases[i][1]};
        float *q = random_queries(&c, b.n_rows, 5), *out = xmalloc((size_t)(b.n_rows * 64) * sizeof *out);
        ath_attn_counters got = {1, 2, 3, 4}, want = {1, 2, 3, 4};
        attend(devices[2], &b, 1, q, out, &got);
        for (int64_t pos = b.pos0; pos < b.pos0 + b.n_rows; pos++)
            for (int64_t t = first_visible(&c, pos); t <= pos; t++) {
                *(reads_encoded(&c, 0, pos, t) ? &want.k_compressed : &want.k_plain) += 1;
                *(reads_encoded(&c, 1, pos, t) ? &want.v_compressed : &want.v_plain) += 1;
            }
        assert_memory_equal(&got, &want, sizeof got);
        cache_free((cache *)b.cache);
        free(q);
        free(out);
    }
}

static void test_encode_op(void **state) {
    (void)state;
    enum { N = 7 };
    static const ath_kv_type types[N] = {ATH_KV_TURBO2, ATH_KV_TURBO3, ATH_KV_TURBO4, ATH_KV_Q8_0,
                                         ATH_KV_IQ4_NL, ATH_KV_F32,    ATH_KV_TURBO3};
    attend_config c = {ATH_KV_F16, ATH_KV_F16, 96, 96, 1, 1, 0, 0, false};
    cache *x = cache_new(&c, 128, 11);
    ath_kv_layout layouts[N];
    ath_encode_job jobs[N];
    uint8_t *want = xmalloc(N * 96 * 128 * 4);
    float *scratch = xmalloc(96 * 128 * sizeof *scratch);
    for (int d = 0; d < N_DEVICES; d++) {
        for (int i = 0; i < N; i++) {
            ath_error err;
            bool key = i % 2 == 0;
            assert_int_equal(ath_kv_layout_init(&layouts[i], types[i], 96, key, &err), ATH_OK);
            jobs[i] = (ath_encode_job){&layouts[i], x->tiles[key ? 0 : 1][0], xmalloc(layouts[i].bytes)};
        }
        ath_op_encode_pages(devices[d], jobs, N);
        for (int i = 0; i < N; i++) {
            ath_kv_encode_page(&layouts[i], jobs[i].tile, want, scratch);
            assert_memory_equal(jobs[i].out, want, layouts[i].bytes);
            free(jobs[i].out);
        }
    }
    free(want);
    free(scratch);
    cache_free(x);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        if (make_devices(NULL)) return 1;
        bench_device(devices[MATRIX + 1], argc - 2, argv + 2);
        bench_device(devices[4], argc - 2, argv + 2);
        bench_device(devices[3], argc - 2, argv + 2);
        return free_devices(NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_type_pairs),
        cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_odd_head_dims),
        cmocka_unit_test(test_v_in_k),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_where_matrix_products_are),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_encode_op),
    };
    return cmocka_run_group_tests_name("attend", tests, make_devices, free_devices);
}
