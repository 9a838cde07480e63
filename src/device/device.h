/* The device: the table of operations that models are written in, and the CPU's implementation of it.
 *
 * Everything that is data-parallel happens inside an op; an op knows nothing of models. Every row is computed by itself
 * in a fixed order: its bits depend neither on the number of threads nor on which other rows are in the batch.
 * Activations are float32, row-major, in host memory. Ops never fail: sizes were checked when the model was loaded. */
#ifndef ATH_DEVICE_H
#define ATH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/threads.h"
#include "codec/tensor_type.h"
#include "device/attention_args.h"
#include "device/recurrent_args.h"

typedef struct ath_device ath_device;

/* A weight matrix of n_out rows of n_in values (a GGUF tensor [n_in, n_out]), or n_experts of them.
 * Filled by ath_device_weight_init. */
typedef struct ath_weight {
    ath_tensor_type type;
    int64_t n_in, n_out, n_experts;
    const uint8_t *data;  /* file layout, borrowed from the map */
    const uint8_t *const
        *experts;       /* [n_experts] where each one's rows are, borrowed; NULL: one after another in data */
    const float *scale; /* [n_experts] on what comes out of products and embeddings, borrowed; NULL: none. The
                           caller's */
    const struct ath_adapter *adapters; /* added to products, borrowed; NULL: none. The caller's */
    size_t row_bytes;
    uint8_t *panels;      /* repacked copy, the device's; or NULL: data is used directly */
    size_t panel_bytes;   /* of the whole copy */
} ath_weight;

/* A low-rank adapter (LoRA) of a weight: the product of a row x becomes w.x + scale * b.(a.x). */
typedef struct ath_adapter {
    ath_weight a, b; /* [rank, n_in], [n_out, rank]; as many experts as the weight */
    float scale;
    const struct ath_adapter *next; /* NULL: the last */
} ath_adapter;

typedef struct ath_device_params {
    int n_threads;       /* decode; >= 1 */
    int n_threads_batch; /* prefill; >= 1 */
    uint32_t cpu_mask;   /* CPU flags that may be used; ~0u: all */
    int64_t max_rows;    /* largest batch: sizes scratch */
    const ath_placement *placement, *placement_batch; /* NULL: the default */
    bool exact;          /* products take activations in F32, whatever the weights' type; else most types take 8 bits */
} ath_device_params;

typedef struct ath_rope {   /* rotary embedding, prepared once per (model, kind of layer) */
    int n_rot;              /* rotated channels of a head, even */
    bool neox;              /* pairs (i, i + n_rot/2); else (2i, 2i+1) */
    const double *inv_freq; /* [n_rot/2] radians per position, all scalings applied */
    float magnitude;        /* on cos and sin */
} ath_rope;

/* ---- life */
ath_status ath_device_cpu_create(ath_device **out, const ath_device_params *params, ath_error *err);
void ath_device_free(ath_device *dev);
const char *ath_device_describe(const ath_device *dev); /* "CPU, avx512 vnni vbmi, 2 threads" */
const char *ath_device_attention_kernel(const ath_device *dev); /* "avx512vbmi" */
void ath_device_use_threads(ath_device *dev, bool prefill); /* chooses n_threads or n_threads_batch */
bool ath_device_priority_refused(const ath_device *dev);

/* ---- weights. repack: copy into the layout of the fastest kernel where that pays (types without such a layout stay).
 * The copy lives as long as the device. */
ath_status ath_device_weight_init(ath_device *dev, ath_weight *w, ath_tensor_type type, const void *data, int64_t n_in,
                                  int64_t n_out, int64_t n_experts, bool repack, ath_error *err);
/* The same for experts that lie apart. */
ath_status ath_device_experts_init(ath_device *dev, ath_weight *w, ath_tensor_type type,
                                   const uint8_t *const *experts, int64_t n_in, int64_t n_out,
                                   int64_t n_experts, bool repack, ath_error *err);
/* Scratch for the products with w->adapters; before the first of them. */
ath_status ath_device_adapters_reserve(ath_device *dev, const ath_weight *w, ath_error *err);
const char *ath_device_weight_kernel(const ath_device *dev, const ath_weight *w); /* "q4_k x int8, avx512vnni" */

/* ---- ops */
/* out[i] (n_w matrices of the same n_in, each [rows][n_out]) = x . w[i]^T; x [rows][n_in] is quantised once for all.
 * The bits of a row depend on that row and the weights only. */
void ath_op_matmul(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w, const float *x, int64_t rows);
/* Mixture of experts: for each row r and slot s < n_used: out[(r*n_used + s)*n_out ...] = x_rs . w[expert[r*n_used+s]]^T
 * where x_rs = x + (r * x_slots + (x_slots > 1 ? s : 0)) * n_in; x_slots is 1 (shared input) or n_used. */
void ath_op_matmul_experts(ath_device *dev, const ath_weight *const *w, float *const *out, int n_w, const float *x,
                           int x_slots, const int32_t *expert, int n_used, int64_t rows);
/* out[rows][n_in] = rows ids[] of w, decoded, times scale. ids were checked by the caller. */
void ath_op_embed(ath_device *dev, const ath_weight *w, const int32_t *ids, float scale, float *out, int64_t rows);
/* y = x / sqrt(mean(x^2) + eps) * weight over each of rows*groups vectors of n; weight [n] or NULL. x may be y. */
void ath_op_rms_norm(ath_device *dev, const float *x, const float *weight, float eps, float *y, int64_t n, int64_t groups,
                     int64_t rows);
/* y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over each of rows vectors of n; bias may be NULL, x may be y. */
void ath_op_layer_norm(ath_device *dev, const float *x, const float *weight, const float *bias, float eps, float *y, int64_t n,
                       int64_t rows);
