/* What callers ask of an open file: look-ups, and values converted to the type they want or refused by key.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf_internal.h"

/* ---- names in messages */

ath_str ath_gguf_str(const char *s) {
    return (ath_str){s, strlen(s)};
}

static char printable(char c) {
    return c >= 0x20 && c < 0x7f ? c : '?';
}

ath_gguf_shown ath_gguf_show(ath_str name) {
    ath_gguf_shown shown;
    size_t room = sizeof shown.text - 1, n = name.size < room ? name.size : room;
    for (size_t i = 0; i < n; i++) shown.text[i] = printable(name.data[i]);
    if (n < name.size) memcpy(shown.text + n - 3, "...", 3);
    shown.text[n] = 0;
    return shown;
}

ath_gguf_shown ath_gguf_show_path(const char *path) {
    size_t size = strlen(path), room = sizeof(ath_gguf_shown) - 1;
    ath_gguf_shown shown = ath_gguf_show(ath_gguf_str(size > room ? path + size - room : path));
    if (size > room) memcpy(shown.text, "...", 3);
    return shown;
}

/* ---- types */

static const struct {
    const char *name;
    size_t size;
} types[ATH_GGUF_TYPE_COUNT] = {
    [ATH_GGUF_U8] = {"u8", 1},       [ATH_GGUF_I8] = {"i8", 1},     [ATH_GGUF_U16] = {"u16", 2},
    [ATH_GGUF_I16] = {"i16", 2},     [ATH_GGUF_U32] = {"u32", 4},   [ATH_GGUF_I32] = {"i32", 4},
    [ATH_GGUF_F32] = {"f32", 4},     [ATH_GGUF_BOOL] = {"bool", 1}, [ATH_GGUF_STRING] = {"string", 0},
    [ATH_GGUF_U64] = {"u64", 8},     [ATH_GGUF_I64] = {"i64", 8},   [ATH_GGUF_F64] = {"f64", 8},
    [ATH_GGUF_ARRAY] = {"array", 0},
};

size_t ath_gguf_type_size(ath_gguf_type type) {
    return types[type].size;
}

const char *ath_gguf_type_name(ath_gguf_type type) {
    return types[type].name;
}

bool ath_gguf_type_is_integer(ath_gguf_type type) {
    return types[type].size > 0 && type != ATH_GGUF_F32 && type != ATH_GGUF_F64;
}

/* ---- look-ups */

const char *ath_gguf_path(const ath_gguf *gguf) {
    return gguf->parts[0].path;
}

uint32_t ath_gguf_version(const ath_gguf *gguf) {
    return gguf->parts[0].version;
}

int ath_gguf_n_parts(const ath_gguf *gguf) {
    return gguf->n_parts;
}

size_t ath_gguf_file_bytes(const ath_gguf *gguf) {
    size_t bytes = 0;
    for (int i = 0; i < gguf->n_parts; i++) bytes += gguf->parts[i].map.size;
    return bytes;
}

int64_t ath_gguf_n_kv(const ath_gguf *gguf) {
    return (int64_t)gguf->parts[0].n_kv;
}

const ath_gguf_kv *ath_gguf_kv_at(const ath_gguf *gguf, int64_t i) {
    return &gguf->parts[0].kvs[i];
}

const ath_gguf_kv *ath_gguf_part_find(const ath_gguf_part *part, const char *key) {
    int64_t i = ath_gguf_index_find(&part->kv_index, part->kvs, sizeof *part->kvs, ath_gguf_str(key));
    return i < 0 ? NULL : &part->kvs[i];
}

const ath_gguf_kv *ath_gguf_find(const ath_gguf *gguf, const char *key) {
    return ath_gguf_part_find(&gguf->parts[0], key);
}

int64_t ath_gguf_n_tensors(const ath_gguf *gguf) {
    return (int64_t)gguf->n_tensors;
}

const ath_gguf_tensor *ath_gguf_tensor_at(const ath_gguf *gguf, int64_t i) {
    return &gguf->tensors[i];
}

const ath_gguf_tensor *ath_gguf_find_tensor(const ath_gguf *gguf, const char *name) {
    int64_t i =
        ath_gguf_index_find(&gguf->tensor_index, gguf->tensors, sizeof *gguf->tensors, ath_gguf_str(name));
    return i < 0 ? NULL : &gguf->tensors[i];
}

