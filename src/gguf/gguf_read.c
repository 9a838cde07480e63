/* The reader: header, keys, tensors of one file, into pointers into its map.
 *
 * Everything in the file is hostile until checked. Lists grow as their entries are read, not by the counts of
 * the header, so memory stays proportional to what is there. Every failure goes through fail(), which says
 * where in the file it happened: a header field, the key or the tensor. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf_internal.h"

enum {
    HEADER_BYTES = 24,
    MIN_KV_BYTES = 8 + 1 + 4 + 1,         /* key of one byte, type, a u8 */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* name of one byte, n_dims 0, type, offset */
};

typedef struct reader {
    const uint8_t *data;
    size_t size, pos;
    ath_gguf *gguf;
    ath_gguf_part *part;
    ath_error *err;
    const char *kind; /* "key" or "tensor": what name and number below are of */
    ath_str name;     /* empty until it was read */
    size_t number;
    uint64_t alignment;
} reader;

__attribute__((format(printf, 3, 4))) static ath_status fail(reader *r, ath_status code, const char *format,
                                                             ...) {
    char why[256], at[200] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (r->kind && r->name.size > 0) {
        snprintf(at, sizeof at, "%s '%s': ", r->kind, ath_gguf_show(r->name).text);
    } else if (r->kind) {
        snprintf(at, sizeof at, "%s number %zu: ", r->kind, r->number + 1);
    }
    return ATH_FAIL(r->err, code, "%s: %s%s", ath_gguf_show_path(r->part->path).text, at, why);
}

static size_t left(const reader *r) {
    return r->size - r->pos;
}

/* Copies the next size bytes to out; what names them in the message. */
static ath_status take(reader *r, void *out, size_t size, const char *what) {
    if (left(r) < size) return fail(r, ATH_ERR_FORMAT, "the file ends inside its %s", what);
    memcpy(out, r->data + r->pos, size);
    r->pos += size;
    return ATH_OK;
}

static ath_status take_str(reader *r, ath_str *out, const char *what) {
    uint64_t size = 0;
    ATH_TRY(take(r, &size, sizeof size, what));
    if (size > ATH_GGUF_MAX_LENGTH) {
        return fail(r, ATH_ERR_FORMAT, "its %s claims a length of %" PRIu64 " bytes, more than 2^30", what,
                    size);
    }
    if (size > left(r)) return fail(r, ATH_ERR_FORMAT, "the file ends inside its %s", what);
    *out = (ath_str){(const char *)r->data + r->pos, (size_t)size};
    r->pos += (size_t)size;
    return ATH_OK;
}

/* ---- header */

static bool starts_with(const reader *r, const char *magic, size_t size) {
    return r->size >= size && memcmp(r->data, magic, size) == 0;
}

static bool looks_like_text(const reader *r) {
    size_t n = r->size < 512 ? r->size : 512;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = r->data[i];
        if (c < 0x20 && c != '\n' && c != '\r' && c != '\t') return false;
        if (c == 0x7f) return false;
    }
    return true;
}

