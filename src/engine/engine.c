/* The engine: opens a model file, makes the device, loads weights and vocabulary, and answers questions about them. */
#include "engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/threads.h"

ath_engine_params ath_engine_params_default(void) {
    return (ath_engine_params){
        .n_ubatch = 512,
        .repack = true,
        .cpu_mask = ~0u,
        .placement = {.poll = 50},
        .placement_batch = {.poll = 50},
        .yarn_ext_factor = -1,
        .yarn_attn_factor = -1,
        .yarn_beta_fast = -1,
        .yarn_beta_slow = -1,
    };
}

static void copy_key(const ath_gguf *gguf, const char *key, char *buf, size_t cap) {
    ath_str text = {0};
    if (ath_gguf_get_str(gguf, &text, NULL, "%s", key) != ATH_OK) text = (ath_str){0};
    snprintf(buf, cap, "%.*s", (int)(text.size < cap ? text.size : cap - 1), text.data ? text.data : "");
}

/* The type that holds most bytes of the file. */
static int main_tensor_type(const ath_gguf *gguf) {
    size_t bytes[ATH_TYPE_COUNT] = {0};
    int best = 0;
    for (int64_t i = 0; i < ath_gguf_n_tensors(gguf); i++) {
        const ath_gguf_tensor *t = ath_gguf_tensor_at(gguf, i);
        bytes[t->type] += t->size;
        if (bytes[t->type] > bytes[best]) best = t->type;
    }
    return best;
}

static void describe_file(ath_engine *e) {
    copy_key(e->gguf, "general.name", e->name, sizeof e->name);
    copy_key(e->gguf, "general.architecture", e->arch, sizeof e->arch);
    uint32_t file_type;
    if (ath_gguf_find(e->gguf, "general.file_type") &&
        ath_gguf_get_u32(e->gguf, &file_type, 0, NULL, "general.file_type") == ATH_OK)
        snprintf(e->file_type, sizeof e->file_type, "%s", ath_file_type_name(file_type));
    else if (ath_gguf_n_tensors(e->gguf) > 0)
        snprintf(e->file_type, sizeof e->file_type, "%s (by size)", ath_tensor_type_get(main_tensor_type(e->gguf))->name);
}

static ath_status check_weight_memory(const ath_engine *e, bool repack, ath_error *err) {
    uint64_t available = ath_memory_available();
    size_t file = ath_gguf_file_bytes(e->gguf), needed = file + file / 32; /* panels of K-quants are 3 % larger */
    if (!repack || needed <= available) return ATH_OK;
    return ATH_FAIL(err, ATH_ERR_NOMEM,
                    "%s: the weights need %zu MiB of memory and %zu MiB are available: take a smaller quantisation, or "
                    "--no-repack, which reads them from the file and is many times slower",
                    ath_gguf_path(e->gguf), needed >> 20, (size_t)(available >> 20));
}

static ath_status open_device(ath_engine *e, const ath_engine_params *p, ath_error *err) {
    ath_device_params dp = {
        .n_threads = e->n_threads, .n_threads_batch = e->n_threads_batch, .cpu_mask = p->cpu_mask, .max_rows = e->n_ubatch,
        .placement = &p->placement, .placement_batch = &p->placement_batch, .exact = p->exact_activations};
    ATH_TRY(ath_device_cpu_create(&e->device, &dp, err));
    if (ath_device_priority_refused(e->device))
        ath_log_line(&e->log, ATH_LOG_WARN, "the system refuses the priority that was asked for: threads keep their own");
    return ATH_OK;
}

static ath_status load_model(ath_engine *e, const ath_engine_params *p, const ath_adapter_file *adapters,
                             ath_error *err) {
    ath_model_params mp = {
        .dev = e->device,
        .repack = p->repack,
        .check_tensors = p->check_tensors,
        .rope = {p->rope_scaling, p->rope_freq_base, p->rope_freq_scale, p->rope_scale, p->yarn_orig_ctx,
                 p->yarn_ext_factor, p->yarn_attn_factor, p->yarn_beta_fast, p->yarn_beta_slow},
        .adapters = adapters,
        .n_adapters = p->n_adapters,
        .log = &e->log,
    };
    return ath_model_load(&e->model, e->gguf, &mp, err);
}

