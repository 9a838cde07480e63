/* The small ops: embedding, norms, sums, activations, copies. Each row is computed by itself in a fixed
 * order; plain C that the compiler vectorises is enough for all but those with an exp. */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu_device.h"

typedef struct embed_run {
    const ath_weight *w;
    const int32_t *ids;
    float scale, *out;
} embed_run;

static void embed_range(void *arg, int64_t begin, int64_t end) {
    const embed_run *r = arg;
    const ath_weight *w = r->w;
    for (int64_t i = begin; i < end; i++) {
        float *out = r->out + i * w->n_in;
        ath_tensor_type_get((int)w->type)
            ->dequantize(w->data + (size_t)r->ids[i] * w->row_bytes, out, w->n_in);
        if (r->scale == 1.0f) continue;
        for (int64_t k = 0; k < w->n_in; k++) out[k] *= r->scale;
    }
}

void ath_op_embed(ath_device *dev, const ath_weight *w, const int32_t *ids, float scale, float *out,
                  int64_t rows) {
    embed_run r = {w, ids, w->scale ? scale * *w->scale : scale, out};
    ath_parallel_ranges(dev, embed_range, &r, rows, 2 * w->n_in);
}

typedef struct norm_run {
    const float *x, *weight;
    float eps, *y;
    int64_t n;
} norm_run;

/* Sixteen running sums (value i goes to sum i % 16), then halves onto halves. */
static float fold_sums(float sum[16]) {
    for (int half = 8; half; half /= 2) {
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    }
    return sum[0];
}

static float sum_squares(const float *x, int64_t n) {
    float sum[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int l = 0; l < 16; l++) sum[l] += x[i + l] * x[i + l];
    }
    for (int l = 0; i + l < n; l++) sum[l] += x[i + l] * x[i + l];
    return fold_sums(sum);
}

static float sum_values(const float *x, int64_t n) {
    float sum[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int l = 0; l < 16; l++) sum[l] += x[i + l];
    }
    for (int l = 0; i + l < n; l++) sum[l] += x[i + l];
    return fold_sums(sum);
}

static void norm_range(void *arg, int64_t begin, int64_t end) {
    const norm_run *r = arg;
    for (int64_t v = begin; v < end; v++) {
        const float *x = r->x + v * r->n;
        float *y = r->y + v * r->n;
        float scale = 1.0f / sqrtf(sum_squares(x, r->n) / (float)r->n + r->eps);
        if (r->weight) {
            for (int64_t i = 0; i < r->n; i++) y[i] = x[i] * scale * r->weight[i];
        } else {
            for (int64_t i = 0; i < r->n; i++) y[i] = x[i] * scale;
        }
    }
}

void ath_op_rms_norm(ath_device *dev, const float *x, const float *weight, float eps, float *y, int64_t n,
                     int64_t groups, int64_t rows) {
    norm_run r = {x, weight, eps, y, n};
    ath_parallel_ranges(dev, norm_range, &r, rows * groups, n / 4);
}

typedef struct layer_norm_run {
    const float *x, *weight, *bias;
    float eps, *y;
    int64_t n;
} layer_norm_run;

static void layer_norm_range(void *arg, int64_t begin, int64_t end) {
    const layer_norm_run *r = arg;
    for (int64_t v = begin; v < end; v++) {
        const float *x = r->x + v * r->n;
        float *y = r->y + v * r->n, mean = sum_values(x, r->n) / (float)r->n;
        for (int64_t i = 0; i < r->n; i++) y[i] = x[i] - mean;
        float scale = 1.0f / sqrtf(sum_squares(y, r->n) / (float)r->n + r->eps);
        for (int64_t i = 0; i < r->n; i++) y[i] = y[i] * scale * r->weight[i];
        if (!r->bias) continue;
        for (int64_t i = 0; i < r->n; i++) y[i] += r->bias[i];
    }
}

