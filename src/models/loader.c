/* Loading: keys and tensors of a GGUF into a model, every shape checked against the hyper-parameters. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/model.h"

void ath_load_fail(ath_loader *in, ath_status code, const char *format, ...) {
    if (in->status != ATH_OK) return;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    in->status = ATH_FAIL(in->err, code, "%s: %s", ath_gguf_path(in->gguf), text);
}

/* One more thing that ends with the model; NULL after a failure. */
static void **own(ath_loader *in) {
    ath_model *m = in->model;
    size_t n = m->n_owned;
    if (in->status != ATH_OK) return NULL;
    if ((n & (n - 1)) == 0) {
        void **more = realloc(m->owned, (n ? 2 * n : 1) * sizeof *more);
        if (!more) {
            ath_load_fail(in, ATH_ERR_NOMEM, "no memory for a model");
            return NULL;
        }
        m->owned = more;
    }
    m->owned[m->n_owned++] = NULL;
    return &m->owned[n];
}

void *ath_load_alloc(ath_loader *in, size_t n, size_t size) {
    void **owned = own(in);
    if (!owned) return NULL;
    *owned = calloc(n, size);
    if (!*owned) ath_load_fail(in, ATH_ERR_NOMEM, "no memory for %zu MiB of a model", n * size >> 20);
    return *owned;
}

/* ---- keys */

float ath_load_f32(ath_loader *in, const char *key, float fallback) {
    float value = fallback;
    if (in->status == ATH_OK) in->status = ath_gguf_get_f32(in->gguf, &value, fallback, in->err, "%s.%s", in->arch, key);
    if (!isfinite(value)) ath_load_fail(in, ATH_ERR_FORMAT, "key %s.%s is %g", in->arch, key, (double)value);
    return value;
}

uint32_t ath_load_u32(ath_loader *in, const char *key, uint32_t fallback) {
    uint32_t value = fallback;
    if (in->status == ATH_OK) in->status = ath_gguf_get_u32(in->gguf, &value, fallback, in->err, "%s.%s", in->arch, key);
    return value;
}

void ath_load_u32_array(ath_loader *in, const char *key, uint32_t *out, int64_t n, uint32_t fallback) {
    if (in->status == ATH_OK)
        in->status = ath_gguf_get_u32_array(in->gguf, out, n, fallback, in->err, "%s.%s", in->arch, key);
}

/* ---- tensors */

static const ath_gguf_tensor *find(ath_loader *in, unsigned flags, const char *format, int il, char name[128]) {
    snprintf(name, 128, format, il); /* formats are literals of the architecture files */
    if (in->status != ATH_OK) return NULL;
    const ath_gguf_tensor *t = ath_gguf_find_tensor(in->gguf, name);
    if (!t && !(flags & ATH_LOAD_OPTIONAL)) ath_load_fail(in, ATH_ERR_FORMAT, "tensor %s is missing", name);
    return t;
}

static void shape_text(char *buf, size_t cap, const ath_gguf_tensor *t) {
    int at = snprintf(buf, cap, "[%lld", (long long)t->ne[0]);
    for (int i = 1; i < t->n_dims; i++) at += snprintf(buf + at, cap - (size_t)at, ", %lld", (long long)t->ne[i]);
    snprintf(buf + at, cap - (size_t)at, "]");
}

static bool check_shape(ath_loader *in, const ath_gguf_tensor *t, const char *name, int64_t ne0, int64_t ne1, int64_t ne2) {
    if (t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == 1) return true;
    char shape[128];
    shape_text(shape, sizeof shape, t);
    ath_load_fail(in, ATH_ERR_FORMAT, "tensor %s has shape %s, expected [%lld, %lld, %lld]", name, shape, (long long)ne0,
                  (long long)ne1, (long long)ne2);
    return false;
}

static bool check_decodable(ath_loader *in, const ath_gguf_tensor *t, const char *name) {
    const ath_tensor_type_info *info = ath_tensor_type_get(t->type);
    if (info->dequantize) return true;
    ath_load_fail(in, ATH_ERR_UNSUPPORTED, "tensor %s has type %s, which is no weight type", name, info->name);
    return false;
}

static bool all_finite(const float *x, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * 0; /* 0 unless a value is NaN or infinite */
    return sum == 0;
}

/* --check-tensors: decodes everything once. */
static void check_finite(ath_loader *in, const ath_gguf_tensor *t, const char *name) {
    const ath_tensor_type_info *info = ath_tensor_type_get(t->type);
    enum { CHUNK = 8192 };
    float buf[CHUNK];
    int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t take = n - i < CHUNK ? n - i : CHUNK;
        info->dequantize(t->data + i / info->block_size * info->block_bytes, buf, take);
        if (!all_finite(buf, take)) {
            ath_load_fail(in, ATH_ERR_FORMAT, "tensor %s holds NaN or infinity near element %lld", name, (long long)i);
            return;
        }
    }
}

