/* The writer: collects keys and tensors, refuses what the reader would refuse, writes version 3 in one go.
 *
 * The file appears under its name only when it is whole: temporary name, fsync, rename. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/gguf_internal.h"

typedef struct written_kv {
    ath_gguf_kv kv; /* key.data and data are owned */
    size_t size;    /* bytes of data */
} written_kv;

struct ath_gguf_writer {
    written_kv *kvs;
    size_t n_kv, kv_capacity;
    ath_gguf_index kv_index;
    ath_gguf_tensor *tensors; /* name.data is owned, data borrowed */
    size_t n_tensors, tensor_capacity;
    ath_gguf_index tensor_index;
    uint32_t alignment;
};

ath_status ath_gguf_writer_create(ath_gguf_writer **out, ath_error *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a GGUF writer");
    (*out)->alignment = ATH_GGUF_DEFAULT_ALIGNMENT;
    return ATH_OK;
}

void ath_gguf_writer_free(ath_gguf_writer *w) {
    if (!w) return;
    for (size_t i = 0; i < w->n_kv; i++) {
        free((void *)w->kvs[i].kv.key.data);
        free((void *)w->kvs[i].kv.data);
    }
    for (size_t i = 0; i < w->n_tensors; i++) free((void *)w->tensors[i].name.data);
    free(w->kvs);
    free(w->tensors);
    free(w->kv_index.slots);
    free(w->tensor_index.slots);
    free(w);
}

/* ---- keys */

static ath_status no_memory(const char *name, ath_error *err) {
    return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for '%s'", ath_gguf_show(ath_gguf_str(name)).text);
}

static ath_status check_key(ath_gguf_writer *w, const char *key, ath_gguf_type type, const void *data,
                            ath_error *err) {
    if (key[0] == 0) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a GGUF key must not be empty");
    if (strcmp(key, "general.alignment") != 0) return ATH_OK;
    uint32_t alignment = 0;
    if (type == ATH_GGUF_U32) memcpy(&alignment, data, sizeof alignment);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "general.alignment must be a u32 and a power of two");
    }
    w->alignment = alignment;
    return ATH_OK;
}

/* Takes item (its data are freed on failure) under a copy of key. */
static ath_status put(ath_gguf_writer *w, const char *key, written_kv item, ath_error *err) {
    ath_status status = check_key(w, key, item.kv.type, item.kv.data, err);
    int64_t old = ath_gguf_index_find(&w->kv_index, w->kvs, sizeof *w->kvs, ath_gguf_str(key));
    if (status == ATH_OK && old >= 0) {
        free((void *)w->kvs[old].kv.data);
        item.kv.key = w->kvs[old].kv.key;
        w->kvs[old] = item;
        return ATH_OK;
    }
    char *copy = status == ATH_OK ? strdup(key) : NULL;
    if (copy && ath_gguf_grow((void **)&w->kvs, &w->kv_capacity, w->n_kv, sizeof *w->kvs)) {
        item.kv.key = ath_gguf_str(copy);
        w->kvs[w->n_kv] = item;
        if (ath_gguf_index_add(&w->kv_index, w->kvs, sizeof *w->kvs, w->n_kv)) {
            w->n_kv++;
            return ATH_OK;
        }
    }
    free(copy);
    free((void *)item.kv.data);
    return status == ATH_OK ? no_memory(key, err) : status;
}

static ath_status put_fixed(ath_gguf_writer *w, const char *key, ath_gguf_type type, ath_gguf_type item,
                            const void *items, uint64_t n, ath_error *err) {
    if ((unsigned)item >= ATH_GGUF_TYPE_COUNT || ath_gguf_type_size(item) == 0) {
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "key '%s': type %d is no number type", key, (int)item);
    }
    if (n > ATH_GGUF_MAX_LENGTH)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "key '%s': more than 2^30 elements", key);
    size_t size = (size_t)n * ath_gguf_type_size(item);
    if (item == ATH_GGUF_BOOL) {
        for (size_t i = 0; i < size; i++) {
            if (((const uint8_t *)items)[i] > 1)
                return ATH_FAIL(err, ATH_ERR_ARGUMENT, "key '%s': a bool is 0 or 1", key);
        }
    }
    uint8_t *data = malloc(size ? size : 1);
    if (!data) return no_memory(key, err);
    if (size > 0) memcpy(data, items, size);
    return put(w, key, (written_kv){{.type = type, .item_type = item, .count = n, .data = data}, size}, err);
}