void ath_gguf_release_tensor(const ath_gguf *gguf, const ath_gguf_tensor *tensor) {
    const ath_gguf_part *part = &gguf->parts[tensor->part];
    if (part->borrowed) return; /* no file behind it: the pages would come back empty */
    ath_mapfile_release(&part->map, (size_t)(tensor->data - part->map.data), tensor->size);
}

/* ---- elements */

/* A u64 comes out as its bits: callers look at the type where the sign matters. */
static int64_t load_integer(const uint8_t *data, ath_gguf_type type) {
    uint64_t bits = 0;
    size_t size = types[type].size;
    memcpy(&bits, data, size);
    unsigned unused = (unsigned)(64 - 8 * size);
    bool is_signed = type == ATH_GGUF_I8 || type == ATH_GGUF_I16 || type == ATH_GGUF_I32;
    return is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

static double load_float(const uint8_t *data, ath_gguf_type type) {
    float f;
    double d;
    if (type == ATH_GGUF_F64) {
        memcpy(&d, data, sizeof d);
        return d;
    }
    memcpy(&f, data, sizeof f);
    return f;
}

double ath_gguf_item_f64(const ath_gguf_kv *kv, uint64_t i) {
    const uint8_t *data = kv->data + i * types[kv->item_type].size;
    if (!ath_gguf_type_is_integer(kv->item_type)) return load_float(data, kv->item_type);
    int64_t value = load_integer(data, kv->item_type);
    return kv->item_type == ATH_GGUF_U64 ? (double)(uint64_t)value : (double)value;
}

int64_t ath_gguf_item_i64(const ath_gguf_kv *kv, uint64_t i) {
    const uint8_t *data = kv->data + i * types[kv->item_type].size;
    if (ath_gguf_type_is_integer(kv->item_type)) {
        int64_t value = load_integer(data, kv->item_type);
        return kv->item_type == ATH_GGUF_U64 && value < 0 ? INT64_MAX : value;
    }
    double value = load_float(data, kv->item_type);
    if (isnan(value)) return 0;
    if (value >= 0x1p63) return INT64_MAX;
    return value < -0x1p63 ? INT64_MIN : (int64_t)value;
}

/* ---- typed getters */

static ath_status wrong_type(const ath_gguf_part *part, const ath_gguf_kv *kv, const char *wanted,
                             ath_error *err) {
    bool array = kv->type == ATH_GGUF_ARRAY;
    return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key '%s' is %s%s where %s is needed",
                    ath_gguf_show_path(part->path).text, ath_gguf_show(kv->key).text,
                    array ? "an array of " : "of type ", ath_gguf_type_name(kv->item_type), wanted);
}

/* Element i as u32; kv is known to hold integers. */
static ath_status item_u32(const ath_gguf_part *part, const ath_gguf_kv *kv, uint64_t i, uint32_t *out,
                           ath_error *err) {
    int64_t value = ath_gguf_item_i64(kv, i);
    if (value < 0 || value > UINT32_MAX) {
        return ATH_FAIL(
            err, ATH_ERR_FORMAT, "%s: key '%s' holds %.0f, which is out of range (0 to 4294967295)",
            ath_gguf_show_path(part->path).text, ath_gguf_show(kv->key).text, ath_gguf_item_f64(kv, i));
    }
    *out = (uint32_t)value;
    return ATH_OK;
}

static ath_status scalar_u32(const ath_gguf_part *part, const ath_gguf_kv *kv, uint32_t *out,
                             ath_error *err) {
    if (!ath_gguf_type_is_integer(kv->type)) return wrong_type(part, kv, "an integer", err);
    return item_u32(part, kv, 0, out, err);
}

ath_status ath_gguf_part_u32(const ath_gguf_part *part, const char *key, uint32_t *out, ath_error *err) {
    const ath_gguf_kv *kv = ath_gguf_part_find(part, key);
    if (!kv) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key '%s' is missing", ath_gguf_show_path(part->path).text,
                        key);
    }
    return scalar_u32(part, kv, out, err);
}

/* The kv of a printf-formatted key, NULL if absent. A key that does not fit comes from a hostile architecture
 * name. */