static const char *guess_format(const reader *r) {
    static const struct {
        const char *magic, *meaning;
    } known[] = {
        {"FUGG", "its magic is byte-swapped: a big-endian file"},
        {"lmgg", "it is an old GGML file, which has to be converted to GGUF"},
        {"fmgg", "it is an old GGMF file, which has to be converted to GGUF"},
        {"tjgg", "it is an old GGJT file, which has to be converted to GGUF"},
        {"algg", "it is an old GGLA adapter, which has to be converted to GGUF"},
        {"PK\x03\x04", "it looks like a zip archive, perhaps a PyTorch checkpoint"},
        {"\x80\x02", "it looks like a Python pickle, perhaps a PyTorch checkpoint"},
        {"\x1f\x8b", "it looks like a gzip archive"},
        {"\x28\xb5\x2f\xfd", "it looks like a zstd archive"},
        {"\x7f"
         "ELF",
         "it looks like an ELF program"},
        {"\x89HDF", "it looks like an HDF5 file"},
        {"version https://git-lfs", "it is a Git LFS pointer: the model itself was not downloaded"},
        {"<!DOCTYPE", "it looks like a web page: the download failed"},
        {"<!doctype", "it looks like a web page: the download failed"},
        {"<html", "it looks like a web page: the download failed"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (starts_with(r, known[i].magic, strlen(known[i].magic))) return known[i].meaning;
    }
    uint64_t json_size;
    if (r->size > 9 && r->data[8] == '{') {
        memcpy(&json_size, r->data, sizeof json_size);
        if (json_size < r->size) return "it looks like a safetensors file, which has to be converted to GGUF";
    }
    return looks_like_text(r) ? "it looks like a text file" : "it does not begin with the magic GGUF";
}

static ath_status check_version(reader *r, uint32_t version) {
    if (version != 0 && (version & 0xffff) == 0) {
        return fail(r, ATH_ERR_FORMAT,
                    "the file is big-endian (its version reads as 0x%08" PRIx32
                    "); only little-endian GGUF is read",
                    version);
    }
    if (version == 1) {
        return fail(r, ATH_ERR_FORMAT,
                    "GGUF version 1 is not read any more; the file has to be converted again");
    }
    if (version != 2 && version != 3) {
        return fail(r, ATH_ERR_FORMAT, "GGUF version %" PRIu32 " is unknown; versions 2 and 3 are read",
                    version);
    }
    return ATH_OK;
}

static ath_status check_count(reader *r, const char *field, int64_t count, int64_t min_bytes) {
    if (count < 0) return fail(r, ATH_ERR_FORMAT, "the header's %s is negative: %" PRId64, field, count);
    if (count > (int64_t)left(r) / min_bytes) {
        return fail(r, ATH_ERR_FORMAT,
                    "the header's %s is %" PRId64 ", more than a file of %zu bytes can hold", field, count,
                    r->size);
    }
    return ATH_OK;
}

static ath_status read_header(reader *r, int64_t *n_tensors, int64_t *n_kv) {
    if (r->size == 0) return fail(r, ATH_ERR_FORMAT, "the file is empty");
    if (memcmp(r->data, "GGUF", r->size < 4 ? r->size : 4) != 0) {
        return fail(r, ATH_ERR_FORMAT, "not a GGUF file: %s", guess_format(r));
    }
    if (r->size < HEADER_BYTES) {
        return fail(r, ATH_ERR_FORMAT, "the file ends inside its header: it has %zu bytes", r->size);
    }
    r->pos = 4;
    ATH_TRY(take(r, &r->part->version, 4, "version"));
    ATH_TRY(check_version(r, r->part->version));
    ATH_TRY(take(r, n_tensors, 8, "n_tensors"));
    ATH_TRY(take(r, n_kv, 8, "n_kv"));
    ATH_TRY(check_count(r, "n_kv", *n_kv, MIN_KV_BYTES));
    return check_count(r, "n_tensors", *n_tensors, MIN_TENSOR_BYTES);
}

/* ---- keys */

static ath_status take_type(reader *r, ath_gguf_type *out, const char *what) {
    int32_t type = 0;
    ATH_TRY(take(r, &type, sizeof type, what));
    if (type < 0 || type >= ATH_GGUF_TYPE_COUNT) {
        return fail(r, ATH_ERR_FORMAT, "its %s is %" PRId32 ", which is none", what, type);
    }
    *out = (ath_gguf_type)type;
    return ATH_OK;
}

/* Two passes, so that the list is only made once all strings are known to be there. */
static ath_status read_string_array(reader *r, ath_gguf_kv *kv) {
    size_t start = r->pos;
    ath_str string;
    for (uint64_t i = 0; i < kv->count; i++) ATH_TRY(take_str(r, &string, "array of strings"));
    if (kv->count == 0) return ATH_OK;
    ath_str *strings = malloc((size_t)kv->count * sizeof *strings);
    if (!strings) return fail(r, ATH_ERR_NOMEM, "no memory for %" PRIu64 " strings", kv->count);
    kv->strings = strings;
    r->pos = start;
    for (uint64_t i = 0; i < kv->count; i++) ATH_TRY(take_str(r, &strings[i], "array of strings"));
    return ATH_OK;
}

static ath_status read_fixed(reader *r, ath_gguf_kv *kv, ath_gguf_type type) {
    size_t item = ath_gguf_type_size(type);
    if (kv->count > left(r) / item) return fail(r, ATH_ERR_FORMAT, "the file ends inside its value");
    size_t bytes = (size_t)kv->count * item;
    if (type == ATH_GGUF_BOOL) {
        for (size_t i = 0; i < bytes; i++) {
            if (kv->data[i] > 1)
                return fail(r, ATH_ERR_FORMAT, "a bool of it is neither 0 nor 1: %d", kv->data[i]);
        }
    }
    r->pos += bytes;
    return ATH_OK;
}

static ath_status read_array(reader *r, ath_gguf_kv *kv) {
    ATH_TRY(take_type(r, &kv->item_type, "array element type"));
    if (kv->item_type == ATH_GGUF_ARRAY) return fail(r, ATH_ERR_FORMAT, "arrays of arrays are not allowed");
    ATH_TRY(take(r, &kv->count, sizeof kv->count, "array length"));
    if (kv->count > ATH_GGUF_MAX_LENGTH) {
        return fail(r, ATH_ERR_FORMAT, "it claims an array of %" PRIu64 " elements, more than 2^30",
                    kv->count);
    }
    kv->data = r->data + r->pos;
    return kv->item_type == ATH_GGUF_STRING ? read_string_array(r, kv) : read_fixed(r, kv, kv->item_type);
}

static ath_status read_value(reader *r, ath_gguf_kv *kv) {
    ATH_TRY(take_type(r, &kv->type, "value type"));
    kv->item_type = kv->type;
    kv->count = 1;
    kv->data = r->data + r->pos;
    if (kv->type == ATH_GGUF_ARRAY) return read_array(r, kv);
    ath_str string;
    if (kv->type == ATH_GGUF_STRING) return take_str(r, &string, "value");
    return read_fixed(r, kv, kv->type);
}

static ath_status read_kvs(reader *r, int64_t n_kv) {
    ath_gguf_part *part = r->part;
    r->kind = "key";
    for (r->number = 0; r->number < (size_t)n_kv; r->number++) {
        r->name = (ath_str){0};
        ath_str key;
        ATH_TRY(take_str(r, &key, "name"));
        if (key.size == 0) return fail(r, ATH_ERR_FORMAT, "its name is empty");
        r->name = key;
        if (ath_gguf_index_find(&part->kv_index, part->kvs, sizeof *part->kvs, key) >= 0) {
            return fail(r, ATH_ERR_FORMAT, "it occurs twice");
        }
        if (!ath_gguf_grow((void **)&part->kvs, &part->kv_capacity, part->n_kv, sizeof *part->kvs)) {
            return fail(r, ATH_ERR_NOMEM, "no memory for it");
        }
        ath_gguf_kv *kv = &part->kvs[part->n_kv++];
        *kv = (ath_gguf_kv){.key = key};
        ATH_TRY(read_value(r, kv));
        if (!ath_gguf_index_add(&part->kv_index, part->kvs, sizeof *part->kvs, part->n_kv - 1)) {
            return fail(r, ATH_ERR_NOMEM, "no memory for it");
        }
    }
    return ATH_OK;
}

static ath_status read_alignment(reader *r) {
    r->alignment = ATH_GGUF_DEFAULT_ALIGNMENT;
    const ath_gguf_kv *kv = ath_gguf_part_find(r->part, "general.alignment");
    if (!kv) return ATH_OK;
    r->name = kv->key;
    if (kv->type != ATH_GGUF_U32) {
        return fail(r, ATH_ERR_FORMAT, "it must be a u32, not %s", ath_gguf_type_name(kv->type));
    }
    r->alignment = (uint64_t)ath_gguf_item_i64(kv, 0);
    if (r->alignment == 0 || (r->alignment & (r->alignment - 1)) != 0) {
        return fail(r, ATH_ERR_FORMAT, "%" PRIu64 " is not a power of two", r->alignment);
    }
    return ATH_OK;
}

/* ---- tensors */

static ath_status read_shape(reader *r, ath_gguf_tensor *t) {
    uint32_t n_dims = 0;
    ATH_TRY(take(r, &n_dims, sizeof n_dims, "n_dims"));
    if (n_dims > ATH_GGUF_MAX_DIMS)
        return fail(r, ATH_ERR_FORMAT, "it has %" PRIu32 " dimensions, at most 4 are allowed", n_dims);
    t->n_dims = n_dims ? (int)n_dims : 1; /* a scalar is a vector of one */
    int64_t elements = 1;
    for (int i = 0; i < ATH_GGUF_MAX_DIMS; i++) {
        t->ne[i] = 1;
        if (i < (int)n_dims) ATH_TRY(take(r, &t->ne[i], sizeof t->ne[i], "shape"));
        if (t->ne[i] <= 0) return fail(r, ATH_ERR_FORMAT, "its ne[%d] is %" PRId64, i, t->ne[i]);
        if (__builtin_mul_overflow(elements, t->ne[i], &elements)) {
            return fail(r, ATH_ERR_FORMAT, "the product of its shape overflows");
        }
    }
    return ATH_OK;
}

static ath_status read_tensor_type(reader *r, ath_gguf_tensor *t) {
    int32_t id = 0;
    ATH_TRY(take(r, &id, sizeof id, "type"));
    const ath_tensor_type_info *info = ath_tensor_type_get(id);
    if (!info->name) return fail(r, ATH_ERR_FORMAT, "its type id %" PRId32 " is unknown or retired", id);
    t->type = (ath_tensor_type)id;
    if (t->ne[0] % info->block_size != 0) {
        return fail(r, ATH_ERR_FORMAT, "its ne[0] is %" PRId64 ", not a multiple of %s's block of %" PRId32,
                    t->ne[0], info->name, info->block_size);
    }
    int64_t blocks = t->ne[0] / info->block_size * t->ne[1] * t->ne[2] * t->ne[3];
    if (__builtin_mul_overflow(blocks, info->block_bytes, &t->size)) {
        return fail(r, ATH_ERR_FORMAT, "its size in bytes overflows");
    }
    return ATH_OK;
}

/* Offsets carry no information: each must be the end of the tensor before it, padded. expected moves on. */
static ath_status check_offset(reader *r, const ath_gguf_tensor *t, uint64_t *expected) {
    uint64_t offset = 0;
    ATH_TRY(take(r, &offset, sizeof offset, "offset"));
    if (offset % r->alignment != 0) {
        return fail(r, ATH_ERR_FORMAT, "its offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                    offset, r->alignment);
    }
    if (offset != *expected) {
        return fail(r, ATH_ERR_FORMAT, "its offset is %" PRIu64 " where %" PRIu64 " is due", offset,
                    *expected);
    }
    uint64_t end;
    if (__builtin_add_overflow(offset, t->size, &end) ||
        __builtin_add_overflow(end, r->alignment - 1, &end)) {
        return fail(r, ATH_ERR_FORMAT, "its offset plus its size overflows");
    }
    *expected = end & ~(r->alignment - 1);
    return ATH_OK;
}

static ath_status read_tensor(reader *r, uint64_t *expected) {
    ath_gguf *g = r->gguf;
    ath_gguf_tensor t = {.part = g->n_parts - 1};
    r->name = (ath_str){0};
    ATH_TRY(take_str(r, &t.name, "name"));
    if (t.name.size == 0) return fail(r, ATH_ERR_FORMAT, "its name is empty");
    r->name = t.name;
    if (t.name.size > ATH_GGUF_MAX_TENSOR_NAME) {
        return fail(r, ATH_ERR_FORMAT, "its name has %zu bytes, at most 63 are allowed", t.name.size);
    }
    if (ath_gguf_index_find(&g->tensor_index, g->tensors, sizeof t, t.name) >= 0) {
        return fail(r, ATH_ERR_FORMAT, "it occurs twice");
    }
    ATH_TRY(read_shape(r, &t));
    ATH_TRY(read_tensor_type(r, &t));
    ATH_TRY(check_offset(r, &t, expected));
    if (!ath_gguf_grow((void **)&g->tensors, &g->tensor_capacity, g->n_tensors, sizeof t)) {
        return fail(r, ATH_ERR_NOMEM, "no memory for it");
    }
    g->tensors[g->n_tensors++] = t;
    if (!ath_gguf_index_add(&g->tensor_index, g->tensors, sizeof t, g->n_tensors - 1)) {
        return fail(r, ATH_ERR_NOMEM, "no memory for it");
    }
    return ATH_OK;
}

/* The data section's start is known only behind the last tensor's entry; then each gets its place in the map.
 */
static ath_status place_tensors(reader *r, size_t first) {
    uint64_t at = (r->pos + r->alignment - 1) & ~(r->alignment - 1);
    for (size_t i = first; i < r->gguf->n_tensors; i++) {
        ath_gguf_tensor *t = &r->gguf->tensors[i];
        r->name = t->name;
        if (at > r->size || t->size > r->size - at) {
            return fail(r, ATH_ERR_FORMAT,
                        "its data (%zu bytes at %" PRIu64 ") lie past the end of the file (%zu bytes)",
                        t->size, at, r->size);
        }
        t->data = r->data + at;
        at = (at + t->size + r->alignment - 1) & ~(r->alignment - 1);
    }
    return ATH_OK;
}

ath_status ath_gguf_part_read(ath_gguf *gguf, ath_error *err) {
    ath_gguf_part *part = &gguf->parts[gguf->n_parts - 1];
    reader r = {.data = part->map.data, .size = part->map.size, .gguf = gguf, .part = part, .err = err};
    int64_t n_tensors = 0, n_kv = 0;
    ATH_TRY(read_header(&r, &n_tensors, &n_kv));
    ATH_TRY(read_kvs(&r, n_kv));
    ATH_TRY(read_alignment(&r));
    r.kind = "tensor";
    size_t first = gguf->n_tensors;
    uint64_t expected = 0;
    for (r.number = 0; r.number < (size_t)n_tensors; r.number++) ATH_TRY(read_tensor(&r, &expected));
    return place_tensors(&r, first);
}
