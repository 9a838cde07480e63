/* Recurrent layers: the short convolution and the gated delta rule. Rows of a sequence follow one another;
 * threads take channels or columns of states, each through all rows. */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu_device.h"
#include "kernels/vector_math.h"

/* ---- convolution */

enum { CHANNELS = 128 }; /* of a task */

typedef struct conv_window { /* the last inputs of a task's channels, as a ring */
    float x[ATH_MAX_TAPS][CHANNELS];
    int next;
} conv_window;

typedef struct conv_run {
    const ath_conv_args *args;
    ath_gate_fn gate_silu;
} conv_run;

/* weight: of the first channel; taps are args->n apart. */
static void conv_row(const ath_conv_args *a, const float *weight, float *x, int n, conv_window *window) {
    memcpy(window->x[window->next], x, (size_t)n * sizeof *x);
    window->next = (window->next + 1) % a->n_taps; /* now the oldest one */
    for (int tap = 0; tap < a->n_taps; tap++) {
        const float *in = window->x[(window->next + tap) % a->n_taps], *w = weight + tap * a->n;
        if (tap == 0)
            for (int c = 0; c < n; c++) x[c] = w[c] * in[c];
        else
            for (int c = 0; c < n; c++) x[c] += w[c] * in[c];
    }
}

static void conv_task(void *arg, int64_t task, int thread) {
    (void)thread;
    const conv_run *r = arg;
    const ath_conv_args *a = r->args;
    int64_t n_tasks = (a->n + CHANNELS - 1) / CHANNELS, first = task % n_tasks * CHANNELS;
    const ath_state_seq *seq = &a->seqs[task / n_tasks];
    int n = (int)(a->n - first < CHANNELS ? a->n - first : CHANNELS), n_kept = a->n_taps - 1;
    float ones[CHANNELS], *x = a->x + seq->row0 * a->n + first;
    for (int c = 0; c < n; c++) ones[c] = 1;
    conv_window window = {.next = n_kept % a->n_taps};
    const float *from = seq->runs[0].from;
    for (int i = 0; i < n_kept && from; i++)
        memcpy(window.x[i], from + a->state_at + i * a->n + first, (size_t)n * sizeof *x);
    for (int run = 0; run < seq->n_runs; run++) {
        for (int64_t row = 0; row < seq->runs[run].n_rows; row++, x += a->n) {
            conv_row(a, a->weight + first, x, n, &window);
            if (a->silu) r->gate_silu(x, ones, n);
        }
        for (int i = 0; i < n_kept; i++)
            memcpy(seq->runs[run].to + a->state_at + i * a->n + first, window.x[(window.next + 1 + i) % a->n_taps],
                   (size_t)n * sizeof *x);
    }
}

void ath_op_conv(ath_device *dev, const ath_conv_args *args) {
    conv_run r = {args, dev->elementwise.gate_silu};
    ath_threads_run(dev->pool, conv_task, &r, args->n_seqs * ((args->n + CHANNELS - 1) / CHANNELS));
}

/* ---- gated delta rule */

/* Sixteen running sums, as the norms have them (ops.c). */
static float dot(const float *x, const float *y, int n) {
    float sum[16] = {0};
    for (int i = 0; i < n; i += 16)
        for (int l = 0; l < 16; l++) sum[l] += x[i + l] * y[i + l];
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}

static void norm_head(float *x, int n, float eps, float factor) {
    float scale = factor / sqrtf(dot(x, x, n) + eps);
    for (int i = 0; i < n; i++) x[i] *= scale;
}

static int64_t row_width(const ath_delta_args *a) {
    return (2 * (int64_t)a->n_k_heads + a->n_v_heads) * a->head_dim;
}

/* Above 20 softplus is its argument in float32. */
static float softplus(float x) {
    return x > 20 ? x : log1pf(ath_expf(x));
}

static void prepare_range(void *arg, int64_t begin, int64_t end) {
    const ath_delta_args *a = arg;
    int n_k = a->n_k_heads, n_v = a->n_v_heads, dim = a->head_dim;
    float q_scale = 1 / sqrtf((float)dim);
    for (int64_t row = begin; row < end; row++) {
        float *q = a->qkv + row * row_width(a), *k = q + (int64_t)n_k * dim;
        for (int h = 0; h < n_k; h++, q += dim, k += dim) {
            norm_head(q, dim, a->norm_eps, q_scale);
            norm_head(k, dim, a->norm_eps, 1);
            a->qk[row * n_k + h] = dot(q, k, dim);
        }
        float *beta = a->beta + row * n_v, *decay = a->decay + row * n_v;
        for (int h = 0; h < n_v; h++) {
            beta[h] = 1 / (1 + ath_expf(-beta[h]));
            decay[h] = ath_expf(a->rate[h] * softplus(decay[h] + a->bias[h]));
        }
    }
}

typedef struct delta_run {
    const ath_delta_args *args;
    ath_delta_fn fn;
} delta_run;

/* A block of columns of one head of one sequence, through all its rows. */
static void delta_task(void *arg, int64_t task, int thread) {
    (void)thread;
    const delta_run *r = arg;
    const ath_delta_args *a = r->args;
    int dim = a->head_dim, n_blocks = dim / ATH_DELTA_BLOCK, n_k = a->n_k_heads, n_v = a->n_v_heads;
    int block = (int)(task % n_blocks), h = (int)(task / n_blocks % n_v);
    const ath_state_seq *seq = &a->seqs[task / n_blocks / n_v];
    int k_head = a->grouped ? h / (n_v / n_k) : h % n_k;
    int64_t at = a->state_at + ((int64_t)h * n_blocks + block) * dim * ATH_DELTA_BLOCK, row = seq->row0;
    size_t bytes = (size_t)dim * ATH_DELTA_BLOCK * sizeof(float);
    for (int run = 0; run < seq->n_runs; run++) {
        const ath_state_run *s = &seq->runs[run];
        const float *qkv = a->qkv + row * row_width(a);
        if (s->from)
            memcpy(s->to + at, s->from + at, bytes);
        else
            memset(s->to + at, 0, bytes);
        r->fn(&(ath_delta_block){
            .state = s->to + at,
            .dim = dim,
            .n_rows = s->n_rows,
            .q = qkv + (int64_t)k_head * dim,
            .k = qkv + ((int64_t)n_k + k_head) * dim,
            .v = qkv + (2 * (int64_t)n_k + h) * dim + block * ATH_DELTA_BLOCK,
            .stride = row_width(a),
            .beta = a->beta + row * n_v + h,
            .decay = a->decay + row * n_v + h,
            .gate_stride = n_v,
            .qk = a->qk + row * n_k + k_head,
            .qk_stride = n_k,
            .out = a->out + (row * n_v + h) * dim + block * ATH_DELTA_BLOCK,
            .out_stride = (int64_t)n_v * dim,
        });
        row += s->n_rows;
    }
}

void ath_op_delta_rule(ath_device *dev, const ath_delta_args *args) {
    ath_parallel_ranges(dev, prepare_range, (void *)args, args->rows, row_width(args));
    delta_run r = {args, dev->delta_rule};
    ath_threads_run(dev->pool, delta_task, &r,
                    (int64_t)args->n_seqs * args->n_v_heads * (args->head_dim / ATH_DELTA_BLOCK));
}