float *ath_load_vectors(ath_loader *in, int64_t width, int64_t n_vectors, unsigned flags, const char *format, int il) {
    char name[128];
    const ath_gguf_tensor *t = find(in, flags, format, il, name);
    if (!t || !check_shape(in, t, name, width, n_vectors, 1) || !check_decodable(in, t, name)) return NULL;
    ath_model *m = in->model;
    int64_t n = width * n_vectors;
    m->n_params += (uint64_t)n;
    float *x = ath_load_alloc(in, (size_t)n, sizeof *x);
    if (!x) return NULL;
    ath_tensor_type_get(t->type)->dequantize(t->data, x, n);
    if (in->params->check_tensors && !all_finite(x, n))
        ath_load_fail(in, ATH_ERR_FORMAT, "tensor %s holds NaN or infinity", name);
    m->weight_bytes += (size_t)n * sizeof *x;
    return x;
}

float *ath_load_conv(ath_loader *in, int n_taps, int64_t n, const char *format, int il) {
    const float *x = ath_load_vectors(in, n_taps, n, 0, format, il);
    float *y = x ? ath_load_alloc(in, (size_t)(n * n_taps), sizeof *y) : NULL;
    for (int64_t c = 0; y && c < n; c++)
        for (int tap = 0; tap < n_taps; tap++) y[tap * n + c] = x[c * n_taps + tap];
    return y;
}

float *ath_load_vector(ath_loader *in, int64_t n, unsigned flags, const char *format, int il) {
    return ath_load_vectors(in, n, 1, flags, format, il);
}

ath_norm ath_load_norm(ath_loader *in, int64_t n, const char *name, int il) {
    char format[128];
    ath_norm norm = {NULL, NULL};
    snprintf(format, sizeof format, "%s.weight", name);
    norm.weight = ath_load_vector(in, n, 0, format, il);
    snprintf(format, sizeof format, "%s.bias", name);
    if (in->model->arch->layer_norm) norm.bias = ath_load_vector(in, n, ATH_LOAD_OPTIONAL, format, il);
    return norm;
}

/* The factor that "X.scale" puts on what "X.weight" gives: one, or one per expert. */
static const float *load_scale(ath_loader *in, const ath_gguf_tensor *t, int64_t n_experts) {
    enum { SUFFIX = sizeof "weight" - 1 };
    char name[128];
    if (t->name.size <= SUFFIX || t->name.size >= sizeof name) return NULL;
    snprintf(name, sizeof name, "%.*sscale", (int)(t->name.size - SUFFIX), t->name.data);
    const ath_gguf_tensor *scale = ath_gguf_find_tensor(in->gguf, name);
    if (!scale) return NULL;
    bool one = scale->ne[0] == 1 && n_experts > 1;
    float *x = ath_load_vector(in, one ? 1 : n_experts, 0, name, 0);
    float *all = one ? ath_load_alloc(in, (size_t)n_experts, sizeof *all) : x;
    for (int64_t e = 0; x && all && e < n_experts && one; e++) all[e] = *x;
    return all;
}

static void init_weight(ath_loader *in, ath_weight *w, const uint8_t *const *experts, bool repack) {
    ath_model *m = in->model;
    ath_device *dev = in->params->dev;
    if (!dev || in->status != ATH_OK) return;
    const float *scale = w->scale;
    repack = repack && in->params->repack;
    in->status = experts ? ath_device_experts_init(dev, w, w->type, experts, w->n_in, w->n_out, w->n_experts,
                                                   repack, in->err)
                         : ath_device_weight_init(dev, w, w->type, w->data, w->n_in, w->n_out, w->n_experts,
                                                  repack, in->err);
    if (in->status == ATH_ERR_NOMEM) {
        in->status = ATH_OK;
        ath_load_fail(in, ATH_ERR_NOMEM,
                      "not enough memory for the weights: the file holds %zu MiB, %zu MiB were loaded, %llu MiB are left",
                      ath_gguf_file_bytes(in->gguf) >> 20, m->weight_bytes >> 20,
                      (unsigned long long)ath_memory_available() >> 20);
    }
    w->scale = scale;
    m->weight_bytes += w->panels ? w->panel_bytes : (size_t)(w->n_out * w->n_experts) * w->row_bytes;
}

