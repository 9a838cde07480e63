/* The CPU device's ops: the same bits whatever the threads, the batch and the layout of weights; the small
 * ops against double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "kernels/weights.h"

enum { SEED = 20240611, MAX_ROWS = 32, N_OUT = 71, N_ROWS = 45 };

static ath_device *make_device_masked(int n_threads, int n_threads_batch, uint32_t mask) {
    ath_device_params params = {n_threads, n_threads_batch, mask, MAX_ROWS, NULL, NULL, false};
    ath_device *dev;
    ath_error err;
    if (ath_device_cpu_create(&dev, &params, &err) != ATH_OK) fail_msg("%s", err.message);
    return dev;
}

static ath_device *make_device(int n_threads) {
    return make_device_masked(n_threads, n_threads, ~0u);
}

static void init_weight(ath_device *dev, ath_weight *w, ath_tensor_type type, const void *data, int64_t n_in,
                        int64_t n_out, int64_t n_experts, bool repack) {
    ath_error err;
    if (ath_device_weight_init(dev, w, type, data, n_in, n_out, n_experts, repack, &err) != ATH_OK)
        fail_msg("%s", err.message);
}

static void *take(size_t bytes) {
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

static float *random_floats(int64_t n, uint64_t *state) {
    float *x = take((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = test_uniform(state);
    return x;
}

static uint8_t *random_rows(ath_tensor_type type, int64_t n_in, int64_t n_rows, uint64_t *state) {
    uint8_t *rows = take(ath_tensor_type_row_bytes((int)type, n_in) * (size_t)n_rows);
    test_rows(type, -1, rows, n_in, n_rows, state);
    return rows;
}

static bool is_weight_type(int type) {
    return ath_tensor_type_get(type)->dequantize != NULL;
}

static void check_type(ath_device *const *devs, int n_devs, ath_tensor_type type, uint64_t *state) {
    int64_t block = ath_tensor_type_get((int)type)->block_size, n_in = block == 1    ? 77
                                                                       : block < 256 ? 3 * block
                                                                                     : block;
    if (n_in < 128 && block > 1) n_in = 160;
    uint8_t *data = random_rows(type, n_in, N_OUT, state);
    float *x = random_floats(N_ROWS * n_in, state), *out = take(N_ROWS * N_OUT * sizeof *out),
          *expected = take(N_ROWS * N_OUT * sizeof *out);
    ath_weight w;
    const ath_weight *list = &w;
    init_weight(devs[0], &w, type, data, n_in, N_OUT, 1, true);
    for (int64_t r = 0; r < N_ROWS; r++) { /* one by one */
        float *at = expected + r * N_OUT;
        ath_op_matmul(devs[0], &list, &at, 1, x + r * n_in, 1);
        for (int i = 0; i < N_OUT; i++) assert_true(isfinite(at[i]));
    }
    for (int d = 0; d < n_devs; d++) {
        for (int repack = 0; repack < 2; repack++) {
            init_weight(devs[d], &w, type, data, n_in, N_OUT, 1, repack);
            for (int64_t rows = 1; rows <= N_ROWS; rows = rows < 9 ? rows + 1 : rows + 12) {
                memset(out, 0xff, N_ROWS * N_OUT * sizeof *out);
                ath_op_matmul(devs[d], &list, &out, 1, x, rows);
                if (memcmp(out, expected, (size_t)(rows * N_OUT) * sizeof *out) != 0)
                    fail_msg("%s, repack %d, %s: batch of %d rows differs from single rows",
                             ath_device_weight_kernel(devs[d], &w), repack, ath_device_describe(devs[d]),
                             (int)rows);
            }
        }
    }
    free(data), free(x), free(out), free(expected);
}

static void test_matmul_invariant(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    ath_device *devs[] = {make_device(1), make_device(3), make_device_masked(2, 2, 1)};
    for (int type = 0; type < ATH_TYPE_COUNT; type++) {
        if (is_weight_type(type)) check_type(devs, 3, (ath_tensor_type)type, &state);
    }
    for (int d = 0; d < 3; d++) ath_device_free(devs[d]);
}