__attribute__((format(printf, 4, 0))) static ath_status
find_formatted(const ath_gguf *g, const ath_gguf_kv **out, ath_error *err, const char *format, va_list args) {
    char key[512];
    int size = vsnprintf(key, sizeof key, format, args);
    if (size < 0 || (size_t)size >= sizeof key) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key '%s' is too long",
                        ath_gguf_show_path(ath_gguf_path(g)).text,
                        ath_gguf_show(ath_gguf_str(size < 0 ? format : key)).text);
    }
    *out = ath_gguf_find(g, key);
    return ATH_OK;
}

/* Declares kv and looks the variadic key up. */
#define FIND_OR_RETURN(g, kv, err, key)                                                                      \
    const ath_gguf_kv *kv = NULL;                                                                            \
    va_list args_;                                                                                           \
    va_start(args_, key);                                                                                    \
    ath_status found_ = find_formatted(g, &kv, err, key, args_);                                             \
    va_end(args_);                                                                                           \
    if (found_ != ATH_OK) return found_

ath_status ath_gguf_get_u32(const ath_gguf *g, uint32_t *out, uint32_t fallback, ath_error *err,
                            const char *key, ...) {
    FIND_OR_RETURN(g, kv, err, key);
    *out = fallback;
    return kv ? scalar_u32(&g->parts[0], kv, out, err) : ATH_OK;
}

ath_status ath_gguf_get_f32(const ath_gguf *g, float *out, float fallback, ath_error *err, const char *key,
                            ...) {
    FIND_OR_RETURN(g, kv, err, key);
    *out = fallback;
    if (!kv) return ATH_OK;
    if (ath_gguf_type_size(kv->type) == 0 || kv->type == ATH_GGUF_BOOL) {
        return wrong_type(&g->parts[0], kv, "a number", err);
    }
    double value = ath_gguf_item_f64(kv, 0);
    if (isfinite(value) && fabs(value) > FLT_MAX) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key '%s' holds %g, which is out of the range of 32-bit floats",
                        ath_gguf_show_path(ath_gguf_path(g)).text, ath_gguf_show(kv->key).text, value);
    }
    *out = (float)value;
    return ATH_OK;
}

ath_status ath_gguf_get_bool(const ath_gguf *g, bool *out, bool fallback, ath_error *err, const char *key,
                             ...) {
    FIND_OR_RETURN(g, kv, err, key);
    *out = fallback;
    if (!kv) return ATH_OK;
    if (!ath_gguf_type_is_integer(kv->type)) return wrong_type(&g->parts[0], kv, "a bool", err);
    int64_t value = ath_gguf_item_i64(kv, 0);
    if (value != 0 && value != 1) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key '%s' is %" PRId64 " where a bool is needed",
                        ath_gguf_show_path(ath_gguf_path(g)).text, ath_gguf_show(kv->key).text, value);
    }
    *out = value == 1;
    return ATH_OK;
}

ath_status ath_gguf_get_str(const ath_gguf *g, ath_str *out, ath_error *err, const char *key, ...) {
    FIND_OR_RETURN(g, kv, err, key);
    *out = (ath_str){0};
    if (!kv) return ATH_OK;
    if (kv->type != ATH_GGUF_STRING) return wrong_type(&g->parts[0], kv, "a string", err);
    uint64_t size;
    memcpy(&size, kv->data, sizeof size);
    *out = (ath_str){(const char *)kv->data + sizeof size, (size_t)size};
    return ATH_OK;
}

ath_status ath_gguf_get_u32_array(const ath_gguf *g, uint32_t *out, int64_t n, uint32_t fallback,
                                  ath_error *err, const char *key, ...) {
    FIND_OR_RETURN(g, kv, err, key);
    for (int64_t i = 0; i < n; i++) out[i] = fallback;
    if (!kv || n <= 0) return ATH_OK;
    if (!ath_gguf_type_is_integer(kv->item_type))
        return wrong_type(&g->parts[0], kv, "an array of integers", err);
    bool array = kv->type == ATH_GGUF_ARRAY;
    if (array && kv->count < (uint64_t)n) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key '%s' has %" PRIu64 " elements where %" PRId64 " are needed",
                        ath_gguf_show_path(ath_gguf_path(g)).text, ath_gguf_show(kv->key).text, kv->count, n);
    }
    for (int64_t i = 0; i < n; i++)
        ATH_TRY(item_u32(&g->parts[0], kv, array ? (uint64_t)i : 0, &out[i], err));
    return ATH_OK;
}
