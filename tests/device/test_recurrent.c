/* Ops of recurrent layers against double, and the same bits for any number of threads and any cut into runs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "kernels/weights.h"

enum { SEED = 20261203, ROWS = 40, FIRST = 23 /* rows of the first sequence */, N_K = 2, N_V = 4, DIM = 64 };
enum { CHANNELS = (2 * N_K + N_V) * DIM, MAX_CHANNELS = 600, MATRIX = N_V * DIM * DIM, STATE = 16 + MATRIX };

static uint64_t random_state = SEED;

static ath_device *start(int n_threads) {
    ath_device_params params = {n_threads, n_threads, ~0u, ROWS, NULL, NULL, false};
    ath_device *dev;
    ath_error err;
    if (ath_device_cpu_create(&dev, &params, &err) != ATH_OK) fail_msg("%s", err.message);
    return dev;
}

static void fill(float *x, int n, float factor) {
    for (int i = 0; i < n; i++) x[i] = test_uniform(&random_state) * factor;
}

/* Two sequences of FIRST and ROWS - FIRST rows; the first one starts anew, the second one from state[0]. Cut every
 * `step` rows; states[r] is what run r leaves. Returns the number of runs of the first sequence. */
static int cut(ath_state_seq seqs[2], ath_state_run *runs, float *const *states, const float *from, int step) {
    int n_runs = 0, n_first = 0;
    for (int s = 0; s < 2; s++) {
        int left = s ? ROWS - FIRST : FIRST;
        seqs[s] = (ath_state_seq){.row0 = s ? FIRST : 0, .runs = runs + n_runs};
        const float *before = s ? from : NULL;
        for (; left > 0; left -= step, n_runs++, seqs[s].n_runs++) {
            runs[n_runs] = (ath_state_run){left < step ? left : step, before, states[n_runs]};
            before = states[n_runs];
        }
        if (s == 0) n_first = n_runs;
    }
    return n_first;
}

/* Memory of 2 * ROWS states. */
static float **new_states(int n) {
    float **states = malloc(2 * ROWS * sizeof *states);
    for (int i = 0; i < 2 * ROWS; i++) states[i] = aligned_alloc(64, ((size_t)n * sizeof(float) + 63) / 64 * 64);
    return states;
}

static void free_states(float **states) {
    for (int i = 0; i < 2 * ROWS; i++) free(states[i]);
    free(states);
}

static void check_conv(const float *x, const float *y, const float *weight, const float *from, int n, int n_taps,
                       bool silu) {
    for (int row = 0; row < ROWS; row++) {
        for (int c = 0; c < n; c++) {
            double sum = 0;
            for (int tap = 0; tap < n_taps; tap++) {
                int first = row < FIRST ? 0 : FIRST, at = row - n_taps + 1 + tap;
                double in = at >= first      ? (double)x[at * n + c]
                            : row >= FIRST ? (double)from[3 + (at - first + n_taps - 1) * n + c]
                                           : 0;
                sum += in * (double)weight[tap * n + c];
            }
            assert_true(fabs((double)y[row * n + c] - (silu ? sum / (1 + exp(-sum)) : sum)) < 2e-6);
        }
    }
}

static void test_conv(void **unused) {
    (void)unused;
    static float x[ROWS * MAX_CHANNELS], y[ROWS * MAX_CHANNELS], first_y[ROWS * MAX_CHANNELS];
    static float weight[ATH_MAX_TAPS * MAX_CHANNELS], from[3 + ATH_MAX_TAPS * MAX_CHANNELS], last[2][15 * MAX_CHANNELS];
    fill(x, ROWS * MAX_CHANNELS, 2), fill(weight, ATH_MAX_TAPS * MAX_CHANNELS, 1);
    fill(from, 3 + ATH_MAX_TAPS * MAX_CHANNELS, 2);
    float **states = new_states(3 + ATH_MAX_TAPS * MAX_CHANNELS);
    static const int widths[] = {1, 128, 130, 600}, steps[] = {ROWS, 1, 2, 5}, taps[] = {4, 1, 2, ATH_MAX_TAPS};
    for (int i = 0; i < 32; i++) {
        int n = widths[i % 4], n_taps = taps[i / 4 % 4], kept = (n_taps - 1) * n;
        bool silu = i < 16;
        for (int variant = 0; variant < 4; variant++) {
            ath_device *dev = start(1 + variant % 3);
            ath_state_seq seqs[2];
            ath_state_run runs[2 * ROWS];
            cut(seqs, runs, states, from, steps[variant]);
            memcpy(y, x, sizeof y);
            ath_op_conv(dev, &(ath_conv_args){n, n_taps, weight, y, seqs, 2, 3, silu});
            if (variant == 0) {
                check_conv(x, y, weight, from, n, n_taps, silu);
                memcpy(first_y, y, sizeof y);
            }
            assert_memory_equal(y, first_y, (size_t)(ROWS * n) * sizeof *y);
            for (int s = 0; s < 2; s++) {
                const float *to = seqs[s].runs[seqs[s].n_runs - 1].to + 3;
                if (variant == 0) memcpy(last[s], to, (size_t)kept * sizeof *to);
                assert_memory_equal(to, last[s], (size_t)kept * sizeof *to);
            }
            ath_device_free(dev);
        }
    }
    free_states(states);
}