ath_status ath_gguf_put_scalar(ath_gguf_writer *w, const char *key, ath_gguf_type type, const void *value,
                               ath_error *err) {
    return put_fixed(w, key, type, type, value, 1, err);
}

ath_status ath_gguf_put_array(ath_gguf_writer *w, const char *key, ath_gguf_type item, const void *items,
                              uint64_t n, ath_error *err) {
    return put_fixed(w, key, ATH_GGUF_ARRAY, item, items, n, err);
}

static ath_status put_strings(ath_gguf_writer *w, const char *key, ath_gguf_type type,
                              const char *const *items, uint64_t n, ath_error *err) {
    size_t size = 0;
    bool fits = n <= ATH_GGUF_MAX_LENGTH;
    for (uint64_t i = 0; fits && i < n; i++) {
        size_t length = strlen(items[i]);
        fits = length <= ATH_GGUF_MAX_LENGTH;
        size += sizeof(uint64_t) + length;
    }
    if (!fits)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "key '%s': a string or the array is longer than 2^30", key);
    uint8_t *data = malloc(size ? size : 1), *at = data;
    if (!data) return no_memory(key, err);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t length = strlen(items[i]);
        memcpy(at, &length, sizeof length);
        memcpy(at + sizeof length, items[i], length);
        at += sizeof length + length;
    }
    return put(w, key,
               (written_kv){{.type = type, .item_type = ATH_GGUF_STRING, .count = n, .data = data}, size},
               err);
}

ath_status ath_gguf_put_str(ath_gguf_writer *w, const char *key, const char *value, ath_error *err) {
    return put_strings(w, key, ATH_GGUF_STRING, &value, 1, err);
}

ath_status ath_gguf_put_str_array(ath_gguf_writer *w, const char *key, const char *const *items, uint64_t n,
                                  ath_error *err) {
    return put_strings(w, key, ATH_GGUF_ARRAY, items, n, err);
}

/* ---- tensors */

static ath_status check_shape(ath_gguf_tensor *t, const char *name, const int64_t *ne, ath_error *err) {
    const ath_tensor_type_info *info = ath_tensor_type_get(t->type);
    size_t length = strlen(name);
    if (length == 0 || length > ATH_GGUF_MAX_TENSOR_NAME) {
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "tensor '%s': a name has 1 to 63 bytes, not %zu",
                        ath_gguf_show(ath_gguf_str(name)).text, length);
    }
    if (t->n_dims < 1 || t->n_dims > ATH_GGUF_MAX_DIMS) {
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "tensor '%s': %d dimensions, 1 to 4 are allowed", name,
                        t->n_dims);
    }
    if (!info->name)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "tensor '%s': type %d is unknown", name, (int)t->type);
    t->size = (size_t)info->block_bytes;
    for (int i = 0; i < ATH_GGUF_MAX_DIMS; i++) {
        t->ne[i] = i < t->n_dims ? ne[i] : 1;
        bool whole = t->ne[i] > 0 && (i > 0 || t->ne[0] % info->block_size == 0);
        if (!whole || __builtin_mul_overflow(t->size, i ? t->ne[i] : t->ne[0] / info->block_size, &t->size)) {
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "tensor '%s': ne[%d] cannot be %" PRId64 " with type %s",
                            name, i, t->ne[i], info->name);
        }
    }
    return ATH_OK;
}

ath_status ath_gguf_put_tensor(ath_gguf_writer *w, const char *name, ath_tensor_type type, int n_dims,
                               const int64_t *ne, const void *data, ath_error *err) {
    ath_gguf_tensor t = {.type = type, .n_dims = n_dims, .data = data};
    ATH_TRY(check_shape(&t, name, ne, err));
    if (ath_gguf_index_find(&w->tensor_index, w->tensors, sizeof t, ath_gguf_str(name)) >= 0) {
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "tensor '%s' was put before", name);
    }
    char *copy = strdup(name);
    if (copy && ath_gguf_grow((void **)&w->tensors, &w->tensor_capacity, w->n_tensors, sizeof t)) {
        t.name = ath_gguf_str(copy);
        w->tensors[w->n_tensors] = t;
        if (ath_gguf_index_add(&w->tensor_index, w->tensors, sizeof t, w->n_tensors)) {
            w->n_tensors++;
            return ATH_OK;
        }
    }
    free(copy);
    return no_memory(name, err);
}