/* Rows row0 .. row0 + n_out - 1 of tensor t, of each of its experts, as a weight. */
static void init_rows(ath_loader *in, ath_weight *w, const ath_gguf_tensor *t, int64_t row0, int64_t n_out,
                      int64_t n_experts, unsigned flags) {
    if (in->status != ATH_OK) return;
    *w = (ath_weight){.type = t->type, .n_in = t->ne[0], .n_out = n_out, .n_experts = n_experts};
    w->row_bytes = ath_tensor_type_row_bytes(t->type, t->ne[0]);
    w->data = t->data + (size_t)row0 * w->row_bytes;
    if (!(flags & ATH_LOAD_UNSCALED)) w->scale = load_scale(in, t, n_experts);
    const uint8_t **experts = NULL;
    if (n_experts > 1 && n_out != t->ne[1]) {
        experts = ath_load_alloc(in, (size_t)n_experts, sizeof *experts);
        for (int64_t e = 0; experts && e < n_experts; e++)
            experts[e] = t->data + (size_t)(e * t->ne[1] + row0) * w->row_bytes;
    }
    init_weight(in, w, experts, !(flags & ATH_LOAD_UNPACKED));
    ath_load_adapters(in, w, t->name, row0, t->ne[1], flags & ATH_LOAD_UNPACKED);
}

void ath_load_f32_matrix(ath_loader *in, ath_weight *w, const float *rows, int64_t n_in, int64_t n_out,
                         int64_t n_experts, bool repack) {
    *w = (ath_weight){.type = ATH_TYPE_F32, .n_in = n_in, .n_out = n_out, .n_experts = n_experts,
                      .data = (const uint8_t *)rows};
    w->row_bytes = ath_tensor_type_row_bytes(ATH_TYPE_F32, n_in);
    init_weight(in, w, NULL, repack);
}

/* A tensor whose rows were copied. */
static void release(ath_loader *in, const ath_weight *w, const ath_gguf_tensor *t) {
    if (w->panels) ath_gguf_release_tensor(in->gguf, t);
}

void ath_load_matrix(ath_loader *in, ath_weight *w, int64_t n_in, int64_t n_out, int64_t n_experts, unsigned flags,
                     const char *format, int il) {
    char name[128];
    const ath_gguf_tensor *t = find(in, flags, format, il, name);
    if (!t || !check_shape(in, t, name, n_in, n_out, n_experts) || !check_decodable(in, t, name)) return;
    in->model->n_params += (uint64_t)(n_in * n_out * n_experts);
    if (in->params->check_tensors) check_finite(in, t, name);
    init_rows(in, w, t, 0, n_out, n_experts, flags);
    release(in, w, t);
}

void ath_load_rows(ath_loader *in, ath_weight *w, int64_t n_embd, int64_t n_rows, const char *format) {
    char name[128];
    const ath_gguf_tensor *t = find(in, 0, format, 0, name);
    if (!t || !check_shape(in, t, name, n_embd, n_rows, 1) || !check_decodable(in, t, name)) return;
    in->model->n_params += (uint64_t)(n_embd * n_rows);
    if (in->params->check_tensors) check_finite(in, t, name);
    size_t counted = in->model->weight_bytes; /* only the rows that occur are ever read from the map */
    init_rows(in, w, t, 0, n_rows, 1, ATH_LOAD_UNPACKED);
    in->model->weight_bytes = counted;
}

void ath_load_parts(ath_loader *in, ath_weight *const *w, const int64_t *n_out, int n, int64_t n_in, const char *format,
                    int il) {
    char name[128];
    const ath_gguf_tensor *t = find(in, 0, format, il, name);
    int64_t rows = 0, row = 0;
    for (int i = 0; i < n; i++) rows += n_out[i];
    if (!t || !check_shape(in, t, name, n_in, rows, 1) || !check_decodable(in, t, name)) return;
    in->model->n_params += (uint64_t)(n_in * rows);
    if (in->params->check_tensors) check_finite(in, t, name);
    for (int i = 0; i < n; row += n_out[i++]) init_rows(in, w[i], t, row, n_out[i], 1, 0);
    release(in, w[n - 1], t);
}

/* ---- the usual groups */

static void load_kv(ath_loader *in, ath_layer *l, int64_t n_k, int64_t n_v, int il) {
    int64_t n_embd = in->model->n_embd;
    unsigned v_flags = l->v_may_be_k && n_k == n_v ? ATH_LOAD_OPTIONAL : 0;
    ath_load_matrix(in, &l->wk, n_embd, n_k, 1, 0, "blk.%d.attn_k.weight", il);
    ath_load_matrix(in, &l->wv, n_embd, n_v, 1, v_flags, "blk.%d.attn_v.weight", il);
    l->bk = ath_load_vector(in, n_k, ATH_LOAD_OPTIONAL, "blk.%d.attn_k.bias", il);
    l->bv = ath_load_vector(in, n_v, ATH_LOAD_OPTIONAL, "blk.%d.attn_v.bias", il);
}

