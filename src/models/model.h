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

/* The names of an architecture (general.architecture) are in registry.c: several may convert to the same graph. */
typedef struct ath_arch {
    /* Reads the architecture's own keys and all tensors. Failures stay in the loader. */
    void (*load)(ath_loader *in, ath_model *m);
    /* x += attention(x); x += feed_forward(x), for all rows of the pass. */
    void (*layer)(const ath_model *m, ath_pass *p, int il);
    bool layer_norm; /* norms subtract the mean and may have a bias; else RMS norms */
} ath_arch;

/* NULL if this build doesn't know the name. */
const ath_arch *ath_arch_find(ath_str name);
const char *ath_arch_names(void); /* space separated */

typedef struct ath_norm {
    float *weight, *bias; /* bias: LayerNorm only, may be NULL; weight NULL: no norm at this place */
} ath_norm;

/* A feed-forward, or the experts of a layer, one after another. No gate: down(gelu(up(x))). */
typedef struct ath_ffn {
    ath_weight gate, up, down;      /* [n_ff, n_embd] x 2, [n_embd, n_ff]; n_experts of them */
    float *b_gate, *b_up, *b_down;  /* [n_experts][n_ff] x 2, [n_experts][n_embd] */
    bool sparse;                    /* of the gate's values only the upper ones count: ath_op_keep_upper ... */
    float sparse_above;             /* ... with this many deviations. Dense feed-forward only */
} ath_ffn;

/* Weights of a decoder layer; what an architecture doesn't have stays NULL (w.data == NULL). Shapes as [n_out, n_in]. */
typedef struct ath_layer {
    int n_heads, n_kv_heads, head_dim_k, head_dim_v;
    int kv_layer;        /* the layer whose K and V it reads: itself, or an earlier one */
    int64_t n_state;     /* float32 values of a recurrent layer's state; 0: the layer has attention */
    bool v_may_be_k;     /* without a matrix wv, V is K's projection */
    bool v_in_k;         /* V is the first head_dim_v channels of K: one row in the cache */
    int64_t n_ff;        /* width of a dense feed-forward */
    int64_t window;      /* tokens visible, own included; 0: all */
    const ath_rope *rope; /* into ath_model.rope; NULL: none */
    ath_norm attn_norm;               /* [n_embd] */
    ath_weight wq, wk, wv;            /* [n_heads*head_dim, n_embd], [n_kv_heads*head_dim, n_embd] x 2 */
    float *bq, *bk, *bv, *bo;
    float *q_norm, *k_norm;           /* [head_dim], or the whole projection (ath_model.qk_norm_whole) */
    float *sinks;                     /* [n_heads] */
    bool gated;                       /* wq gives per head a query and then a gate: attention times sigmoid(gate) */
    ath_weight wo;                    /* [n_embd, n_heads*head_dim_v] */
    ath_norm post_attn_norm;          /* [n_embd] on the output of attention */
    ath_norm ffn_norm;                /* [n_embd] */
    ath_ffn ffn;                      /* of the experts if there is a router */
    ath_weight router;                /* [n_experts, n_embd] */
    float *b_router;                  /* [n_experts] */
    float *b_choice;                  /* [n_experts] ath_router.bias */
    ath_ffn shared;                   /* the expert that every token takes */
    ath_weight shared_router;         /* [1, n_embd]: its output times sigmoid(shared_router . x) */
    ath_norm post_ffn_norm;           /* [n_embd] on the output of the feed-forward */
} ath_layer;

/* Kinds of rotary tables: layers that see everything, windowed ones where they differ, and LongRoPE's table for contexts
 * longer than the original one. */
enum { ATH_ROPE_FULL, ATH_ROPE_WINDOW, ATH_ROPE_LONG, ATH_ROPE_KINDS };

