/* The gated delta rule: every instruction set against C bit for bit, C against double, and its speed (--bench). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/delta_rule.h"
#include "kernels/versions.h"
#include "kernels/weights.h"

enum { SEED = 20261202, BLOCK = 32, MAX_DIM = 128, MAX_ROWS = 64, STRIDE = 2 * MAX_DIM + BLOCK + 5, GATES = 3 };

typedef struct input {
    float qkv[MAX_ROWS * STRIDE], beta[MAX_ROWS * GATES], decay[MAX_ROWS * GATES], qk[MAX_ROWS * 2];
    float state[MAX_DIM * BLOCK];
} input;

static input in;
static _Alignas(64) float state[MAX_DIM * BLOCK];
static float out[MAX_ROWS * (BLOCK + 1)];

static ath_delta_block start(int dim, int64_t n_rows) {
    memcpy(state, in.state, sizeof state);
    memset(out, 0, sizeof out);
    return (ath_delta_block){.state = state,
                             .dim = dim,
                             .n_rows = n_rows,
                             .q = in.qkv,
                             .k = in.qkv + dim,
                             .v = in.qkv + 2 * dim + 1,
                             .stride = STRIDE,
                             .beta = in.beta,
                             .decay = in.decay,
                             .gate_stride = GATES,
                             .qk = in.qk,
                             .qk_stride = 2,
                             .out = out,
                             .out_stride = BLOCK + 1};
}

static int fill(void **unused) {
    (void)unused;
    uint64_t random = SEED;
    for (int i = 0; i < MAX_DIM * BLOCK; i++) in.state[i] = test_uniform(&random);
    for (int i = 0; i < MAX_ROWS * STRIDE; i++) in.qkv[i] = test_uniform(&random) / 6;
    for (int i = 0; i < MAX_ROWS * GATES; i++) {
        in.beta[i] = fabsf(test_uniform(&random));
        in.decay[i] = 1 - fabsf(test_uniform(&random)) / 2;
    }
    return 0;
}

static void fill_qk(int dim) {
    for (int row = 0; row < MAX_ROWS; row++) {
        double sum = 0;
        for (int i = 0; i < dim; i++) sum += (double)in.qkv[row * STRIDE + i] * (double)in.qkv[row * STRIDE + dim + i];
        in.qk[row * 2] = (float)sum;
    }
}

static void test_versions(void **unused) {
    (void)unused;
    static float state_c[MAX_DIM * BLOCK], out_c[MAX_ROWS * (BLOCK + 1)];
    for (int dim = 2; dim <= MAX_DIM; dim += dim < 8 ? 2 : 24) {
        for (int64_t n_rows = 1; n_rows <= MAX_ROWS; n_rows = n_rows * 2 + 1) {
            fill_qk(dim);
            ath_delta_block b = start(dim, n_rows);
            ath_delta_rule_c(&b);
            memcpy(state_c, state, sizeof state);
            memcpy(out_c, out, sizeof out);
            for (int m = 0; m < N_MASKS; m++) {
                b = start(dim, n_rows);
                ath_delta_kernel(ath_cpu_flags(masks[m]))(&b);
                assert_memory_equal(state, state_c, sizeof state);
                assert_memory_equal(out, out_c, sizeof out);
            }
        }
    }
}

/* The rule as it is written in papers, in double. */
static void test_truth(void **unused) {
    (void)unused;
    static double m[MAX_DIM * BLOCK];
    for (int dim = 32; dim <= MAX_DIM; dim *= 2) {
        fill_qk(dim);
        for (int i = 0; i < dim * BLOCK; i++) m[i] = (double)in.state[i];
        ath_delta_block b = start(dim, MAX_ROWS);
        ath_delta_rule_c(&b);
        for (int row = 0; row < MAX_ROWS; row++) {
            const float *q = in.qkv + row * STRIDE, *k = q + dim, *v = q + 2 * dim + 1;
            for (int j = 0; j < BLOCK; j++) {
                double read = 0, truth = 0;
                for (int i = 0; i < dim; i++) m[i * BLOCK + j] *= (double)in.decay[row * GATES];
                for (int i = 0; i < dim; i++) read += m[i * BLOCK + j] * (double)k[i];
                double d = (double)in.beta[row * GATES] * ((double)v[j] - read);
                for (int i = 0; i < dim; i++) m[i * BLOCK + j] += (double)k[i] * d;
                for (int i = 0; i < dim; i++) truth += m[i * BLOCK + j] * (double)q[i];
                assert_true(fabs((double)out[row * (BLOCK + 1) + j] - truth) < 2e-6);
            }
        }
        for (int i = 0; i < dim * BLOCK; i++) assert_true(fabs((double)state[i] - m[i]) < 2e-6);
    }
}

/* Rows in two calls are rows in one. */
static void test_cuts(void **unused) {
    (void)unused;
    static float whole[MAX_DIM * BLOCK];
    fill_qk(MAX_DIM);
    ath_delta_fn fn = ath_delta_kernel(ath_cpu_flags(~0u));
    ath_delta_block b = start(MAX_DIM, 20);
    fn(&b);
    memcpy(whole, state, sizeof whole);
    b = start(MAX_DIM, 7);
    fn(&b);
    b.q += 7 * STRIDE, b.k += 7 * STRIDE, b.v += 7 * STRIDE;
    b.beta += 7 * GATES, b.decay += 7 * GATES, b.qk += 7 * 2;
    b.n_rows = 13;
    fn(&b);
    assert_memory_equal(state, whole, sizeof whole);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bench(void) {
    fill(NULL);
    fill_qk(MAX_DIM);
    static const struct {
        const char *name;
        uint32_t mask;
    } versions[] = {{"avx512", ~0u}, {"avx2", ATH_CPU_AVX2}};
    for (int v = 0; v < 2; v++) {
        double best = 1e9;
        for (int i = 0; i < 2000; i++) {
            ath_delta_block b = start(MAX_DIM, MAX_ROWS);
            double t = seconds();
            ath_delta_kernel(ath_cpu_flags(versions[v].mask))(&b);
            t = seconds() - t;
            if (t < best) best = t;
        }
        printf("%-8s %.0f ns per row and 128 x 128 head\n", versions[v].name, best / MAX_ROWS * 1e9 * MAX_DIM / BLOCK);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    print_seed_and_cpu(SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_truth),
        cmocka_unit_test(test_cuts),
    };
    return cmocka_run_group_tests_name("delta_rule", tests, fill, NULL);
}