/* Adapter files are open while the model is loaded. */
static ath_status open_model(ath_engine *e, const ath_engine_params *p, ath_error *err) {
    int n = p->metadata_only ? 0 : p->n_adapters;
    ath_adapter_file *files = calloc((size_t)n + 1, sizeof *files);
    ath_gguf **open = calloc((size_t)n + 1, sizeof *open);
    ath_status status = files && open ? ATH_OK : ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %d adapters", n);
    for (int i = 0; status == ATH_OK && i < n; i++) {
        status = ath_gguf_open(&open[i], p->adapters[i].path, err);
        files[i] = (ath_adapter_file){open[i], p->adapters[i].scale};
    }
    if (status == ATH_OK) status = load_model(e, p, files, err);
    for (int i = 0; open && i < n; i++) ath_gguf_close(open[i]);
    free(open);
    free(files);
    return status;
}

/* Kernel of the weight type that does most of a layer's work. */
static const char *main_kernel(const ath_engine *e) {
    const ath_ffn *f = &e->model->layers[0].ffn;
    return ath_device_weight_kernel(e->device, f->gate.data ? &f->gate : &f->up);
}

static ath_status check_vocabulary(ath_engine *e, ath_error *err) {
    if (!e->tokenizer || !e->model || ath_tokenizer_n_vocab(e->tokenizer) <= e->model->n_vocab) return ATH_OK;
    return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: %d tokens in the vocabulary, but token_embd.weight has %lld rows",
                    ath_gguf_path(e->gguf), ath_tokenizer_n_vocab(e->tokenizer), (long long)e->model->n_vocab);
}

static ath_status open_all(ath_engine *e, const ath_engine_params *p, ath_error *err) {
    ATH_TRY(ath_gguf_open(&e->gguf, p->model_path, err));
    if (p->kv_overrides) ATH_TRY(ath_gguf_override(e->gguf, p->kv_overrides, err));
    describe_file(e);
    if (!p->metadata_only) {
        ATH_TRY(check_weight_memory(e, p->repack && !p->exact_activations, err));
        ATH_TRY(open_device(e, p, err));
    }
    ath_status status = open_model(e, p, &e->model_error);
    if (status != ATH_OK && !p->metadata_only) {
        if (err) *err = e->model_error;
        return status;
    }
    if (e->model && e->device) e->matmul_kernel = main_kernel(e);
    if (ath_tokenizer_create(&e->tokenizer, e->gguf, p->closest_pre, &e->log, &e->tokenizer_error) != ATH_OK)
        ath_log_line(&e->log, ATH_LOG_WARN, "text can't be tokenized with this file: %s", e->tokenizer_error.message);
    return check_vocabulary(e, err);
}

ath_status ath_engine_open(ath_engine **out, const ath_engine_params *p, ath_error *err) {
    *out = NULL;
    if (!p->model_path) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "no model file was named (-m MODEL.gguf)");
    if (p->n_ubatch < 1 || p->n_ubatch > 1 << 16)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "--ubatch-size %d: between 1 and 65536 are possible", p->n_ubatch);
    ath_engine *e = calloc(1, sizeof *e);
    if (!e) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for an engine");
    double start = ath_now_ms();
    e->log = (ath_log){p->log, p->log_user};
    e->n_threads = p->n_threads > 0 ? p->n_threads : ath_threads_default_count();
    e->n_threads_batch = p->n_threads_batch > 0 ? p->n_threads_batch : e->n_threads;
    e->n_ubatch = p->n_ubatch;
    e->matmul_kernel = "";
    ath_status status = open_all(e, p, err);
    e->load_ms = ath_now_ms() - start;
    if (status != ATH_OK)
        ath_engine_close(&e);
    else
        *out = e;
    return status;
}

void ath_engine_close(ath_engine **engine) {
    if (!engine || !*engine) return;
    ath_engine *e = *engine;
    ath_tokenizer_free(e->tokenizer);
    ath_model_free(e->model);
    ath_device_free(e->device);
    ath_gguf_close(e->gguf);
    free(e);
    *engine = NULL;
}