struct ath_model {
    const ath_arch *arch;
    const ath_gguf *gguf; /* borrowed; its map holds what was not repacked */
    ath_device *dev;      /* borrowed; NULL for metadata-only models */
    int n_layers;
    int64_t n_vocab, n_embd, n_ctx_train;
    int64_t n_scratch;    /* floats per row of ath_pass.scratch */
    int64_t n_ctx_max;    /* learned positions end here; 0: no such limit */
    int64_t n_ff, n_ff_expert,
        n_ff_shared;      /* widths of the widest dense layer, of one expert, of the shared expert */
    ath_router router;    /* n_experts == 0: dense; bias: see ath_layer; unless load says otherwise softmax, renormalised */
    ath_act act;
    float norm_eps;
    bool qk_norm_whole;   /* q and k norms run over all heads at once */
    bool qk_norm_last;    /* q and k norms come after the rotation */
    bool v_norm;          /* each head of v gets an RMS norm without weight */
    float attn_scale;     /* 0: 1/sqrt(head_dim) */
    float attn_softcap;   /* 0: none */
    float attn_temperature; /* queries times 1 + this * ln(1 + floor(pos / attn_temperature_len)); 0: no */
    int64_t attn_temperature_len;
    float embd_scale;     /* on token embeddings */
    float residual_scale; /* on what a block adds */
    float logit_scale;
    float final_softcap;  /* 0: none */
    ath_rope rope[ATH_ROPE_KINDS]; /* n_rot == 0: not in use */
    double yarn_factor;   /* YaRN's extension of the context; 1: none */
    int64_t rope_long_above; /* context length above which ATH_ROPE_LONG takes the place of ATH_ROPE_FULL */
    ath_weight embd;      /* [n_vocab, n_embd], file layout */
    ath_weight pos_embd;  /* [n_ctx_max, n_embd], file layout: learned positions, added to the embeddings */
    ath_weight output;    /* the same tensor when tied, in the kernel's layout */
    ath_norm output_norm; /* [n_embd] */
    ath_layer *layers;
    void *own; /* the architecture's: what no other one has (ath_load_alloc) */
    uint64_t n_params;
    size_t weight_bytes;  /* resident: repacked copies plus mapped tensors that are used from the map */
    void **owned;         /* memory that ends with the model; room for a power of two of them */
    size_t n_owned;
};

typedef struct ath_rope_overrides { /* 0 or NULL: the model's; yarn factors < 0: the model's; others < 0:
                                       refused */
    const char *scaling;
    float freq_base, freq_scale, scale;
    int yarn_orig_ctx;
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
} ath_rope_overrides;

typedef struct ath_adapter_file {
    const ath_gguf *gguf; /* needed while the model is loaded, no longer */
    float scale;          /* times alpha / rank of the file */
} ath_adapter_file;

typedef struct ath_model_params {
    ath_device *dev; /* NULL: hyper-parameters only, tensor shapes are checked but no weight is loaded */
    bool repack, check_tensors;
    ath_rope_overrides rope;
    const ath_adapter_file *adapters; /* [n_adapters] low-rank adapters, added to what the weights give */
    int n_adapters;
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
    bool long_context;   /* LongRoPE: the long table is in use */
    const float *k_bias; /* [n_layers][k_width] added to K as it is stored, to test caches; NULL: none */
    int64_t k_width;
    bool (*cancelled)(void *user); /* asked before each layer; NULL: never */
    void *cancel_user;
    int64_t *pos;        /* [rows] position of each row in its sequence */
    int32_t *pos_id;     /* [rows] the same, for learned positions */
    float *row_scale;    /* [rows] scratch */
    const int32_t *tokens; /* [rows] ids */
    float *scratch;        /* [n_scratch] for the architecture's own use, kept from layer to layer */
    float *x;            /* [n_embd] residual stream */
    float *h;            /* [n_embd] normed input of a block */
    float *q, *k, *v;    /* [n_heads*head_dim] ... */
    float *att;          /* [n_heads*head_dim_v] */
    float *proj;         /* [n_embd] output of a block */
    float *gate, *up;    /* [n_ff], experts: [n_used][n_ff_expert] */
    float *expert_out;   /* [n_used][n_embd] */
    float *router;       /* [n_experts] */
    int32_t *expert;     /* [n_used] */
    float *expert_weight; /* [n_used] */
    void *memory;
};