/* ---- the file. stdio keeps the error flag, so single writes need no check. */

static void emit(FILE *f, const void *data, size_t size) {
    if (size > 0) fwrite(data, 1, size, f);
}

static void emit_u32(FILE *f, uint32_t value) {
    emit(f, &value, sizeof value);
}

static void emit_u64(FILE *f, uint64_t value) {
    emit(f, &value, sizeof value);
}

static void emit_str(FILE *f, ath_str s) {
    emit_u64(f, s.size);
    emit(f, s.data, s.size);
}

static void emit_padding(FILE *f, uint64_t written, uint64_t alignment) {
    static const uint8_t zeros[4096];
    for (uint64_t n = (alignment - written % alignment) % alignment; n > 0;) {
        size_t step = n < sizeof zeros ? (size_t)n : sizeof zeros;
        emit(f, zeros, step);
        n -= step;
    }
}

static void emit_meta(FILE *f, const ath_gguf_writer *w) {
    emit(f, "GGUF", 4);
    emit_u32(f, 3);
    emit_u64(f, w->n_tensors);
    emit_u64(f, w->n_kv);
    for (size_t i = 0; i < w->n_kv; i++) {
        const ath_gguf_kv *kv = &w->kvs[i].kv;
        emit_str(f, kv->key);
        emit_u32(f, (uint32_t)kv->type);
        if (kv->type == ATH_GGUF_ARRAY) {
            emit_u32(f, (uint32_t)kv->item_type);
            emit_u64(f, kv->count);
        }
        emit(f, kv->data, w->kvs[i].size);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const ath_gguf_tensor *t = &w->tensors[i];
        emit_str(f, t->name);
        emit_u32(f, (uint32_t)t->n_dims);
        emit(f, t->ne, (size_t)t->n_dims * sizeof *t->ne);
        emit_u32(f, (uint32_t)t->type);
        emit_u64(f, offset);
        offset = (offset + t->size + w->alignment - 1) / w->alignment * w->alignment;
    }
}

static ath_status write_all(const ath_gguf_writer *w, int fd, const char *path, ath_error *err) {
    FILE *f = fdopen(fd, "wb");
    if (!f) {
        int reason = errno;
        close(fd);
        return ATH_FAIL(err, ATH_ERR_IO, "cannot write %s: %s", path, strerror(reason));
    }
    errno = 0;
    emit_meta(f, w);
    off_t meta = ftello(f);
    emit_padding(f, meta < 0 ? 0 : (uint64_t)meta, w->alignment);
    for (size_t i = 0; i < w->n_tensors && !ferror(f); i++) {
        emit(f, w->tensors[i].data, w->tensors[i].size);
        emit_padding(f, w->tensors[i].size, w->alignment);
    }
    bool failed = ferror(f) || meta < 0 || fflush(f) != 0 || fsync(fd) != 0;
    int reason = errno;
    if (fclose(f) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    return failed ? ATH_FAIL(err, ATH_ERR_IO, "cannot write %s: %s", path, strerror(reason)) : ATH_OK;
}

ath_status ath_gguf_write(ath_gguf_writer *w, const char *path, ath_error *err) {
    size_t room = strlen(path) + 32;
    char *temporary = malloc(room);
    if (!temporary) return no_memory(path, err);
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; i < 100 && fd < 0 && errno == EEXIST; i++) {
        snprintf(temporary, room, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    ath_status status = fd < 0 ? ATH_FAIL(err, ATH_ERR_IO, "cannot create %s: %s", temporary, strerror(errno))
                               : write_all(w, fd, path, err);
    if (status == ATH_OK && rename(temporary, path) != 0) {
        status = ATH_FAIL(err, ATH_ERR_IO, "cannot rename %s to its name: %s", temporary, strerror(errno));
    }
    if (status != ATH_OK && fd >= 0) unlink(temporary);
    free(temporary);
    return status;
}
