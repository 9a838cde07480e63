/* The CPU device's element-wise ops, LayerNorm, and the routes of experts in groups, against double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "kernels/weights.h"

enum { SEED = 20240612, N = 300, ROWS = 29 };

static uint64_t state = SEED;
static float x[ROWS * N], y[ROWS * N], weight[N], bias[N];

static ath_device *start(void) {
    ath_device_params params = {2, 2, ~0u, 32, NULL, NULL, false};
    ath_device *dev;
    ath_error err;
    if (ath_device_cpu_create(&dev, &params, &err) != ATH_OK) fail_msg("%s", err.message);
    for (int i = 0; i < ROWS * N; i++) x[i] = test_uniform(&state) * 4 + 1;
    for (int i = 0; i < N; i++) weight[i] = test_uniform(&state), bias[i] = test_uniform(&state);
    memcpy(y, x, sizeof y);
    return dev;
}

static void test_layer_norm(void **unused) {
    (void)unused;
    ath_device *dev = start();
    for (int n = 1; n <= N; n += 23) {
        for (int biased = 0; biased < 2; biased++) {
            memset(y, 0, sizeof y);
            ath_op_layer_norm(dev, x, weight, biased ? bias : NULL, 1e-5f, y, n, ROWS);
            for (int row = 0; row < ROWS; row++) {
                const float *a = x + row * n;
                double mean = 0, var = 0;
                for (int i = 0; i < n; i++) mean += (double)a[i] / n;
                for (int i = 0; i < n; i++) var += ((double)a[i] - mean) * ((double)a[i] - mean) / n;
                for (int i = 0; i < n; i++) {
                    double truth = ((double)a[i] - mean) / sqrt(var + 1e-5) * (double)weight[i] +
                                   (biased ? (double)bias[i] : 0);
                    assert_true(fabs((double)y[row * n + i] - truth) < (n == 1 ? 1e-3 : 4e-6));
                }
            }
        }
    }
    float again[ROWS * 20];
    memcpy(again, x, sizeof again);
    ath_op_layer_norm(dev, x, weight, bias, 1e-5f, y, 20, ROWS);
    ath_op_layer_norm(dev, again, weight, bias, 1e-5f, again, 20, ROWS); /* in place */
    assert_memory_equal(again, y, sizeof again);
    ath_device_free(dev);
}

static void test_factors(void **unused) {
    (void)unused;
    ath_device *dev = start();
    ath_op_scale(dev, y, 1.5f, ROWS * N - 1);
    for (int i = 0; i < ROWS * N; i++) assert_true(y[i] == x[i] * (i < ROWS * N - 1 ? 1.5f : 1));
    memcpy(y, x, sizeof y);
    ath_op_scale_rows(dev, y, weight, N, ROWS);
    for (int i = 0; i < ROWS * N; i++) assert_true(y[i] == x[i] * weight[i / N]);
    memcpy(y, x, sizeof y);
    ath_op_scale_channels(dev, y, weight, N, ROWS);
    for (int i = 0; i < ROWS * N; i++) assert_true(y[i] == x[i] * weight[i % N]);
    memcpy(y, x, sizeof y);
    ath_op_add_strided(dev, y + 3, N, bias, 10, 7, ROWS);
    for (int i = 0; i < ROWS * N; i++) {
        int row = i / N, at = i % N - 3;
        assert_true(y[i] == (at >= 0 && at < 7 ? x[i] + bias[10 * row + at] : x[i]));
    }
    ath_device_free(dev);
}

static double mean_square(const float *a, int n, double around) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += ((double)a[i] - around) * ((double)a[i] - around) / n;
    return sum;
}

static void test_keep_upper(void **unused) {
    (void)unused;
    ath_device *dev = start();
    for (int n = 1; n <= N; n += 23) {
        for (int k = 0; k < 4; k++) {
            const float deviations = (const float[]){1.6448534f, 0, -0.5f, 100}[k];
            memcpy(y, x, sizeof y);
            ath_op_keep_upper(dev, y, deviations, n, ROWS);
            for (int row = 0; row < ROWS; row++) {
                const float *a = x + row * n;
                double mean = 0;
                for (int i = 0; i < n; i++) mean += (double)a[i] / n;
                double cut = mean + (double)deviations * sqrt(mean_square(a, n, mean));
                for (int i = 0; i < n; i++) {
                    assert_true(fabs((double)y[row * n + i] - fmax(0, (double)a[i] - cut)) < 2e-5);
                    if ((double)a[i] < cut - 1e-4) assert_true(y[row * n + i] == 0);
                }
            }
            assert_true(y[ROWS * n - 1] != x[ROWS * n - 1] && (n == N || y[ROWS * n] == x[ROWS * n]));
        }
    }
    ath_device_free(dev);
}

static void test_match_rms(void **unused) {
    (void)unused;
    enum { GROUPS = 3, ROWS_OF_3 = ROWS / 3, WIDE = 90 };
    ath_device *dev = start();
    static float like[ROWS_OF_3 * WIDE];
    for (int i = 0; i < ROWS_OF_3 * WIDE; i++) like[i] = test_uniform(&state) * (float)(1 + i / WIDE);
    for (int i = 0; i < WIDE; i++)
        y[4 * WIDE + i] = x[4 * WIDE + i] *= 1e-4f; /* the second row's second: too weak */
    ath_op_match_rms(dev, y, like, 1e-3f, WIDE, GROUPS, ROWS_OF_3);
    for (int v = 0; v < ROWS_OF_3 * GROUPS; v++) {
        double own = mean_square(x + v * WIDE, WIDE, 0),
               wanted = mean_square(like + v / GROUPS * WIDE, WIDE, 0);
        assert_true(v == 4 ? own < 1e-3 : own > 1e-3);
        double factor = sqrt(wanted / fmax(own, 1e-3));
        for (int i = v * WIDE; i < (v + 1) * WIDE; i++)
            assert_true(fabs((double)y[i] - (double)x[i] * factor) <= 2e-6 * fabs((double)y[i]));
    }
    ath_device_free(dev);
}