/* n_ctx: longest context of a sequence in kv; at most model->n_ctx_max where that isn't 0. */
ath_status ath_pass_create(ath_pass **out, const ath_model *model, ath_kv *kv, int64_t n_ctx, int64_t max_rows,
                           ath_error *err);
void ath_pass_free(ath_pass *pass);
size_t ath_pass_bytes(const ath_model *model, int64_t max_rows);

/* Runs all layers over `rows` tokens whose batch was begun on pass->kv; pass->pos is filled by the caller. The result
 * is the residual stream in pass->x; ath_model_logits turns rows of it into logits. False: pass->cancelled said stop,
 * and the batch is to be aborted. */
bool ath_model_forward(const ath_model *model, ath_pass *pass, const int32_t *tokens);
/* logits [n][n_vocab] of rows row0 .. row0 + n - 1 of the last forward; overwrites those rows of pass->x. */
void ath_model_logits(const ath_model *model, ath_pass *pass, int64_t row0, int64_t n, float *logits);

/* ---- for architecture files: loading. A loader keeps the first failure; later calls do nothing. */

struct ath_loader {
    const ath_gguf *gguf;
    const ath_model_params *params;
    ath_model *model;
    char arch[64]; /* NUL-terminated name, prefix of keys */
    bool **adapter_used; /* [n_adapters][tensors]; NULL: no adapters */
    ath_error *err;
    ath_status status;
};

enum {
    ATH_LOAD_OPTIONAL = 1,
    ATH_LOAD_UNSCALED = 2, /* X.scale is no factor of X.weight */
    ATH_LOAD_UNPACKED = 4, /* stays in the file's layout */
};