/* Several weights of different kinds in one op. */
static void test_matmul_mixed(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { N = 10, IN = 256 };
    const ath_tensor_type types[N] = {ATH_TYPE_Q4_K,  ATH_TYPE_F32,  ATH_TYPE_Q6_K, ATH_TYPE_IQ3_S,
                                      ATH_TYPE_Q8_0,  ATH_TYPE_BF16, ATH_TYPE_Q4_0, ATH_TYPE_Q5_1,
                                      ATH_TYPE_TQ2_0, ATH_TYPE_MXFP4};
    ath_device *dev = make_device(2);
    ath_weight w[N];
    const ath_weight *list[N];
    uint8_t *data[N];
    float *out[N], *alone = take(N_ROWS * N_OUT * sizeof *alone), *x = random_floats(N_ROWS * IN, &state);
    for (int i = 0; i < N; i++) {
        data[i] = random_rows(types[i], IN, N_OUT - i, &state);
        out[i] = take(N_ROWS * N_OUT * sizeof *alone);
        init_weight(dev, &w[i], types[i], data[i], IN, N_OUT - i, 1, i % 4 != 3);
        list[i] = &w[i];
    }
    ath_op_matmul(dev, list, out, N, x, N_ROWS);
    for (int i = 0; i < N; i++) {
        ath_op_matmul(dev, &list[i], &alone, 1, x, N_ROWS);
        assert_memory_equal(out[i], alone, (size_t)(N_ROWS * (N_OUT - i)) * sizeof *alone);
        free(data[i]), free(out[i]);
    }
    free(alone), free(x);
    ath_device_free(dev);
}

static void check_experts(ath_tensor_type type, int64_t rows, int x_slots, int n_used, bool repack,
                          uint64_t *state) {
    enum { EXPERTS = 7, IN = 256 };
    ath_device *dev = make_device(2);
    uint8_t *data = random_rows(type, IN, EXPERTS * N_OUT, state);
    size_t expert_bytes = ath_tensor_type_row_bytes((int)type, IN) * N_OUT;
    float *x = random_floats(rows * x_slots * IN, state),
          *out = take((size_t)(rows * n_used * N_OUT) * sizeof *out);
    int32_t *expert = take((size_t)(rows * n_used) * sizeof *expert);
    for (int64_t p = 0; p < rows * n_used; p++)
        expert[p] = (int32_t)((test_random(state) % 3 + (uint32_t)(p % n_used) * 2) % (EXPERTS - 1));
    ath_weight all, one[EXPERTS];
    const ath_weight *list = &all;
    init_weight(dev, &all, type, data, IN, N_OUT, EXPERTS, repack);
    ath_op_matmul_experts(dev, &list, &out, 1, x, x_slots, expert, n_used, rows);
    for (int e = 0; e < EXPERTS; e++)
        init_weight(dev, &one[e], type, data + (size_t)e * expert_bytes, IN, N_OUT, 1, true);
    for (int64_t p = 0; p < rows * n_used; p++) {
        float single[N_OUT], *at = single;
        list = &one[expert[p]];
        ath_op_matmul(dev, &list, &at, 1, x + (p / n_used * x_slots + (x_slots > 1 ? p % n_used : 0)) * IN,
                      1);
        assert_memory_equal(single, out + p * N_OUT, sizeof single);
    }
    free(data), free(x), free(out), free(expert);
    ath_device_free(dev);
}

static void test_experts(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    check_experts(ATH_TYPE_Q4_K, 1, 1, 3, true, &state);
    check_experts(ATH_TYPE_Q4_K, 40, 1, 3, true, &state);
    check_experts(ATH_TYPE_Q8_0, 300, 2, 2, true, &state); /* more pairs than fit at once */
    check_experts(ATH_TYPE_F16, 19, 2, 2, true, &state);
    check_experts(ATH_TYPE_IQ2_XS, 9, 1, 2, false, &state);
    check_experts(ATH_TYPE_Q6_K, 9, 1, 2, false, &state);
}

static void test_embed(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { VOCAB = 20, IN = 512 };
    ath_device *dev = make_device(2);
    for (int type = 0; type < ATH_TYPE_COUNT; type++) {
        if (!is_weight_type(type)) continue;
        uint8_t *data = random_rows((ath_tensor_type)type, IN, VOCAB, &state);
        const int32_t ids[] = {3, 19, 0, 3};
        float out[4 * IN], row[IN];
        ath_weight w;
        init_weight(dev, &w, (ath_tensor_type)type, data, IN, VOCAB, 1, true);
        ath_op_embed(dev, &w, ids, 2.5f, out, 4);
        for (int i = 0; i < 4; i++) {
            ath_tensor_type_get(type)->dequantize(data + (size_t)ids[i] * w.row_bytes, row, IN);
            for (int k = 0; k < IN; k++) assert_true(out[i * IN + k] == row[k] * 2.5f);
        }
        free(data);
    }
    ath_device_free(dev);
}