/* x[rows][n] += bias[n] */
void ath_op_add_bias(ath_device *dev, float *x, const float *bias, int64_t n, int64_t rows);
/* x[pairs][n] += bias[expert[pair]][n] */
void ath_op_add_expert_bias(ath_device *dev, float *x, const float *bias, const int32_t *expert, int64_t n, int64_t pairs);
/* x[rows][n] *= factor[n] */
void ath_op_scale_channels(ath_device *dev, float *x, const float *factor, int64_t n, int64_t rows);
/* x += y, n values in all */
void ath_op_add(ath_device *dev, float *x, const float *y, int64_t n);
/* x *= y, n values in all */
void ath_op_multiply(ath_device *dev, float *x, const float *y, int64_t n);
/* x[i * x_stride ...] += y[i * y_stride ...], n values each, for i < count. */
void ath_op_add_strided(ath_device *dev, float *x, int64_t x_stride, const float *y, int64_t y_stride, int64_t n,
                        int64_t count);
/* x *= factor, n values in all */
void ath_op_scale(ath_device *dev, float *x, float factor, int64_t n);
/* x[row][n] *= factor[row] */
void ath_op_scale_rows(ath_device *dev, float *x, const float *factor, int64_t n, int64_t rows);
/* Rotates x[rows][n_heads][head_dim] in place, position pos[row]. Angles in double. */
void ath_op_rope(ath_device *dev, const ath_rope *rope, float *x, const int64_t *pos, int n_heads, int head_dim, int64_t rows);
typedef enum ath_act {
    ATH_ACT_SILU,
    ATH_ACT_GELU_TANH,
    ATH_ACT_SIGMOID,    /* gated alone */
    ATH_ACT_SWIGLU_OAI, /* gpt-oss, gated alone: g = min(gate, 7), u = clamp(up, -7, 7); g * sigmoid(1.702 g) * (u + 1) */
} ath_act;
/* gate = act(gate) * up, n values in all */
void ath_op_gate(ath_device *dev, ath_act act, float *gate, const float *up, int64_t n);
/* x = gelu(x) in its tanh form, n values in all */
void ath_op_gelu(ath_device *dev, float *x, int64_t n);
enum { ATH_MAX_EXPERTS = 4096 };
typedef struct ath_router {
    int n_experts, n_used;       /* 1 <= n_used <= n_experts <= ATH_MAX_EXPERTS */
    bool sigmoid;                /* probability of an expert by itself; else softmax over all */
    bool renormalise;            /* weights sum to 1 (the sum clamped at 6.1035e-5) */
    float scale;                 /* on the weights */
    const float *bias;           /* [n_experts] on the probabilities, for the choice alone; NULL: none */
    int n_groups, n_groups_used; /* equal runs of experts, of which n_groups_used are chosen first; n_groups <= 1: no */
} ath_router;
/* logits [rows][n_experts] -> expert[rows][n_used], the ones of largest probability (plus bias) in descending order (ties:
 * lower index), and weight[rows][n_used], their probabilities. A group counts as much as its best expert, with sigmoid
 * as much as its two best (DeepSeek V2, V3: arXiv 2405.04434, 2412.19437). */
void ath_op_route(ath_device *dev, const ath_router *router, const float *logits, int32_t *expert, float *weight,
                  int64_t rows);
/* y[row] = sum over slots, in slot order, of weight[row][s] * x[row][s][:]; y is overwritten. */
void ath_op_mix_experts(ath_device *dev, const float *x, const float *weight, int n_used, float *y, int64_t n, int64_t rows);
/* x[rows][n]: each row keeps what exceeds its mean by more than `deviations` standard deviations (of all n values), and
 * that part only: max(0, x - mean - deviations * std). The sparsity of Gemma 3n. */
void ath_op_keep_upper(ath_device *dev, float *x, float deviations, int64_t n, int64_t rows);
/* Each of the vectors x[rows][groups][n] times sqrt(mean square of like[rows][n] / its own, which counts as `least` if it is
 * below that). */
void ath_op_match_rms(ath_device *dev, float *x, const float *like, float least, int64_t n, int64_t groups,
                      int64_t rows);
enum { ATH_MAX_STREAMS = 17 };
/* Of the n_streams vectors of each row, x[rows][n_streams][n], the first n_out become sums of the first n_in:
 * x[row][j] = sum over i < n_in, in that order, of weight[row][j][i] * x[row][i].
 * n_out <= n_in <= n_streams <= ATH_MAX_STREAMS. */
void ath_op_mix_streams(ath_device *dev, float *x, int n_streams, const float *weight, int n_in, int n_out,
                        int64_t n, int64_t rows);
/* dst[i * dst_stride ...] = src[i * src_stride ...], n values each, for i < count. */
void ath_op_copy(ath_device *dev, float *dst, int64_t dst_stride, const float *src, int64_t src_stride, int64_t n,
                 int64_t count);
void ath_op_attend(ath_device *dev, const ath_attn_args *args);
/* Recurrent layers: see recurrent_args.h. */
void ath_op_conv(ath_device *dev, const ath_conv_args *args);
void ath_op_delta_rule(ath_device *dev, const ath_delta_args *args);

typedef struct ath_encode_job { /* one side of one kv head of a full page */
    const ath_kv_layout *layout;
    const uint16_t *tile; /* f16, plain shape */
    uint8_t *out;
} ath_encode_job;
void ath_op_encode_pages(ath_device *dev, const ath_encode_job *jobs, int64_t n_jobs);
/* Runs any loop on the device's threads: for the cache's own copying. */
void ath_device_parallel(ath_device *dev, ath_task_fn fn, void *arg, int64_t n_tasks);

#endif