/* ---- delta rule */
typedef struct delta_input {
    float qkv[ROWS * CHANNELS], beta[ROWS * N_V], decay[ROWS * N_V], rate[N_V], bias[N_V];
} delta_input;

static double at(const float *state, int head, int i, int j) {
    return (double)state[16 + ((head * (DIM / 32) + j / 32) * DIM + i) * 32 + j % 32];
}

static void check_head(const delta_input *in, const float *from, int head, bool grouped, int row0, int n_rows,
                       const float *out, const float *to) {
    static double m[DIM][DIM];
    int key = grouped ? head / (N_V / N_K) : head % N_K;
    for (int i = 0; i < DIM; i++)
        for (int j = 0; j < DIM; j++) m[i][j] = from ? at(from, head, i, j) : 0;
    for (int row = row0; row < row0 + n_rows; row++) {
        const float *x = in->qkv + row * CHANNELS, *q = x + key * DIM, *k = q + N_K * DIM, *v = x + (2 * N_K + head) * DIM;
        double qq = 1e-6, kk = 1e-6;
        for (int i = 0; i < DIM; i++) qq += (double)q[i] * (double)q[i], kk += (double)k[i] * (double)k[i];
        double beta = 1 / (1 + exp(-(double)in->beta[row * N_V + head]));
        double decay = exp((double)in->rate[head] * log1p(exp((double)(in->decay[row * N_V + head] + in->bias[head]))));
        for (int j = 0; j < DIM; j++) {
            double read = 0, truth = 0;
            for (int i = 0; i < DIM; i++) read += (m[i][j] *= decay) * (double)k[i] / sqrt(kk);
            double d = beta * ((double)v[j] - read);
            for (int i = 0; i < DIM; i++) m[i][j] += d * (double)k[i] / sqrt(kk);
            for (int i = 0; i < DIM; i++) truth += m[i][j] * (double)q[i] / sqrt(qq) / sqrt(DIM);
            assert_true(fabs((double)out[(row * N_V + head) * DIM + j] - truth) < 1e-6);
        }
    }
    for (int i = 0; i < DIM; i++)
        for (int j = 0; j < DIM; j++) assert_true(fabs(at(to, head, i, j) - m[i][j]) < 4e-6);
}

static void run_delta(int n_threads, const delta_input *in, bool grouped, const ath_state_seq seqs[2], float *out) {
    static delta_input used;
    static float qk[ROWS * N_K];
    used = *in;
    ath_device *dev = start(n_threads);
    ath_op_delta_rule(dev, &(ath_delta_args){.n_k_heads = N_K,
                                             .n_v_heads = N_V,
                                             .head_dim = DIM,
                                             .grouped = grouped,
                                             .norm_eps = 1e-6f,
                                             .rate = used.rate,
                                             .bias = used.bias,
                                             .qkv = used.qkv,
                                             .beta = used.beta,
                                             .decay = used.decay,
                                             .qk = qk,
                                             .out = out,
                                             .rows = ROWS,
                                             .seqs = seqs,
                                             .n_seqs = 2,
                                             .state_at = 16});
    ath_device_free(dev);
}

static void test_delta_rule(void **unused) {
    (void)unused;
    static delta_input in;
    static float out[ROWS * N_V * DIM], first_out[ROWS * N_V * DIM], last[2][MATRIX];
    fill(in.qkv, ROWS * CHANNELS, 2), fill(in.beta, ROWS * N_V, 3), fill(in.decay, ROWS * N_V, 30);
    fill(in.rate, N_V, 1), fill(in.bias, N_V, 1);
    for (int h = 0; h < N_V; h++) in.rate[h] = -fabsf(in.rate[h]) / 4;
    float **states = new_states(STATE), *from = states[2 * ROWS - 1];
    fill(from, STATE, 1);
    static const int steps[] = {ROWS, 1, 2, 5};
    for (int grouped = 0; grouped < 2; grouped++) {
        for (int variant = 0; variant < 4; variant++) {
            ath_state_seq seqs[2];
            ath_state_run runs[2 * ROWS];
            cut(seqs, runs, states, from, steps[variant]);
            run_delta(1 + variant % 3, &in, grouped, seqs, out);
            const float *to[] = {seqs[0].runs[seqs[0].n_runs - 1].to, seqs[1].runs[seqs[1].n_runs - 1].to};
            for (int h = 0; h < N_V && variant == 0; h++) {
                check_head(&in, NULL, h, grouped, 0, FIRST, out, to[0]);
                check_head(&in, from, h, grouped, FIRST, ROWS - FIRST, out, to[1]);
            }
            if (variant == 0) memcpy(first_out, out, sizeof out);
            assert_memory_equal(out, first_out, sizeof out);
            for (int s = 0; s < 2; s++) {
                if (variant == 0) memcpy(last[s], to[s] + 16, sizeof last[s]);
                assert_memory_equal(to[s] + 16, last[s], sizeof last[s]);
            }
        }
    }
    free_states(states);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_delta_rule),
    };
    return cmocka_run_group_tests_name("recurrent", tests, NULL, NULL);
}
