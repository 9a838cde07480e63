/* Metadata and tensors of a model file as text. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_private.h"

enum { ITEMS_SHOWN = 8 };

typedef struct text { /* grows virtually: counts all bytes, stores what fits */
    char *buf;
    size_t cap, size;
} text;

static void put(text *t, const char *data, size_t size) {
    for (size_t i = 0; i < size; i++, t->size++)
        if (t->size + 1 < t->cap) t->buf[t->size] = data[i];
}

static void put_cstr(text *t, const char *s) { put(t, s, strlen(s)); }

static size_t finish(text *t) {
    if (t->cap) t->buf[t->size < t->cap ? t->size : t->cap - 1] = 0;
    return t->size;
}

/* Control bytes are shown as \n, \t or \xHH, so that a value stays on its line and can't steer a terminal. */
static void put_escaped(text *t, ath_str s) {
    for (size_t i = 0; i < s.size; i++) {
        unsigned char c = (unsigned char)s.data[i];
        char hex[8];
        if (c == '\n')
            put_cstr(t, "\\n");
        else if (c == '\t')
            put_cstr(t, "\\t");
        else if (c < 32 || c == 127) {
            snprintf(hex, sizeof hex, "\\x%02x", c);
            put_cstr(t, hex);
        } else
            put(t, s.data + i, 1);
    }
}

static void put_number(text *t, const ath_gguf_kv *kv, ath_gguf_type type, uint64_t i) {
    char number[40];
    if (type == ATH_GGUF_F32 || type == ATH_GGUF_F64)
        snprintf(number, sizeof number, "%.7g", ath_gguf_item_f64(kv, i));
    else if (type == ATH_GGUF_BOOL)
        snprintf(number, sizeof number, "%s", ath_gguf_item_i64(kv, i) ? "true" : "false");
    else if (type == ATH_GGUF_U64)
        snprintf(number, sizeof number, "%" PRIu64, (uint64_t)ath_gguf_item_i64(kv, i));
    else
        snprintf(number, sizeof number, "%" PRId64, ath_gguf_item_i64(kv, i));
    put_cstr(t, number);
}

static void put_array(text *t, const ath_gguf_kv *kv) {
    char head[48];
    snprintf(head, sizeof head, "%" PRIu64 " items [", kv->count);
    put_cstr(t, head);
    for (uint64_t i = 0; i < kv->count && i < ITEMS_SHOWN; i++) {
        if (i) put_cstr(t, ", ");
        if (kv->strings) {
            put_cstr(t, "\"");
            put_escaped(t, kv->strings[i]);
            put_cstr(t, "\"");
        } else
            put_number(t, kv, kv->item_type, i);
    }
    put_cstr(t, kv->count > ITEMS_SHOWN ? ", ...]" : "]");
}

static ath_str scalar_string(const ath_gguf_kv *kv) {
    uint64_t size;
    memcpy(&size, kv->data, sizeof size);
    return (ath_str){(const char *)kv->data + sizeof size, (size_t)size};
}

int64_t ath_engine_n_metadata(const ath_engine *e) { return ath_gguf_n_kv(e->gguf); }

size_t ath_engine_metadata_key(const ath_engine *e, int64_t i, char *buf, size_t cap) {
    text t = {buf, cap, 0};
    put_escaped(&t, ath_gguf_kv_at(e->gguf, i)->key);
    return finish(&t);
}

size_t ath_engine_metadata_value(const ath_engine *e, int64_t i, char *buf, size_t cap) {
    const ath_gguf_kv *kv = ath_gguf_kv_at(e->gguf, i);
    text t = {buf, cap, 0};
    if (kv->type == ATH_GGUF_ARRAY)
        put_array(&t, kv);
    else if (kv->type == ATH_GGUF_STRING)
        put_escaped(&t, scalar_string(kv));
    else
        put_number(&t, kv, kv->type, 0);
    return finish(&t);
}

bool ath_engine_metadata_number(const ath_engine *e, const char *key, double *out) {
    const ath_gguf_kv *kv = ath_gguf_find(e->gguf, key);
    if (!kv || kv->type == ATH_GGUF_ARRAY || kv->type == ATH_GGUF_STRING) return false;
    *out = ath_gguf_item_f64(kv, 0);
    return true;
}

bool ath_engine_metadata_string(const ath_engine *e, const char *key, char *buf, size_t cap) {
    const ath_gguf_kv *kv = ath_gguf_find(e->gguf, key);
    if (!kv || kv->type != ATH_GGUF_STRING) return false;
    text t = {buf, cap, 0};
    put_escaped(&t, scalar_string(kv));
    finish(&t);
    return true;
}

int64_t ath_engine_n_tensors(const ath_engine *e) { return ath_gguf_n_tensors(e->gguf); }

void ath_engine_tensor(const ath_engine *e, int64_t i, ath_tensor_info *info) {
    const ath_gguf_tensor *t = ath_gguf_tensor_at(e->gguf, i);
    *info = (ath_tensor_info){.type = ath_tensor_type_get(t->type)->name, .n_dims = t->n_dims, .bytes = t->size};
    text name = {info->name, sizeof info->name, 0};
    put_escaped(&name, t->name);
    finish(&name);
    memcpy(info->ne, t->ne, sizeof info->ne);
}
