/* Models: one file per architecture, each a list of tensors and a layer that reads like the paper.
 *
 * An architecture provides a load function, which fills hyper-parameters and weights from a GGUF, and a layer function,
 * which is a sequence of op calls on the rows of a pass. Everything between token ids and logits that
 * architectures share (embedding, final norm, output matrix, rotary tables, mixture of experts) is here. */
#ifndef ATH_MODELS_MODEL_H
#define ATH_MODELS_MODEL_H

#include "base/log.h"
#include "device/device.h"
#include "gguf/gguf.h"
#include "kv/kv.h"

typedef struct ath_model ath_model;
typedef struct ath_loader ath_loader;
typedef struct ath_pass ath_pass;

typedef struct ath_arch {
    const char *name; /* general.architecture */
    /* Reads the architecture's own keys and all tensors. Failures stay in the loader. */
    void (*load)(ath_loader *in, ath_model *m);
    /* x += attention(x); x += feed_forward(x), for all rows of the pass. */
    void (*layer)(const ath_model *m, ath_pass *p, int il);
} ath_arch;

/* NULL if this build doesn't know the name. */
const ath_arch *ath_arch_find(ath_str name);
const char *ath_arch_names(void); /* space separated */

/* Weights of a decoder layer; what an architecture doesn't have stays NULL (w.data == NULL). Shapes as [n_out, n_in]. */
typedef struct ath_layer {
    int n_heads, n_kv_heads, head_dim_k, head_dim_v;
    int64_t window;      /* tokens visible, own included; 0: all */
    const ath_rope *rope; /* into ath_model.rope; NULL: none */
    float *attn_norm;                 /* [n_embd] */
    ath_weight wq, wk, wv;            /* [n_heads*head_dim, n_embd], [n_kv_heads*head_dim, n_embd] x 2 */
    float *bq, *bk, *bv, *bo;
    float *q_norm, *k_norm;           /* [head_dim] */
    ath_weight wo;                    /* [n_embd, n_heads*head_dim_v] */
    float *post_attn_norm;            /* [n_embd] */
    float *ffn_norm;                  /* [n_embd] */
    ath_weight gate, up, down;        /* [n_ff, n_embd] x 2, [n_embd, n_ff]; experts: n_experts of them */
    float *b_gate, *b_up, *b_down;
    ath_weight router;                /* [n_experts, n_embd] */
    float *post_ffn_norm;             /* [n_embd] */
} ath_layer;

struct ath_model {
    const ath_arch *arch;
    const ath_gguf *gguf; /* borrowed; its map holds what was not repacked */
    ath_device *dev;      /* borrowed; NULL for metadata-only models */
    int n_layers;
    int64_t n_vocab, n_embd, n_ctx_train;
    int64_t n_ff;         /* widest feed-forward, or of one expert */
    int n_experts, n_experts_used;
    float norm_eps;
    float attn_scale;     /* 0: 1/sqrt(head_dim) */
    float embd_scale;     /* on token embeddings */
    float final_softcap;  /* 0: none */
    ath_rope rope[2];     /* full-attention layers; windowed layers */
    ath_weight embd;      /* [n_vocab, n_embd], file layout */
    ath_weight output;    /* the same tensor when tied, in the kernel's layout */
    float *output_norm;   /* [n_embd] */
    ath_layer *layers;
    uint64_t n_params;
    size_t weight_bytes;  /* resident: repacked copies plus mapped tensors that are used from the map */
    void **owned;         /* allocations freed with the model */
    size_t n_owned;
};

typedef struct ath_rope_overrides { /* 0 or NULL: the model's; factors < 0: the model's */
    const char *scaling;
    float freq_base, freq_scale, scale;
    int yarn_orig_ctx;
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
} ath_rope_overrides;

typedef struct ath_model_params {
    ath_device *dev; /* NULL: hyper-parameters only, tensor shapes are checked but no weight is loaded */
    bool repack, check_tensors;
    ath_rope_overrides rope;
    const ath_log *log;
} ath_model_params;

/* gguf and params->dev must outlive the model. Refuses unknown architectures with the list of known ones, missing
 * tensors and wrong shapes by name. */
ath_status ath_model_load(ath_model **out, const ath_gguf *gguf, const ath_model_params *params, ath_error *err);
void ath_model_free(ath_model *model); /* NULL is fine */

/* What each layer stores in the cache; layers[n_layers]; types are left for the caller. */
void ath_model_kv_layers(const ath_model *model, ath_kv_layer *layers);

/* ---- evaluation */