/* Five streams a row; three, four or all of them become sums of as many or more. */
static void test_mix_streams(void **unused) {
    (void)unused;
    enum { STREAMS = 5, N_ROWS = 7 };
    ath_device *dev = start();
    for (int n = 1; n <= 200; n += 33) {
        for (int n_in = 3; n_in <= STREAMS; n_in++) {
            for (int n_out = 3; n_out <= n_in; n_out++) {
                memcpy(y, x, sizeof y);
                ath_op_mix_streams(dev, y, STREAMS, weight, n_in, n_out, n, N_ROWS);
                for (int i = 0; i < N_ROWS * STREAMS * n; i++) {
                    int row = i / (STREAMS * n), j = i / n % STREAMS;
                    double truth = j < n_out ? 0 : (double)x[i];
                    for (int k = 0; k < n_in && j < n_out; k++)
                        truth += (double)weight[(row * n_out + j) * n_in + k] *
                                 (double)x[(row * STREAMS + k) * n + i % n];
                    assert_true(fabs((double)y[i] - truth) < 5e-6);
                }
            }
        }
    }
    ath_device_free(dev);
}

static void test_expert_bias(void **unused) {
    (void)unused;
    ath_device *dev = start();
    enum { WIDTH = 50, EXPERTS = N / WIDTH };
    int32_t expert[ROWS];
    for (int r = 0; r < ROWS; r++) expert[r] = (int32_t)(test_random(&state) % EXPERTS);
    ath_op_add_expert_bias(dev, y, bias, expert, WIDTH, ROWS);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(y[i] == x[i] + bias[expert[i / WIDTH] * WIDTH + i % WIDTH]);
    assert_true(y[ROWS * WIDTH] == x[ROWS * WIDTH]);
    ath_device_free(dev);
}

static void test_gelu(void **unused) {
    (void)unused;
    ath_device *dev = start();
    ath_op_gelu(dev, y, ROWS * N - 1);
    for (int i = 0; i < ROWS * N - 1; i++) {
        double v = x[i], truth = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
        assert_true(fabs((double)y[i] - truth) < 2e-6);
    }
    assert_true(y[ROWS * N - 1] == x[ROWS * N - 1]);
    ath_device_free(dev);
}

static double group_value(const double *score, int n, bool two) {
    double best = -1e9, second = -1e9;
    for (int i = 0; i < n; i++) {
        if (score[i] > best)
            second = best, best = score[i];
        else
            second = fmax(second, score[i]);
    }
    return two ? best + second : best;
}

/* Is `e` among the experts of the chosen groups, and how many of those are better? */
static int rank_in_groups(const double *score, int e, int n_experts, int n_groups, int n_used, bool two) {
    int n = n_experts / n_groups, better = 0;
    for (int o = 0; o < n_experts; o++) {
        int ahead = 0;
        for (int g = 0; g < n_groups; g++)
            ahead += group_value(score + g * n, n, two) > group_value(score + o / n * n, n, two);
        if (o == e && ahead >= n_used) return -1;
        better += ahead < n_used && score[o] > score[e];
    }
    return better;
}

static void test_routes(void **unused) {
    (void)unused;
    enum { EXPERTS = 24, GROUPS = 6, TABLES = 40, USED = 5 };
    ath_device *dev = start();
    for (int kind = 0; kind < 8; kind++) { /* sigmoid, bias, groups */
        ath_router r = {.n_experts = EXPERTS, .n_used = USED, .sigmoid = kind & 1, .scale = 2.5f};
        r.bias = kind & 2 ? bias : NULL;
        r.n_groups = kind & 4 ? GROUPS : 1;
        r.n_groups_used = 2;
        float w[TABLES * USED];
        int32_t expert[TABLES * USED];
        ath_op_route(dev, &r, x, expert, w, TABLES);
        for (int t = 0; t < TABLES; t++) {
            double p[EXPERTS], score[EXPERTS], sum = 0;
            for (int e = 0; e < EXPERTS; e++) sum += exp((double)x[t * EXPERTS + e]);
            for (int e = 0; e < EXPERTS; e++) {
                double l = x[t * EXPERTS + e];
                p[e] = r.sigmoid ? 1 / (1 + exp(-l)) : exp(l) / sum;
                score[e] = p[e] + (r.bias ? (double)bias[e] : 0);
            }
            for (int s = 0; s < USED; s++) {
                int e = expert[t * USED + s];
                assert_int_equal(rank_in_groups(score, e, EXPERTS, r.n_groups, 2, r.sigmoid), s);
                assert_true(fabs((double)w[t * USED + s] - 2.5 * p[e]) < 2e-6);
            }
        }
    }
    ath_device_free(dev);
}

int main(void) {
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),  cmocka_unit_test(test_factors),
        cmocka_unit_test(test_expert_bias), cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_routes),      cmocka_unit_test(test_keep_upper),
        cmocka_unit_test(test_match_rms),   cmocka_unit_test(test_mix_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