void ath_engine_get_info(const ath_engine *e, ath_engine_info *info) {
    const ath_model *m = e->model;
    *info = (ath_engine_info){
        .path = ath_gguf_path(e->gguf),
        .name = e->name,
        .arch = e->arch,
        .file_type = e->file_type,
        .tokenizer = e->tokenizer ? ath_tokenizer_model(e->tokenizer) : "",
        .pre_tokenizer = e->tokenizer ? ath_tokenizer_pre(e->tokenizer) : "",
        .device = e->device ? ath_device_describe(e->device) : "",
        .matmul_kernel = e->matmul_kernel,
        .gguf_version = ath_gguf_version(e->gguf),
        .n_parts = ath_gguf_n_parts(e->gguf),
        .n_threads = e->n_threads,
        .n_threads_batch = e->n_threads_batch,
        .n_ubatch = e->n_ubatch,
        .file_bytes = ath_gguf_file_bytes(e->gguf),
        .load_ms = e->load_ms,
        .n_vocab = e->tokenizer ? ath_tokenizer_n_vocab(e->tokenizer) : 0,
    };
    if (!m) return;
    info->n_vocab = m->n_vocab;
    info->n_ctx_train = m->n_ctx_train;
    info->n_ctx_max = m->n_ctx_max;
    info->n_embd = m->n_embd;
    info->n_ff = m->router.n_experts ? m->n_ff_expert : m->n_ff;
    info->n_layers = m->n_layers;
    const ath_layer *l = m->layers;
    while (!l->n_heads && l < m->layers + m->n_layers - 1) l++;
    info->n_heads = l->n_heads;
    info->n_kv_heads = l->n_kv_heads;
    info->n_params = m->n_params;
    info->weight_bytes = m->weight_bytes;
}

ath_layer_info ath_engine_layer(const ath_engine *e, int layer) {
    if (!e->model || layer < 0 || layer >= e->model->n_layers) return (ath_layer_info){0};
    const ath_layer *l = &e->model->layers[layer];
    return (ath_layer_info){.cache = l->n_state           ? ATH_LAYER_RECURRENT
                                     : l->kv_layer != layer ? ATH_LAYER_SHARED
                                     : l->window          ? ATH_LAYER_WINDOW
                                                          : ATH_LAYER_FULL,
                            .n_heads = l->n_heads,
                            .n_kv_heads = l->n_kv_heads,
                            .head_dim_k = l->head_dim_k,
                            .head_dim_v = l->head_dim_v,
                            .v_in_k = l->v_in_k,
                            .window = l->window,
                            .state_bytes = (size_t)l->n_state * sizeof(float)};
}

const char *ath_known_architectures(void) { return ath_arch_names(); }

/* ---- tokens */

static ath_status no_tokenizer(const ath_engine *e, ath_error *err) {
    if (err) *err = e->tokenizer_error;
    return e->tokenizer_error.code;
}

ath_status ath_tokenize(const ath_engine *e, const char *text, size_t size, unsigned flags, ath_token **tokens,
                        size_t *n, ath_error *err) {
    if (!e->tokenizer) return no_tokenizer(e, err);
    return ath_tokenizer_encode(e->tokenizer, text, size, flags, tokens, n, err);
}

size_t ath_token_piece(const ath_engine *e, ath_token token, bool special, char *buf, size_t cap) {
    return e->tokenizer ? ath_tokenizer_piece(e->tokenizer, token, special, buf, cap) : 0;
}

bool ath_token_is_eog(const ath_engine *e, ath_token token) {
    return e->tokenizer && ath_tokenizer_is_eog(e->tokenizer, token);
}

ath_token ath_token_bos(const ath_engine *e) { return e->tokenizer ? ath_tokenizer_bos(e->tokenizer) : -1; }
ath_token ath_token_eos(const ath_engine *e) { return e->tokenizer ? ath_tokenizer_eos(e->tokenizer) : -1; }
bool ath_engine_adds_bos(const ath_engine *e) { return e->tokenizer && ath_tokenizer_add_bos(e->tokenizer); }