void ath_op_layer_norm(ath_device *dev, const float *x, const float *weight, const float *bias, float eps,
                       float *y, int64_t n, int64_t rows) {
    layer_norm_run r = {x, weight, bias, eps, y, n};
    ath_parallel_ranges(dev, layer_norm_range, &r, rows, n / 2);
}

typedef struct sum_run {
    float *x;
    const float *y;
    int64_t n;
} sum_run;

static void bias_range(void *arg, int64_t begin, int64_t end) {
    const sum_run *r = arg;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t i = 0; i < r->n; i++) r->x[row * r->n + i] += r->y[i];
    }
}

void ath_op_add_bias(ath_device *dev, float *x, const float *bias, int64_t n, int64_t rows) {
    sum_run r = {x, bias, n};
    ath_parallel_ranges(dev, bias_range, &r, rows, n / 4);
}

typedef struct expert_bias_run {
    float *x;
    const float *bias;
    const int32_t *expert;
    int64_t n;
} expert_bias_run;

static void expert_bias_range(void *arg, int64_t begin, int64_t end) {
    const expert_bias_run *r = arg;
    for (int64_t pair = begin; pair < end; pair++) {
        const float *bias = r->bias + r->expert[pair] * r->n;
        for (int64_t i = 0; i < r->n; i++) r->x[pair * r->n + i] += bias[i];
    }
}

void ath_op_add_expert_bias(ath_device *dev, float *x, const float *bias, const int32_t *expert, int64_t n,
                            int64_t pairs) {
    expert_bias_run r = {x, bias, expert, n};
    ath_parallel_ranges(dev, expert_bias_range, &r, pairs, n / 4);
}

static void scale_rows_range(void *arg, int64_t begin, int64_t end) {
    const sum_run *r = arg;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t i = 0; i < r->n; i++) r->x[row * r->n + i] *= r->y[row];
    }
}

void ath_op_scale_rows(ath_device *dev, float *x, const float *factor, int64_t n, int64_t rows) {
    sum_run r = {x, factor, n};
    ath_parallel_ranges(dev, scale_rows_range, &r, rows, n / 4);
}

static void scale_channels_range(void *arg, int64_t begin, int64_t end) {
    const sum_run *r = arg;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t i = 0; i < r->n; i++) r->x[row * r->n + i] *= r->y[i];
    }
}

void ath_op_scale_channels(ath_device *dev, float *x, const float *factor, int64_t n, int64_t rows) {
    sum_run r = {x, factor, n};
    ath_parallel_ranges(dev, scale_channels_range, &r, rows, n / 4);
}

enum { CHUNK = 64 }; /* values of an element-wise op that are handed out together */

static void add_range(void *arg, int64_t begin, int64_t end) {
    const sum_run *r = arg;
    int64_t last = end * CHUNK < r->n ? end * CHUNK : r->n;
    for (int64_t i = begin * CHUNK; i < last; i++) r->x[i] += r->y[i];
}

void ath_op_add(ath_device *dev, float *x, const float *y, int64_t n) {
    sum_run r = {x, y, n};
    ath_parallel_ranges(dev, add_range, &r, (n + CHUNK - 1) / CHUNK, CHUNK / 4);
}

static void multiply_range(void *arg, int64_t begin, int64_t end) {
    const sum_run *r = arg;
    int64_t last = end * CHUNK < r->n ? end * CHUNK : r->n;
    for (int64_t i = begin * CHUNK; i < last; i++) r->x[i] *= r->y[i];
}

void ath_op_multiply(ath_device *dev, float *x, const float *y, int64_t n) {
    sum_run r = {x, y, n};
    ath_parallel_ranges(dev, multiply_range, &r, (n + CHUNK - 1) / CHUNK, CHUNK / 4);
}

static void scale_range(void *arg, int64_t begin, int64_t end) {
    const sum_run *r = arg;
    int64_t last = end * CHUNK < r->n ? end * CHUNK : r->n;
    for (int64_t i = begin * CHUNK; i < last; i++) r->x[i] *= *r->y;
}