static void test_weight_refused(void **unused) {
    (void)unused;
    ath_device *dev = make_device(1);
    static const uint8_t data[4096];
    ath_weight w;
    ath_error err;
    assert_int_equal(ath_device_weight_init(dev, &w, ATH_TYPE_I32, data, 32, 1, 1, true, &err),
                     ATH_ERR_UNSUPPORTED);
    assert_int_equal(ath_device_weight_init(dev, &w, (ath_tensor_type)99, data, 32, 1, 1, true, &err),
                     ATH_ERR_UNSUPPORTED);
    assert_int_equal(ath_device_weight_init(dev, &w, ATH_TYPE_Q4_K, data, 128, 1, 1, true, &err),
                     ATH_ERR_ARGUMENT);
    assert_int_equal(ath_device_weight_init(dev, &w, ATH_TYPE_F32, data, 32, 0, 1, true, &err),
                     ATH_ERR_ARGUMENT);
    assert_int_equal(ath_device_weight_init(dev, &w, ATH_TYPE_F32, data, -1, 1, 1, true, &err),
                     ATH_ERR_ARGUMENT);
    init_weight(dev, &w, ATH_TYPE_Q4_0, data, 32, 1, 1, true);
    assert_non_null(strstr(ath_device_weight_kernel(dev, &w), "q4_0 x int8"));
    ath_device_free(dev);
    ath_device_params params = {1, 1, ~0u, 0, NULL, NULL, false};
    assert_int_equal(ath_device_cpu_create(&dev, &params, &err), ATH_ERR_ARGUMENT);
    params = (ath_device_params){0, 1, ~0u, 4, NULL, NULL, false};
    assert_int_equal(ath_device_cpu_create(&dev, &params, &err), ATH_ERR_ARGUMENT);
}

static void test_rms_norm(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    ath_device *dev = make_device(2);
    for (int64_t n = 1; n < 300; n += 23) {
        float *x = random_floats(3 * 40 * n, &state), *weight = random_floats(n, &state),
              *y = take((size_t)(3 * 40 * n) * sizeof *y);
        ath_op_rms_norm(dev, x, weight, 1e-5f, y, n, 3, 40);
        for (int64_t v = 0; v < 3 * 40; v++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += (double)x[v * n + i] * (double)x[v * n + i];
            for (int64_t i = 0; i < n; i++) {
                double truth = (double)x[v * n + i] / sqrt(sum / (double)n + 1e-5) * (double)weight[i];
                assert_true(fabs((double)y[v * n + i] - truth) <= 2e-6 * fabs(truth));
            }
        }
        ath_op_rms_norm(dev, x, weight, 1e-5f, x, n, 3, 40); /* in place */
        assert_memory_equal(x, y, (size_t)(3 * 40 * n) * sizeof *y);
        free(x), free(weight), free(y);
    }
    ath_device_free(dev);
}

static void test_rope(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { HEADS = 3, DIM = 48, ROT = 32, ROWS = 2 * MAX_ROWS + 3, N = ROWS * HEADS * DIM };
    ath_device *dev = make_device(2);
    double inv_freq[ROT / 2];
    int64_t pos[ROWS];
    float *x = random_floats(N, &state), *y = take(N * sizeof *y);
    for (int i = 0; i < ROT / 2; i++) inv_freq[i] = pow(10000.0, -2.0 * i / ROT);
    for (int round = 0; round < 4; round++) {
        ath_rope rope = {ROT, round % 2, inv_freq, round < 2 ? 1.0f : 1.25f};
        for (int r = 0; r < ROWS; r++) pos[r] = r < 5 ? 100000000 + r : r + round;
        memcpy(y, x, N * sizeof *y);
        ath_op_rope(dev, &rope, y, pos, HEADS, DIM, ROWS);
        for (int v = 0; v < ROWS * HEADS; v++) {
            const float *a = x + v * DIM, *b = y + v * DIM;
            for (int i = 0; i < ROT / 2; i++) {
                int first = rope.neox ? i : 2 * i, second = rope.neox ? i + ROT / 2 : 2 * i + 1;
                double angle = (double)pos[v / HEADS] * inv_freq[i], m = (double)rope.magnitude;
                double c = cos(angle) * m, s = sin(angle) * m, p = (double)a[first], q = (double)a[second];
                assert_true(fabs((double)b[first] - (p * c - q * s)) < 3e-7);
                assert_true(fabs((double)b[second] - (p * s + q * c)) < 3e-7);
            }
            assert_memory_equal(a + ROT, b + ROT, (DIM - ROT) * sizeof *a);
        }
        float *again = take(N * sizeof *again); /* one row at a time, other tables in between */
        memcpy(again, x, N * sizeof *again);
        for (int r = 0; r < ROWS; r++)
            ath_op_rope(dev, &rope, again + r * HEADS * DIM, pos + r, HEADS, DIM, 1);
        assert_memory_equal(again, y, N * sizeof *again);
        free(again);
    }
    free(x), free(y);
    ath_device_free(dev);
}