/* Activations of one pass: float32, [max_rows][...]. */
struct ath_pass {
    ath_device *dev;
    ath_kv *kv;
    int64_t rows, max_rows;
    int64_t *pos;        /* [rows] position of each row in its sequence */
    float *x;            /* [n_embd] residual stream */
    float *h;            /* [n_embd] normed input of a block */
    float *q, *k, *v;    /* [n_heads*head_dim] ... */
    float *att;          /* [n_heads*head_dim_v] */
    float *proj;         /* [n_embd] output of a block */
    float *gate, *up;    /* [n_ff], experts: [n_experts_used][n_ff] */
    float *expert_out;   /* [n_experts_used][n_embd] */
    float *router;       /* [n_experts] */
    int32_t *expert;     /* [n_experts_used] */
    float *expert_weight; /* [n_experts_used] */
    void *memory;
};

ath_status ath_pass_create(ath_pass **out, const ath_model *model, ath_kv *kv, int64_t max_rows, ath_error *err);
void ath_pass_free(ath_pass *pass);
size_t ath_pass_bytes(const ath_model *model, int64_t max_rows);

/* Runs all layers over `rows` tokens whose batch was begun on pass->kv; pass->pos is filled by the caller. The result
 * is the residual stream in pass->x; ath_model_logits turns rows of it into logits. */
void ath_model_forward(const ath_model *model, ath_pass *pass, const int32_t *tokens);
/* logits [n][n_vocab] of rows row0 .. row0 + n - 1 of the last forward; overwrites those rows of pass->x. */
void ath_model_logits(const ath_model *model, ath_pass *pass, int64_t row0, int64_t n, float *logits);

/* ---- for architecture files: loading. A loader keeps the first failure; later calls do nothing. */

struct ath_loader {
    const ath_gguf *gguf;
    const ath_model_params *params;
    ath_model *model;
    const char *arch; /* NUL-terminated name, prefix of keys */
    ath_error *err;
    ath_status status;
};

enum { ATH_LOAD_OPTIONAL = 1 };

void ath_load_fail(ath_loader *in, ath_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Keys "<arch>.<key>". */
float ath_load_f32(ath_loader *in, const char *key, float fallback);
uint32_t ath_load_u32(ath_loader *in, const char *key, uint32_t fallback);
void ath_load_u32_array(ath_loader *in, const char *key, uint32_t *out, int64_t n, uint32_t fallback);
/* A float vector of n values (any float type, decoded); NULL if absent and optional. "%d" in name is il. */
float *ath_load_vector(ath_loader *in, int64_t n, unsigned flags, const char *name, int il);
/* A matrix of n_out rows of n_in values, n_experts of them (1: two dimensions). */
void ath_load_matrix(ath_loader *in, ath_weight *w, int64_t n_in, int64_t n_out, int64_t n_experts, unsigned flags,
                     const char *name, int il);
/* Q, K, V and their optional biases from separate tensors or a fused attn_qkv; also wo and its bias. */
void ath_load_attention(ath_loader *in, ath_layer *l, int il);
/* Dense gate, up, down with optional biases. */
void ath_load_ffn(ath_loader *in, ath_layer *l, int il);
/* Router and merged expert tensors. */
void ath_load_experts(ath_loader *in, ath_layer *l, int il);
/* Rotary tables of full and windowed layers from the usual keys; neox as the architecture has it. */
void ath_load_rope(ath_loader *in, bool neox);
/* Windows: n tokens on layers that `period` makes windowed (il % period < period - 1; 0: all; 1: none), or by the
 * file's own attention.sliding_window_pattern. */
void ath_load_windows(ath_loader *in, uint32_t default_period);

/* ---- for architecture files: the usual blocks */

/* q, k, v of h: projections, biases, per-head norms where present, rotation. */
void ath_block_qkv(const ath_model *m, ath_pass *p, int il);
/* Stores k, v; att = attention(q); proj = att . wo (+ bias). */
void ath_block_attend(const ath_model *m, ath_pass *p, int il);
/* proj = down(act(gate(h)) * up(h)) */
void ath_block_ffn(const ath_model *m, ath_pass *p, int il, ath_act act);
/* The same through a softmax router, renormalised over the chosen experts. */
void ath_block_experts(const ath_model *m, ath_pass *p, int il, ath_act act);
/* y = rms_norm(x) * weight, rows of n_embd */
void ath_block_norm(const ath_model *m, const ath_pass *p, const float *x, const float *weight, float *y);
void ath_block_add(const ath_model *m, ath_pass *p, const float *y); /* x += y */

/* The layer that most decoders share, SiLU throughout; experts where the model has them:
 *     x += attention(norm(x));  x += feed_forward(norm(x)) */
void ath_layer_pre_norm(const ath_model *m, ath_pass *p, int il);
void ath_load_pre_norm_layer(ath_loader *in, ath_layer *l, int il);

#endif