void ath_op_scale(ath_device *dev, float *x, float factor, int64_t n) {
    sum_run r = {x, &factor, n};
    ath_parallel_ranges(dev, scale_range, &r, (n + CHUNK - 1) / CHUNK, CHUNK / 4);
}

typedef struct gate_run {
    ath_gate_fn fn;
    float *gate;
    const float *up;
    int64_t n;
} gate_run;

static void gate_range(void *arg, int64_t begin, int64_t end) {
    const gate_run *r = arg;
    int64_t first = begin * CHUNK, last = end * CHUNK < r->n ? end * CHUNK : r->n;
    r->fn(r->gate + first, r->up + first, last - first);
}

void ath_op_gate(ath_device *dev, ath_act act, float *gate, const float *up, int64_t n) {
    const ath_elementwise_kernels *k = &dev->elementwise;
    ath_gate_fn fn = act == ATH_ACT_SILU        ? k->gate_silu
                     : act == ATH_ACT_GELU_TANH ? k->gate_gelu
                     : act == ATH_ACT_SIGMOID   ? k->gate_sigmoid
                                                : k->gate_swiglu_oai;
    gate_run r = {fn, gate, up, n};
    ath_parallel_ranges(dev, gate_range, &r, (n + CHUNK - 1) / CHUNK, CHUNK);
}

static void gelu_range(void *arg, int64_t begin, int64_t end) {
    const gate_run *r = arg;
    int64_t first = begin * CHUNK, last = end * CHUNK < r->n ? end * CHUNK : r->n;
    float ones[CHUNK];
    for (int i = 0; i < CHUNK; i++) ones[i] = 1.0f;
    for (int64_t i = first; i < last; i += CHUNK)
        r->fn(r->gate + i, ones, last - i < CHUNK ? last - i : CHUNK);
}

void ath_op_gelu(ath_device *dev, float *x, int64_t n) {
    gate_run r = {.fn = dev->elementwise.gate_gelu, .gate = x, .n = n};
    ath_parallel_ranges(dev, gelu_range, &r, (n + CHUNK - 1) / CHUNK, CHUNK);
}

static void keep_upper_range(void *arg, int64_t begin, int64_t end) {
    const norm_run *r = arg;
    for (int64_t row = begin; row < end; row++) {
        float *x = r->y + row * r->n, mean = sum_values(x, r->n) / (float)r->n;
        for (int64_t i = 0; i < r->n; i++) x[i] -= mean;
        float cut = r->eps * sqrtf(sum_squares(x, r->n) / (float)r->n);
        for (int64_t i = 0; i < r->n; i++) x[i] = x[i] > cut ? x[i] - cut : 0;
    }
}

void ath_op_keep_upper(ath_device *dev, float *x, float deviations, int64_t n, int64_t rows) {
    norm_run r = {.eps = deviations, .y = x, .n = n};
    ath_parallel_ranges(dev, keep_upper_range, &r, rows, n);
}

typedef struct match_run {
    float *x;
    const float *like;
    float least;
    int64_t n, groups;
} match_run;

static void match_range(void *arg, int64_t begin, int64_t end) {
    const match_run *r = arg;
    for (int64_t v = begin; v < end; v++) {
        float *x = r->x + v * r->n;
        float own = sum_squares(x, r->n) / (float)r->n;
        float like = sum_squares(r->like + v / r->groups * r->n, r->n) / (float)r->n;
        float scale = sqrtf(like / fmaxf(own, r->least));
        for (int64_t i = 0; i < r->n; i++) x[i] *= scale;
    }
}

void ath_op_match_rms(ath_device *dev, float *x, const float *like, float least, int64_t n, int64_t groups,
                      int64_t rows) {
    match_run r = {x, like, least, n, groups};
    ath_parallel_ranges(dev, match_range, &r, rows * groups, n / 2);
}

typedef struct copy_run {
    float *dst;
    const float *src;
    int64_t dst_stride, src_stride, n;
} copy_run;