static void test_sums(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { N = 37, ROWS = 29, USED = 3 };
    ath_device *dev = make_device(2);
    float *x = random_floats(N * ROWS * USED, &state), *y = random_floats(N * ROWS, &state),
          *w = random_floats(ROWS * USED, &state);
    float z[N * ROWS];
    memcpy(z, y, sizeof z);
    ath_op_add(dev, z, x, N * ROWS);
    for (int i = 0; i < N * ROWS; i++) assert_true(z[i] == y[i] + x[i]);
    memcpy(z, y, sizeof z);
    ath_op_multiply(dev, z, x, N * ROWS);
    for (int i = 0; i < N * ROWS; i++) assert_true(z[i] == y[i] * x[i]);
    memcpy(z, y, sizeof z);
    ath_op_add_bias(dev, z, x, N, ROWS);
    for (int i = 0; i < N * ROWS; i++) assert_true(z[i] == y[i] + x[i % N]);
    ath_op_mix_experts(dev, x, w, USED, z, N, ROWS);
    for (int i = 0; i < N * ROWS; i++) {
        const float *a = x + i / N * USED * N + i % N, *b = w + i / N * USED;
        assert_true(z[i] == (b[0] * a[0] + b[1] * a[N]) + b[2] * a[2 * N]);
    }
    ath_op_gate(dev, ATH_ACT_SILU, y, x, N * ROWS);
    for (int i = 0; i < N * ROWS; i++) assert_true(isfinite(y[i]));
    free(x), free(y), free(w);
    ath_device_free(dev);
}

static void test_route(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { EXPERTS = 11, ROWS = 50 };
    ath_device *dev = make_device(2);
    for (int used = 1; used <= EXPERTS; used += 2) {
        float *logits = random_floats(ROWS * EXPERTS, &state), weight[ROWS * EXPERTS];
        int32_t expert[ROWS * EXPERTS];
        for (int i = 0; i < ROWS * EXPERTS; i++)
            logits[i] = i < EXPERTS ? 1.0f : floorf(logits[i] * 8); /* with ties */
        for (int renormalise = 0; renormalise < 2; renormalise++) {
            ath_router router = {
                .n_experts = EXPERTS, .n_used = used, .renormalise = renormalise, .scale = 2.0f};
            ath_op_route(dev, &router, logits, expert, weight, ROWS);
            for (int r = 0; r < ROWS; r++) {
                const float *l = logits + r * EXPERTS;
                double all = 0, chosen = 0;
                for (int e = 0; e < EXPERTS; e++) all += exp((double)l[e]);
                for (int s = 0; s < used; s++) chosen += exp((double)l[expert[r * used + s]]);
                for (int s = 0; s < used; s++) {
                    int e = expert[r * used + s], better = 0;
                    for (int o = 0; o < EXPERTS; o++) better += l[o] > l[e] || (l[o] == l[e] && o < e);
                    assert_int_equal(better, s);
                    double truth = 2 * exp((double)l[e]) / (renormalise ? chosen : all);
                    assert_true(fabs((double)weight[r * used + s] - truth) < 2e-6 * truth);
                }
            }
        }
        free(logits);
    }
    ath_device_free(dev);
}

static void test_describe(void **unused) {
    (void)unused;
    ath_device *dev = make_device_masked(1, 2, 0);
    assert_string_equal(ath_device_describe(dev), "CPU, plain C, 1 thread, 2 in prefill");
    ath_device_use_threads(dev, true);
    ath_device_use_threads(dev, false);
    ath_device_free(dev);
    ath_device_free(NULL);
}

int main(void) {
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_invariant),
        cmocka_unit_test(test_matmul_mixed),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_weight_refused),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
