/* Low-rank adapters of files: GGUF of general.type "adapter", adapter.type "lora", with tensors NAME.lora_a and
 * NAME.lora_b for each matrix NAME that they change. Their values are decoded to F32: they are few, and exact this way. */
#include <stdio.h>
#include <string.h>

#include "models/model.h"

static bool key_is(const ath_gguf *gguf, const char *key, const char *value) {
    ath_str text = {0};
    return ath_gguf_get_str(gguf, &text, NULL, "%s", key) == ATH_OK && text.size == strlen(value) &&
           memcmp(text.data, value, text.size) == 0;
}

static void fail(ath_loader *in, const ath_gguf *adapter, const char *what, ath_str name) {
    ath_load_fail(in, ATH_ERR_FORMAT, "the adapter %.120s can't be applied: %s%.*s", ath_gguf_path(adapter), what,
                  (int)(name.size < 64 ? name.size : 64), name.size ? name.data : "");
}

void ath_load_begin_adapters(ath_loader *in) {
    int n = in->params->dev ? in->params->n_adapters : 0;
    if (n) in->adapter_used = ath_load_alloc(in, (size_t)n, sizeof *in->adapter_used);
    for (int i = 0; i < n && in->status == ATH_OK; i++) {
        const ath_gguf *adapter = in->params->adapters[i].gguf;
        if (!key_is(adapter, "general.type", "adapter") || !key_is(adapter, "adapter.type", "lora"))
            fail(in, adapter, "its metadata does not say that it is a LoRA adapter", (ath_str){0});
        if (!key_is(adapter, "general.architecture", in->arch))
            fail(in, adapter, "it is for another architecture than ", (ath_str){in->arch, strlen(in->arch)});
        if (ath_gguf_find(adapter, "adapter.alora.invocation_tokens"))
            fail(in, adapter, "it is one that certain tokens switch on (aLoRA), which is not there yet", (ath_str){0});
        size_t n_tensors = (size_t)ath_gguf_n_tensors(adapter);
        in->adapter_used[i] = ath_load_alloc(in, n_tensors + 1, sizeof(bool));
    }
}

/* "NAME.lora_a" or "NAME.lora_b"; marks it as used. NULL: not there. */
static const ath_gguf_tensor *find_half(ath_loader *in, int i, ath_str base, const char *half) {
    const ath_gguf *adapter = in->params->adapters[i].gguf;
    char name[160];
    snprintf(name, sizeof name, "%.*s.lora_%s", (int)(base.size < 128 ? base.size : 128), base.data, half);
    const ath_gguf_tensor *t = ath_gguf_find_tensor(adapter, name);
    if (t) in->adapter_used[i][t - ath_gguf_tensor_at(adapter, 0)] = true;
    return t;
}

/* Rows row0 .. row0 + n - 1 of each expert, as floats. */
static float *decode_rows(ath_loader *in, const ath_gguf_tensor *t, int64_t row0, int64_t n) {
    const ath_tensor_type_info *type = ath_tensor_type_get((int)t->type);
    size_t row_bytes = ath_tensor_type_row_bytes((int)t->type, t->ne[0]);
    float *x = ath_load_alloc(in, (size_t)(t->ne[0] * n * t->ne[2]), sizeof *x);
    for (int64_t e = 0; x && e < t->ne[2]; e++)
        type->dequantize(t->data + (size_t)(e * t->ne[1] + row0) * row_bytes, x + e * n * t->ne[0], n * t->ne[0]);
    return x;
}

/* The two halves of one adapter for a weight that is n_out rows, from row0 on, of n_all. */
static void add_adapter(ath_loader *in, int i, ath_weight *w, ath_str name, int64_t row0, int64_t n_all, bool table) {
    const ath_adapter_file *file = &in->params->adapters[i];
    const ath_gguf_tensor *a = find_half(in, i, name, "a"), *b = find_half(in, i, name, "b");
    if (!a && !b) return;
    int64_t a_in = table ? n_all : w->n_in, b_out = table ? w->n_in : n_all; /* a of a table has a row per token */
    int64_t rank = b ? b->ne[0] : 0;
    bool fits = a && b && a->ne[table ? 1 : 0] == a_in && a->ne[table ? 0 : 1] == rank && b->ne[1] == b_out &&
                a->ne[2] == w->n_experts && b->ne[2] == w->n_experts && a->ne[3] == 1 && b->ne[3] == 1 &&
                (!table || rank <= in->model->n_embd) && ath_tensor_type_get((int)a->type)->dequantize &&
                ath_tensor_type_get((int)b->type)->dequantize;
    if (!fits) {
        fail(in, file->gguf, "its tensors do not fit the shape of ", name);
        return;
    }
    float alpha = 0;
    if (ath_gguf_get_f32(file->gguf, &alpha, 0, in->err, "adapter.lora.alpha") != ATH_OK) alpha = 0;
    ath_adapter *adapter = ath_load_alloc(in, 1, sizeof *adapter);
    float *rows_a = decode_rows(in, a, 0, a->ne[1]);
    float *rows_b = decode_rows(in, b, table ? 0 : row0, table ? b_out : w->n_out);
    if (!adapter || !rows_a || !rows_b) return;
    adapter->scale = file->scale * (alpha != 0 ? alpha / (float)rank : 1);
    adapter->next = w->adapters;
    ath_load_f32_matrix(in, &adapter->a, rows_a, a->ne[0], a->ne[1], w->n_experts, !table);
    ath_load_f32_matrix(in, &adapter->b, rows_b, rank, table ? b_out : w->n_out, w->n_experts, true);
    w->adapters = adapter;
}

void ath_load_adapters(ath_loader *in, ath_weight *w, ath_str name, int64_t row0, int64_t n_all, bool table) {
    static const char embd[] = "token_embd.weight";
    bool is_embd = name.size == sizeof embd - 1 && memcmp(name.data, embd, name.size) == 0;
    if (!in->adapter_used || table != is_embd) return; /* embeddings as output matrix: without, as they were trained */
    for (int i = 0; i < in->params->n_adapters && in->status == ATH_OK; i++)
        add_adapter(in, i, w, name, row0, n_all, table);
    if (in->status == ATH_OK && w->adapters)
        in->status = ath_device_adapters_reserve(in->params->dev, w, in->err);
}

void ath_load_end_adapters(ath_loader *in) {
    for (int i = 0; in->adapter_used && i < in->params->n_adapters; i++) {
        const ath_gguf *adapter = in->params->adapters[i].gguf;
        int64_t n = ath_gguf_n_tensors(adapter);
        if (n == 0) fail(in, adapter, "it holds no tensors", (ath_str){0});
        for (int64_t t = 0; t < n; t++)
            if (!in->adapter_used[i][t])
                fail(in, adapter, "no matrix of the model takes its tensor ", ath_gguf_tensor_at(adapter, t)->name);
        ath_log_line(in->params->log, ATH_LOG_INFO, "adapter %s: %lld matrices, scale %g", ath_gguf_path(adapter),
                     (long long)n / 2, (double)in->params->adapters[i].scale);
    }
}