static void copy_range(void *arg, int64_t begin, int64_t end) {
    const copy_run *r = arg;
    for (int64_t i = begin; i < end; i++)
        memcpy(r->dst + i * r->dst_stride, r->src + i * r->src_stride, (size_t)r->n * sizeof(float));
}

void ath_op_copy(ath_device *dev, float *dst, int64_t dst_stride, const float *src, int64_t src_stride, int64_t n,
                 int64_t count) {
    copy_run r = {dst, src, dst_stride, src_stride, n};
    ath_parallel_ranges(dev, copy_range, &r, count, n / 4);
}

static void add_strided_range(void *arg, int64_t begin, int64_t end) {
    const copy_run *r = arg;
    for (int64_t i = begin; i < end; i++) {
        float *x = r->dst + i * r->dst_stride;
        const float *y = r->src + i * r->src_stride;
        for (int64_t k = 0; k < r->n; k++) x[k] += y[k];
    }
}

void ath_op_add_strided(ath_device *dev, float *x, int64_t x_stride, const float *y, int64_t y_stride, int64_t n,
                        int64_t count) {
    copy_run r = {x, y, x_stride, y_stride, n};
    ath_parallel_ranges(dev, add_strided_range, &r, count, n / 4);
}

typedef struct streams_run {
    float *x;
    const float *weight;
    int n_streams, n_in, n_out;
    int64_t n, pieces; /* channels of a stream, in pieces of CHUNK */
} streams_run;

static void mix_piece(const streams_run *r, float *x, const float *weight, int n) {
    float in[ATH_MAX_STREAMS][CHUNK];
    for (int i = 0; i < r->n_in; i++) memcpy(in[i], x + i * r->n, (size_t)n * sizeof(float));
    for (int j = 0; j < r->n_out; j++, weight += r->n_in) {
        float *out = x + j * r->n;
        for (int k = 0; k < n; k++) out[k] = weight[0] * in[0][k];
        for (int i = 1; i < r->n_in; i++) {
            for (int k = 0; k < n; k++) out[k] += weight[i] * in[i][k];
        }
    }
}

static void mix_streams_range(void *arg, int64_t begin, int64_t end) {
    const streams_run *r = arg;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task / r->pieces, at = task % r->pieces * CHUNK;
        int n = (int)(r->n - at < CHUNK ? r->n - at : CHUNK);
        mix_piece(r, r->x + row * r->n_streams * r->n + at, r->weight + row * r->n_out * r->n_in, n);
    }
}

void ath_op_mix_streams(ath_device *dev, float *x, int n_streams, const float *weight, int n_in, int n_out,
                        int64_t n, int64_t rows) {
    streams_run r = {x, weight, n_streams, n_in, n_out, n, (n + CHUNK - 1) / CHUNK};
    ath_parallel_ranges(dev, mix_streams_range, &r, rows * r.pieces, CHUNK / 4 * n_in * n_out);
}

typedef struct mix_run {
    const float *x, *weight;
    int n_used;
    float *y;
    int64_t n;
} mix_run;

static void mix_range(void *arg, int64_t begin, int64_t end) {
    const mix_run *r = arg;
    for (int64_t row = begin; row < end; row++) {
        float *y = r->y + row * r->n;
        memset(y, 0, (size_t)r->n * sizeof(float));
        for (int s = 0; s < r->n_used; s++) {
            const float *x = r->x + (row * r->n_used + s) * r->n;
            float weight = r->weight[row * r->n_used + s];
            for (int64_t i = 0; i < r->n; i++) y[i] += weight * x[i];
        }
    }
}

void ath_op_mix_experts(ath_device *dev, const float *x, const float *weight, int n_used, float *y, int64_t n,
                        int64_t rows) {
    mix_run r = {x, weight, n_used, y, n};
    ath_parallel_ranges(dev, mix_range, &r, rows, n / 4 * n_used);
}