void ath_load_attention(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd;
    int64_t n_q = (int64_t)l->n_heads * l->head_dim_k * (l->gated ? 2 : 1);
    int64_t n_k = (int64_t)l->n_kv_heads * l->head_dim_k, n_v = (int64_t)l->n_kv_heads * l->head_dim_v;
    char name[128];
    if (find(in, ATH_LOAD_OPTIONAL, "blk.%d.attn_qkv.weight", il, name)) {
        ath_load_parts(in, (ath_weight *[]){&l->wq, &l->wk, &l->wv}, (int64_t[]){n_q, n_k, n_v}, 3, n_embd,
                       "blk.%d.attn_qkv.weight", il);
        float *bias = ath_load_vector(in, n_q + n_k + n_v, ATH_LOAD_OPTIONAL, "blk.%d.attn_qkv.bias", il);
        if (bias) l->bq = bias, l->bk = bias + n_q, l->bv = bias + n_q + n_k;
    } else {
        ath_load_matrix(in, &l->wq, n_embd, n_q, 1, 0, "blk.%d.attn_q.weight", il);
        l->bq = ath_load_vector(in, n_q, ATH_LOAD_OPTIONAL, "blk.%d.attn_q.bias", il);
        if (l->kv_layer == il) load_kv(in, l, n_k, n_v, il);
    }
    ath_load_matrix(in, &l->wo, (int64_t)l->n_heads * l->head_dim_v, n_embd, 1, 0, "blk.%d.attn_output.weight", il);
    l->bo = ath_load_vector(in, n_embd, ATH_LOAD_OPTIONAL, "blk.%d.attn_output.bias", il);
}

void ath_load_plain_ffn(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd, n_ff = l->n_ff;
    ath_load_matrix(in, &l->ffn.up, n_embd, n_ff, 1, 0, "blk.%d.ffn_up.weight", il);
    ath_load_matrix(in, &l->ffn.down, n_ff, n_embd, 1, 0, "blk.%d.ffn_down.weight", il);
    l->ffn.b_up = ath_load_vector(in, n_ff, ATH_LOAD_OPTIONAL, "blk.%d.ffn_up.bias", il);
    l->ffn.b_down = ath_load_vector(in, n_embd, ATH_LOAD_OPTIONAL, "blk.%d.ffn_down.bias", il);
}

static void load_fused_ffn(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd, n_ff = l->n_ff;
    ath_ffn *f = &l->ffn;
    ath_load_parts(in, (ath_weight *[]){&f->gate, &f->up}, (int64_t[]){n_ff, n_ff}, 2, n_embd, "blk.%d.ffn_up.weight", il);
    ath_load_matrix(in, &f->down, n_ff, n_embd, 1, 0, "blk.%d.ffn_down.weight", il);
    f->b_gate = ath_load_vector(in, 2 * n_ff, ATH_LOAD_OPTIONAL, "blk.%d.ffn_up.bias", il);
    f->b_up = f->b_gate ? f->b_gate + n_ff : NULL;
    f->b_down = ath_load_vector(in, n_embd, ATH_LOAD_OPTIONAL, "blk.%d.ffn_down.bias", il);
}