void ath_load_fail(ath_loader *in, ath_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* n zeroed items, freed with the model; NULL after a failure. */
void *ath_load_alloc(ath_loader *in, size_t n, size_t size);
/* Keys "<arch>.<key>". */
float ath_load_f32(ath_loader *in, const char *key, float fallback);
uint32_t ath_load_u32(ath_loader *in, const char *key, uint32_t fallback);
void ath_load_u32_array(ath_loader *in, const char *key, uint32_t *out, int64_t n, uint32_t fallback);
/* A float vector of n values (any float type, decoded); NULL if absent and optional. "%d" in name is il. */
float *ath_load_vector(ath_loader *in, int64_t n, unsigned flags, const char *name, int il);
float *ath_load_vectors(ath_loader *in, int64_t n, int64_t n_vectors, unsigned flags, const char *name, int il);
/* name + ".weight", and ".bias" where norms have one (ath_arch.layer_norm). */
ath_norm ath_load_norm(ath_loader *in, int64_t n, const char *name, int il);
/* A matrix of n_out rows of n_in values, n_experts of them (1: two dimensions). A tensor "X.scale" beside
 * "X.weight" is a factor on its products, one for all experts or one for each. */
void ath_load_matrix(ath_loader *in, ath_weight *w, int64_t n_in, int64_t n_out, int64_t n_experts, unsigned flags,
                     const char *name, int il);
/* Several matrices that follow one another in the rows of one tensor; n_out [n]: rows of each. */
void ath_load_parts(ath_loader *in, ath_weight *const *w, const int64_t *n_out, int n, int64_t n_in, const char *name,
                    int il);
/* The weights of a causal convolution as ath_conv_args has them: [n_taps][n]. */
float *ath_load_conv(ath_loader *in, int n_taps, int64_t n, const char *name, int il);
/* A table of n_rows rows of n_embd values that rows are taken from: stays in the file's layout. */
void ath_load_rows(ath_loader *in, ath_weight *w, int64_t n_embd, int64_t n_rows, const char *name);
/* A matrix that was made: n_experts of n_out rows of n_in floats, which live as long as the model. */
void ath_load_f32_matrix(ath_loader *in, ath_weight *w, const float *rows, int64_t n_in, int64_t n_out,
                         int64_t n_experts, bool repack);
/* Low-rank adapters (adapter.c). Begin checks their metadata; end refuses those that have a tensor that no weight took.
 * Between them the loader gives each weight its adapters: w is rows row0 ... of the n_all of the tensor of that name;
 * table: a table that rows are taken from. */
void ath_load_begin_adapters(ath_loader *in);
void ath_load_adapters(ath_loader *in, ath_weight *w, ath_str name, int64_t row0, int64_t n_all, bool table);
void ath_load_end_adapters(ath_loader *in);
/* Q, K, V and their optional biases from separate tensors or a fused attn_qkv; also wo and its bias. No K and V
 * for a layer that reads another's. */
void ath_load_attention(ath_loader *in, ath_layer *l, int il);
/* The last layers, as many as the file says (else n_default), read K and V of the last one of their kind, windowed or
 * full, that has its own. After windows are loaded, before weights. */
void ath_load_shared_kv(ath_loader *in, uint32_t n_default);
/* Dense gate, up, down with optional biases; gate and up may be fused in ffn_up, gate first. */
void ath_load_ffn(ath_loader *in, ath_layer *l, int il);
/* Dense up and down with optional biases: no gate. */
void ath_load_plain_ffn(ath_loader *in, ath_layer *l, int il);
/* The experts where the model has a router, else the dense feed-forward. */
void ath_load_feed_forward(ath_loader *in, ath_layer *l, int il);
/* Router and expert tensors with optional biases, in all forms that files have (gate and up of all experts
 * apart or merged, a tensor for each expert); the shared expert where the model has one. */
void ath_load_experts(ath_loader *in, ath_layer *l, int il);
/* The keys of a router as DeepSeek has them: kind (sigmoid: where the file says none), groups, scale, shared
 * experts. */
void ath_load_deepseek_router(ath_loader *in, bool sigmoid);
enum {
    ATH_LOAD_NEOX = 1,      /* rotary pairs (i, i + n_rot/2); else neighbours */
    ATH_LOAD_UNROUNDED = 2, /* YaRN's correction range is not rounded to whole pairs */
};
/* The last layers of some files predict further tokens: no part of plain decoding. First of all. */
void ath_load_drop_predicting_layers(ath_loader *in);
/* The rotary table of all layers, from the usual keys and tensors (with LongRoPE, both tables). */
void ath_load_rope(ath_loader *in, unsigned flags);
/* Windowed layers rotate with another base (rope.freq_base_swa) and without scaling. After windows and rope are loaded. */
void ath_load_window_rope(ath_loader *in, float default_base);
/* Windows: n tokens on layers that `period` makes windowed (il % period < period - 1; 0: all; 1: none), or by the
 * file's own attention.sliding_window_pattern. */
void ath_load_windows(ath_loader *in, uint32_t default_period);

/* Per-layer embeddings (parts.c): each layer gets a part of a token besides the residual stream. */
typedef struct ath_part_weights {
    ath_weight gate, proj; /* [n_each, n_embd], [n_embd, n_each] */
    ath_norm post_norm;    /* [n_embd] */
} ath_part_weights;
typedef struct ath_parts {
    int64_t n_each;        /* width of a part; 0: there are none */
    int64_t n_scratch;     /* floats per row at the start of ath_pass.scratch, kept through all layers */
    ath_weight embd;       /* [n_vocab, n_layers * n_each], file layout */
    ath_weight model_proj; /* [n_layers * n_each, n_embd] */
    float *proj_norm;      /* [n_each] */
    ath_part_weights *layers;
} ath_parts;
/* Fills *parts, with n_each = 0 where the file has none. n_scratch is to be added to the model's. */
void ath_load_layer_parts(ath_loader *in, ath_parts *parts);

/* ---- for architecture files: the usual blocks */

/* out [rows][w->n_out] = x . w */
void ath_block_product(const ath_pass *p, const ath_weight *w, const float *x, float *out);
/* The next n floats of scratch memory. */
float *ath_block_take(float **at, int64_t n);
/* The parts of all layers, from the embeddings in x: before the first layer. */
void ath_block_make_parts(const ath_model *m, ath_pass *p, const ath_parts *parts);
/* proj = norm(Wp (act(Wg x) * part)) */
void ath_block_part(const ath_model *m, ath_pass *p, const ath_parts *parts, int il, const float *x);

/* q, k, v of h: projections, biases, norms where present, rotation. A layer that reads another's K and V gets
 * q alone; without a matrix wv, v is k's projection. */
void ath_block_qkv(const ath_model *m, ath_pass *p, int il, const float *h);
/* Stores k, v; att = attention(q). */
void ath_block_attention(const ath_model *m, ath_pass *p, int il);
/* The same, then proj = att . wo (+ bias). */
void ath_block_attend(const ath_model *m, ath_pass *p, int il);
/* proj = down(act(gate(h)) * up(h)), or the chosen experts' sum of that where the layer has a router. */
void ath_block_ffn(const ath_model *m, ath_pass *p, int il, const float *h);
/* result [rows][n_embd] = down(act(gate(h)) * up(h)) */
void ath_block_dense(const ath_model *m, ath_pass *p, const ath_ffn *f, const float *h, float *result);
/* proj = the sum of the experts that the router chooses by router_h; without the one that every token takes.
 */
void ath_block_experts(const ath_model *m, ath_pass *p, int il, const float *h, const float *router_h);
/* y = norm(x), [rows][n_embd]. Returns y, or x if there is no norm at this place. */
const float *ath_block_norm(const ath_model *m, const ath_pass *p, const float *x, const ath_norm *norm, float *y,
                            int64_t rows);
void ath_block_add(const ath_model *m, ath_pass *p); /* x += residual_scale * proj */

/* The layers that most decoders share; experts where the model has them.
 *     x += norm(attention(norm(x)));  x += norm(feed_forward(norm(x)))     each norm where the layer has it */
void ath_layer_sequential(const ath_model *m, ath_pass *p, int il);
void ath_layer_attention(const ath_model *m, ath_pass *p, int il);    /* the first half of it */
void ath_layer_feed_forward(const ath_model *m, ath_pass *p, int il); /* the second */
/*     x += attention(h) + feed_forward(h)                                  h = norm(x) */
void ath_layer_parallel(const ath_model *m, ath_pass *p, int il);
/* The layers of delta_net.c:
 *     x += mixer(norm(x));   x += feed_forward(norm(x))                    mixer: gated DeltaNet or gated attention */
void ath_layer_hybrid(const ath_model *m, ath_pass *p, int il);
/* Weights of the usual layer: norms before attention and before a gated feed-forward, which may be experts. */
void ath_load_layer(ath_loader *in, ath_layer *l, int il);
/* The same with one norm, before both. */
void ath_load_parallel_layer(ath_loader *in, ath_layer *l, int il);
/* Keys and weights of all layers of a model that ath_layer_hybrid evaluates. grouped: see ath_delta_args. */
void ath_load_hybrid(ath_loader *in, ath_model *m, bool grouped);
/* One norm of head_dim for all heads of q, another for k; or, with qk_norm_whole, one as wide as all of them. */
void ath_load_head_norms(ath_loader *in, ath_layer *l, int il);
/* Norms on the outputs of attention and feed-forward. */
void ath_load_post_norms(ath_loader *in, ath_layer *l, int il);

#endif