void ath_load_ffn(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd, n_ff = l->n_ff;
    char name[128];
    const ath_gguf_tensor *up = find(in, 0, "blk.%d.ffn_up.weight", il, name);
    if (up && up->ne[0] == n_embd && up->ne[1] == 2 * n_ff && up->ne[2] == 1 && up->ne[3] == 1) {
        load_fused_ffn(in, l, il);
        return;
    }
    ath_load_matrix(in, &l->ffn.gate, n_embd, n_ff, 1, 0, "blk.%d.ffn_gate.weight", il);
    l->ffn.b_gate = ath_load_vector(in, n_ff, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate.bias", il);
    ath_load_plain_ffn(in, l, il);
}

static void load_shared_expert(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd, n_ff = in->model->n_ff_shared;
    ath_load_matrix(in, &l->shared.gate, n_embd, n_ff, 1, 0, "blk.%d.ffn_gate_shexp.weight", il);
    ath_load_matrix(in, &l->shared.up, n_embd, n_ff, 1, 0, "blk.%d.ffn_up_shexp.weight", il);
    ath_load_matrix(in, &l->shared.down, n_ff, n_embd, 1, 0, "blk.%d.ffn_down_shexp.weight", il);
    ath_load_matrix(in, &l->shared_router, n_embd, 1, 1, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate_inp_shexp.weight", il);
}

/* "blk.N.ffn_up.E.weight", one tensor per expert, as files of 2023 have them. */
static void load_single_experts(ath_loader *in, ath_weight *w, int64_t n_in, int64_t n_out, int64_t n,
                                const char *what, int il) {
    const uint8_t **experts = ath_load_alloc(in, (size_t)n, sizeof *experts);
    const ath_gguf_tensor *first = NULL, *t = NULL;
    char name[128], format[64];
    for (int64_t e = 0; e < n; e++) {
        snprintf(format, sizeof format, "blk.%%d.%s.%lld.weight", what, (long long)e);
        t = find(in, 0, format, il, name);
        if (!t || !check_shape(in, t, name, n_in, n_out, 1) || !check_decodable(in, t, name)) return;
        if (in->params->check_tensors) check_finite(in, t, name);
        if (!first) first = t;
        if (t->type != first->type)
            ath_load_fail(in, ATH_ERR_UNSUPPORTED,
                          "tensor %s has another type than those of the experts before it", name);
        experts[e] = t->data;
    }
    if (in->status != ATH_OK) return;
    in->model->n_params += (uint64_t)(n_in * n_out * n);
    *w = (ath_weight){.type = first->type, .n_in = n_in, .n_out = n_out, .n_experts = n, .data = experts[0]};
    w->row_bytes = ath_tensor_type_row_bytes(first->type, n_in);
    init_weight(in, w, experts, true);
}

/* Gate and up of each expert in one tensor, gate first. */
static void load_merged_gate_up(ath_loader *in, ath_ffn *f, const ath_gguf_tensor *t, const char *name,
                                int il) {
    const ath_model *m = in->model;
    int64_t n_ff = m->n_ff_expert, n = m->router.n_experts;
    if (!check_shape(in, t, name, m->n_embd, 2 * n_ff, n) || !check_decodable(in, t, name)) return;
    in->model->n_params += (uint64_t)(m->n_embd * 2 * n_ff * n);
    if (in->params->check_tensors) check_finite(in, t, name);
    init_rows(in, &f->gate, t, 0, n_ff, n, 0);
    init_rows(in, &f->up, t, n_ff, n_ff, n, 0);
    release(in, &f->up, t);
    float *bias = ath_load_vectors(in, 2 * n_ff, n, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate_up_exps.bias", il);
    if (!bias) return;
    f->b_gate = ath_load_alloc(in, (size_t)(n_ff * n), sizeof *bias);
    f->b_up = ath_load_alloc(in, (size_t)(n_ff * n), sizeof *bias);
    for (int64_t e = 0; f->b_gate && f->b_up && e < n; e++) {
        memcpy(f->b_gate + e * n_ff, bias + 2 * e * n_ff, (size_t)n_ff * sizeof *bias);
        memcpy(f->b_up + e * n_ff, bias + (2 * e + 1) * n_ff, (size_t)n_ff * sizeof *bias);
    }
}

static void load_gate_up(ath_loader *in, ath_ffn *f, int il) {
    const ath_model *m = in->model;
    int64_t n_embd = m->n_embd, n_ff = m->n_ff_expert, n = m->router.n_experts;
    char name[128];
    const ath_gguf_tensor *merged = find(in, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate_up_exps.weight", il, name);
    if (merged) {
        load_merged_gate_up(in, f, merged, name, il);
        return;
    }
    ath_load_matrix(in, &f->gate, n_embd, n_ff, n, 0, "blk.%d.ffn_gate_exps.weight", il);
    ath_load_matrix(in, &f->up, n_embd, n_ff, n, 0, "blk.%d.ffn_up_exps.weight", il);
    f->b_gate = ath_load_vectors(in, n_ff, n, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate_exps.bias", il);
    f->b_up = ath_load_vectors(in, n_ff, n, ATH_LOAD_OPTIONAL, "blk.%d.ffn_up_exps.bias", il);
}

void ath_load_experts(ath_loader *in, ath_layer *l, int il) {
    const ath_model *m = in->model;
    int64_t n_embd = m->n_embd, n_ff = m->n_ff_expert, n = m->router.n_experts;
    ath_ffn *f = &l->ffn;
    char name[128];
    ath_load_matrix(in, &l->router, n_embd, n, 1, ATH_LOAD_UNSCALED, "blk.%d.ffn_gate_inp.weight", il);
    l->b_router = ath_load_vector(in, n, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate_inp.bias", il);
    l->b_choice = ath_load_vector(in, n, ATH_LOAD_OPTIONAL, "blk.%d.exp_probs_b.bias", il);
    if (m->n_ff_shared) load_shared_expert(in, l, il);
    if (find(in, ATH_LOAD_OPTIONAL, "blk.%d.ffn_gate.0.weight", il, name)) {
        load_single_experts(in, &f->gate, n_embd, n_ff, n, "ffn_gate", il);
        load_single_experts(in, &f->up, n_embd, n_ff, n, "ffn_up", il);
        load_single_experts(in, &f->down, n_ff, n_embd, n, "ffn_down", il);
        return;
    }
    load_gate_up(in, f, il);
    ath_load_matrix(in, &f->down, n_ff, n_embd, n, 0, "blk.%d.ffn_down_exps.weight", il);
    f->b_down = ath_load_vectors(in, n_embd, n, ATH_LOAD_OPTIONAL, "blk.%d.ffn_down_exps.bias", il);
}

void ath_load_deepseek_router(ath_loader *in, bool sigmoid) {
    ath_model *m = in->model;
    ath_router *r = &m->router;
    uint32_t kind = ath_load_u32(in, "expert_gating_func", 0);
    if (kind > 2)
        ath_load_fail(in, ATH_ERR_UNSUPPORTED,
                      "key %s.expert_gating_func is %u: 1 (softmax) and 2 (sigmoid) are known", in->arch,
                      kind);
    r->sigmoid = kind ? kind == 2 : sigmoid;
    r->renormalise = ath_load_u32(in, "expert_weights_norm", 0) != 0;
    float scale = ath_load_f32(in, "expert_weights_scale", 1);
    if (scale != 0) r->scale = scale;
    r->n_groups = (int)ath_load_u32(in, "expert_group_count", 0);
    r->n_groups_used = (int)ath_load_u32(in, "expert_group_used_count", 0);
    uint32_t n_shared = ath_load_u32(in, "expert_shared_count", 0);
    m->n_ff_shared = m->n_ff_expert * (int64_t)n_shared;
    bool grouped = r->n_groups > 1;
    bool divides = grouped && r->n_groups_used >= 1 && r->n_groups_used <= r->n_groups &&
                   r->n_experts % r->n_groups == 0 &&
                   r->n_used <= r->n_experts / r->n_groups * r->n_groups_used;
    if (r->n_groups < 0 || (grouped && !divides) || n_shared > 1024)
        ath_load_fail(in, ATH_ERR_FORMAT,
                      "%d of %d groups and %u shared experts make no sense with %d of %d experts",
                      r->n_groups_used, r->n_groups, n_shared, r->n_used, r->n_experts);
}

void ath_load_feed_forward(ath_loader *in, ath_layer *l, int il) {
    if (in->model->router.n_experts)
        ath_load_experts(in, l, il);
    else
        ath_load_ffn(in, l, il);
}

void ath_load_parallel_layer(ath_loader *in, ath_layer *l, int il) {
    l->attn_norm = ath_load_norm(in, in->model->n_embd, "blk.%d.attn_norm", il);
    ath_load_attention(in, l, il);
    ath_load_ffn(in, l, il);
}

void ath_load_layer(ath_loader *in, ath_layer *l, int il) {
    int64_t n_embd = in->model->n_embd;
    l->attn_norm = ath_load_norm(in, n_embd, "blk.%d.attn_norm", il);
    ath_load_attention(in, l, il);
    l->ffn_norm = ath_load_norm(in, n_embd, "blk.%d.ffn_norm", il);
    ath_load_feed_forward(in, l, il);
}

void ath_load_head_norms(ath_loader *in, ath_layer *l, int il) {
    bool whole = in->model->qk_norm_whole;
    int64_t n_q = whole ? l->n_heads : 1, n_k = whole ? l->n_kv_heads : 1;
    l->q_norm = ath_load_vector(in, n_q * l->head_dim_k, 0, "blk.%d.attn_q_norm.weight", il);
    if (l->kv_layer == il) l->k_norm = ath_load_vector(in, n_k * l->head_dim_k, 0, "blk.%d.attn_k_norm.weight", il);
}

void ath_load_post_norms(ath_loader *in, ath_layer *l, int il) {
    l->post_attn_norm = ath_load_norm(in, in->model->n_embd, "blk.%d.post_attention_norm", il);
    l->post_ffn_norm = ath_load_norm(in, in->model->n_embd, "blk.%d.post_ffw_norm", il);
}

/* ---- hyper-parameters that every decoder has */

static void load_dimensions(ath_loader *in) {
    ath_model *m = in->model;
    m->n_layers = (int)ath_load_u32(in, "block_count", 0);
    m->n_embd = ath_load_u32(in, "embedding_length", 0);
    m->n_ctx_train = ath_load_u32(in, "context_length", 0);
    const char *eps = m->arch->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    m->norm_eps = ath_load_f32(in, eps, 0);
    m->router.n_experts = (int)ath_load_u32(in, "expert_count", 0);
    m->router.n_used = (int)ath_load_u32(in, "expert_used_count", 0);
    m->embd_scale = m->residual_scale = m->logit_scale = 1;
    m->router.renormalise = true;
    m->router.scale = 1;
    m->yarn_factor = 1;
    if (in->status != ATH_OK) return;
    if (m->n_layers < 1 || m->n_layers > 4096)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.block_count is missing or out of range (%d)", in->arch,
                      m->n_layers);
    if (m->n_embd < 1 || m->n_embd > 1 << 20)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.embedding_length is missing or out of range", in->arch);
    if (m->n_ctx_train < 1)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.context_length is missing or zero", in->arch);
    if (!(m->norm_eps > 0 && m->norm_eps < 1))
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.%s is missing or out of range", in->arch, eps);
    if (m->router.n_experts < 0 || m->router.n_experts > ATH_MAX_EXPERTS || m->router.n_used > m->router.n_experts ||
        (m->router.n_experts && m->router.n_used < 1))
        ath_load_fail(in, ATH_ERR_FORMAT, "keys %s.expert_count %d and expert_used_count %d make no sense", in->arch,
                      m->router.n_experts, m->router.n_used);
}

static void check_heads(ath_loader *in, const ath_layer *l, int il) {
    if (l->n_heads < 1 || l->n_heads > 4096 || l->n_kv_heads < 1 || l->n_heads % l->n_kv_heads)
        ath_load_fail(in, ATH_ERR_FORMAT, "layer %d has %d heads and %d kv heads: not a multiple", il, l->n_heads,
                      l->n_kv_heads);
    if (l->head_dim_k < 1 || l->head_dim_k > ATH_MAX_HEAD_DIM || l->head_dim_v < 1 || l->head_dim_v > ATH_MAX_HEAD_DIM)
        ath_load_fail(in, ATH_ERR_UNSUPPORTED, "layer %d has head sizes %d (K) and %d (V): 1 to %d are possible", il,
                      l->head_dim_k, l->head_dim_v, ATH_MAX_HEAD_DIM);
}

static void load_heads(ath_loader *in) {
    ath_model *m = in->model;
    int64_t n = m->n_layers;
    uint32_t *heads = ath_load_alloc(in, 3 * (size_t)n, sizeof *heads), *kv_heads = heads + n,
             *ff = heads + 2 * n;
    m->layers = ath_load_alloc(in, (size_t)n, sizeof *m->layers);
    if (in->status != ATH_OK) return;
    ath_load_u32_array(in, "attention.head_count", heads, n, 0);
    ath_load_u32_array(in, "attention.head_count_kv", kv_heads, n, 0);
    ath_load_u32_array(in, "feed_forward_length", ff, n, 0);
    for (int il = 0; il < n && in->status == ATH_OK; il++) {
        ath_layer *l = &m->layers[il];
        l->kv_layer = il;
        l->n_ff = ff[il];
        if (m->n_ff < l->n_ff) m->n_ff = l->n_ff;
        l->n_heads = (int)heads[il];
        l->n_kv_heads = kv_heads[il] ? (int)kv_heads[il] : l->n_heads;
        uint32_t dim = l->n_heads > 0 ? (uint32_t)(m->n_embd / l->n_heads) : 0;
        l->head_dim_k = (int)ath_load_u32(in, "attention.key_length", dim);
        l->head_dim_v = (int)ath_load_u32(in, "attention.value_length", dim);
        check_heads(in, l, il);
    }
    if (m->router.n_experts) {
        m->n_ff_expert = ath_load_u32(in, "expert_feed_forward_length", ff[0]);
        m->n_ff_shared = ath_load_u32(in, "expert_shared_feed_forward_length", 0);
    }
    int64_t widest = m->n_ff > m->n_ff_expert ? m->n_ff : m->n_ff_expert;
    if (widest < 1 || widest > 1 << 24 || m->n_ff_shared > 1 << 24)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.feed_forward_length is missing or out of range", in->arch);
}

/* Token embeddings, final norm, output matrix (the embeddings again when the file has none). */
static void load_ends(ath_loader *in) {
    ath_model *m = in->model;
    char name[128];
    const ath_gguf_tensor *embd = find(in, 0, "token_embd.weight", 0, name);
    if (!embd || !check_decodable(in, embd, name)) return;
    m->n_vocab = embd->ne[1];
    if (!check_shape(in, embd, name, m->n_embd, m->n_vocab, 1)) return;
    if (m->n_vocab < 1 || m->n_vocab > 1 << 24) {
        ath_load_fail(in, ATH_ERR_FORMAT, "tensor %s has no rows, or too many", name);
        return;
    }
    m->n_params += (uint64_t)(m->n_embd * m->n_vocab);
    const ath_gguf_tensor *output = find(in, ATH_LOAD_OPTIONAL, "output.weight", 0, name);
    if (output)
        ath_load_matrix(in, &m->output, m->n_embd, m->n_vocab, 1, 0, "output.weight", 0);
    else
        init_rows(in, &m->output, embd, 0, m->n_vocab, 1, 0);
    /* Only the rows of tokens that occur are ever read from the map again: not counted as resident. */
    if (!output) release(in, &m->output, embd);
    size_t counted = m->weight_bytes;
    init_rows(in, &m->embd, embd, 0, m->n_vocab, 1, ATH_LOAD_UNPACKED);
    m->weight_bytes = counted;
    /* LFM2's files have the last norm under a name that says it were the first. */
    bool misnamed = !find(in, ATH_LOAD_OPTIONAL, "output_norm.weight", 0, name) &&
                    find(in, ATH_LOAD_OPTIONAL, "token_embd_norm.weight", 0, name);
    m->output_norm = ath_load_norm(in, m->n_embd, misnamed ? "token_embd_norm" : "output_norm", 0);
}

void ath_load_drop_predicting_layers(ath_loader *in) {
    ath_model *m = in->model;
    uint32_t n = ath_load_u32(in, "nextn_predict_layers", 0);
    if (n < (uint32_t)m->n_layers)
        m->n_layers -= (int)n;
    else
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.nextn_predict_layers is %u of %d layers", in->arch, n,
                      m->n_layers);
}

void ath_load_shared_kv(ath_loader *in, uint32_t n_default) {
    ath_model *m = in->model;
    uint32_t n_shared = ath_load_u32(in, "attention.shared_kv_layers", n_default);
    if (n_shared >= (uint32_t)m->n_layers) {
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.attention.shared_kv_layers is %u of %d layers", in->arch,
                      n_shared, m->n_layers);
        return;
    }
    int n_own = m->n_layers - (int)n_shared;
    for (int il = n_own; il < m->n_layers; il++) {
        int source = n_own - 1;
        while (source >= 0 && m->layers[source].window != m->layers[il].window) source--;
        if (source < 0)
            ath_load_fail(in, ATH_ERR_FORMAT, "layer %d shares the K and V of a layer that isn't there", il);
        m->layers[il].kv_layer = source;
    }
}

static void check_rotations(ath_loader *in) {
    for (int il = 0; il < in->model->n_layers; il++) {
        const ath_layer *l = &in->model->layers[il];
        if (l->rope && l->rope->n_rot > l->head_dim_k)
            ath_load_fail(in, ATH_ERR_FORMAT,
                          "%d channels of a head are to be rotated (key %s.rope.dimension_count), but layer "
                          "%d has heads of %d",
                          l->rope->n_rot, in->arch, il, l->head_dim_k);
    }
}

static void load_all(ath_loader *in) {
    ath_model *m = in->model;
    load_dimensions(in);
    if (in->status == ATH_OK) load_heads(in);
    if (in->status == ATH_OK) ath_load_begin_adapters(in);
    if (in->status == ATH_OK) load_ends(in);
    if (in->status == ATH_OK) m->arch->load(in, m);
    if (in->status == ATH_OK) check_rotations(in);
    if (in->status == ATH_OK) ath_load_end_adapters(in);
}

ath_status ath_model_load(ath_model **out, const ath_gguf *gguf, const ath_model_params *params, ath_error *err) {
    *out = NULL;
    ath_str arch;
    ATH_TRY(ath_gguf_get_str(gguf, &arch, err, "general.architecture"));
    if (!arch.data)
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key general.architecture is missing", ath_gguf_path(gguf));
    const ath_arch *found = ath_arch_find(arch);
    if (!found)
        return ATH_FAIL(err, ATH_ERR_UNSUPPORTED, "%s: architecture \"%.*s\" is not known; known: %s",
                        ath_gguf_path(gguf), (int)(arch.size < 64 ? arch.size : 64), arch.data, ath_arch_names());
    ath_model *m = calloc(1, sizeof *m);
    if (!m) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a model");
    m->arch = found;
    m->gguf = gguf;
    m->dev = params->dev;
    ath_loader in = {.gguf = gguf, .params = params, .model = m, .err = err};
    memcpy(in.arch, arch.data, arch.size); /* a known name: shorter than in.arch */
    load_all(&in);
    if (in.status != ATH_OK) {
        ath_model_free(m);
        return in.status;
    }
    *out = m;
    return ATH_OK;
}

void ath_model_free(ath_model *m) {
    if (!m) return;
    for (size_t i = 0; i < m->n_owned; i++) free(m->owned[i]);
    free(m->owned);
    free(m);
}
