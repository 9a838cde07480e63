/* GGUF files: a reader that trusts nothing, and a writer for tests and tools.
 *
 * Versions 2 and 3, little-endian, one file or splits (PREFIX-00001-of-0000N.gguf). The file is mapped; keys, strings
 * and tensors point into the map and live as long as the ath_gguf. Every size is checked before it is used; a broken
 * file is ATH_ERR_FORMAT with a sentence that names the file and the key or tensor. Read-only after opening, so any
 * number of threads may use it at once. */
#ifndef ATH_GGUF_H
#define ATH_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/mapfile.h"
#include "codec/tensor_type.h"

typedef enum ath_gguf_type {
    ATH_GGUF_U8 = 0, ATH_GGUF_I8, ATH_GGUF_U16, ATH_GGUF_I16, ATH_GGUF_U32, ATH_GGUF_I32, ATH_GGUF_F32,
    ATH_GGUF_BOOL, ATH_GGUF_STRING, ATH_GGUF_ARRAY, ATH_GGUF_U64, ATH_GGUF_I64, ATH_GGUF_F64, ATH_GGUF_TYPE_COUNT,
} ath_gguf_type;

/* A string of the file: not NUL-terminated. */
typedef struct ath_str {
    const char *data;
    size_t size;
} ath_str;

typedef struct ath_gguf_kv {
    ath_str key;
    ath_gguf_type type;      /* value type; ARRAY for arrays */
    ath_gguf_type item_type; /* of an array's elements; never ARRAY */
    uint64_t count;          /* array elements; 1 for a scalar */
    const uint8_t *data;     /* raw little-endian value bytes (for strings: u64 length + bytes each), unaligned */
    const ath_str *strings;  /* string arrays: [count], parsed once; else NULL */
} ath_gguf_kv;

typedef struct ath_gguf_tensor {
    ath_str name;
    ath_tensor_type type;
    int n_dims;          /* 1..4 */
    int64_t ne[4];       /* ne[0] is contiguous; unused ones are 1 */
    const uint8_t *data; /* in the map of its part */
    size_t size;         /* bytes */
    int part;            /* which split file */
} ath_gguf_tensor;

typedef struct ath_gguf ath_gguf;

/* Opens path (for splits: the first part; the others are found beside it). */
ath_status ath_gguf_open(ath_gguf **out, const char *path, ath_error *err);
/* The same from memory, for tests and fuzzing: data is borrowed until the close, name stands for the path in messages,
 * a part of split files is refused. */
ath_status ath_gguf_open_memory(ath_gguf **out, const void *data, size_t size, const char *name, ath_error *err);
void ath_gguf_close(ath_gguf *gguf); /* NULL is fine */

/* Puts keys in place of the file's, or beside them: "KEY=TYPE:VALUE,...", TYPE int, float, bool or str (without commas).
 * Only right after opening: what ath_gguf_find returned before may be gone. */
ath_status ath_gguf_override(ath_gguf *gguf, const char *list, ath_error *err);

const char *ath_gguf_path(const ath_gguf *gguf);
uint32_t ath_gguf_version(const ath_gguf *gguf);
int ath_gguf_n_parts(const ath_gguf *gguf);
size_t ath_gguf_file_bytes(const ath_gguf *gguf); /* all parts */
int64_t ath_gguf_n_kv(const ath_gguf *gguf);
const ath_gguf_kv *ath_gguf_kv_at(const ath_gguf *gguf, int64_t i);
const ath_gguf_kv *ath_gguf_find(const ath_gguf *gguf, const char *key); /* NULL if absent; hashed, O(1) */
int64_t ath_gguf_n_tensors(const ath_gguf *gguf);
const ath_gguf_tensor *ath_gguf_tensor_at(const ath_gguf *gguf, int64_t i);
const ath_gguf_tensor *ath_gguf_find_tensor(const ath_gguf *gguf, const char *name); /* NULL if absent; O(1) */

/* Scalars with a default. An absent key gives fallback and ATH_OK; a value of another kind (string for number), or one
 * that does not fit (negative, too large), is ATH_ERR_FORMAT naming the key. Integer getters take any integer type
 * and bool; the float getter takes f32, f64 and integers. The key is printf-formatted: ("%s.block_count", arch). */
ath_status ath_gguf_get_u32(const ath_gguf *g, uint32_t *out, uint32_t fallback, ath_error *err, const char *key, ...)
    __attribute__((format(printf, 5, 6)));
ath_status ath_gguf_get_f32(const ath_gguf *g, float *out, float fallback, ath_error *err, const char *key, ...)
    __attribute__((format(printf, 5, 6)));
ath_status ath_gguf_get_bool(const ath_gguf *g, bool *out, bool fallback, ath_error *err, const char *key, ...)
    __attribute__((format(printf, 5, 6)));
/* {NULL, 0} if absent. */
ath_status ath_gguf_get_str(const ath_gguf *g, ath_str *out, ath_error *err, const char *key, ...)
    __attribute__((format(printf, 4, 5)));
/* Fills out[n] from an array of at least n integers (or bools), or from a scalar repeated; absent: fallback n times. */
ath_status ath_gguf_get_u32_array(const ath_gguf *g, uint32_t *out, int64_t n, uint32_t fallback, ath_error *err,
                                  const char *key, ...) __attribute__((format(printf, 6, 7)));
/* Element i of an array of numbers, converted; i < kv->count is the caller's duty. */
double ath_gguf_item_f64(const ath_gguf_kv *kv, uint64_t i);
int64_t ath_gguf_item_i64(const ath_gguf_kv *kv, uint64_t i);

/* Lets the kernel drop a tensor's resident pages: after repacking. */
void ath_gguf_release_tensor(const ath_gguf *gguf, const ath_gguf_tensor *tensor);

/* ---- writer: collects keys and tensors in memory, writes version 3, alignment 32 unless general.alignment was put */
typedef struct ath_gguf_writer ath_gguf_writer;
ath_status ath_gguf_writer_create(ath_gguf_writer **out, ath_error *err);
void ath_gguf_writer_free(ath_gguf_writer *w);
/* Values are copied. A key that was put before is replaced. */
ath_status ath_gguf_put_scalar(ath_gguf_writer *w, const char *key, ath_gguf_type type, const void *value, ath_error *err);
ath_status ath_gguf_put_str(ath_gguf_writer *w, const char *key, const char *value, ath_error *err);
ath_status ath_gguf_put_array(ath_gguf_writer *w, const char *key, ath_gguf_type item, const void *items, uint64_t n, ath_error *err);
ath_status ath_gguf_put_str_array(ath_gguf_writer *w, const char *key, const char *const *items, uint64_t n, ath_error *err);
/* data is borrowed until the file is written. */
ath_status ath_gguf_put_tensor(ath_gguf_writer *w, const char *name, ath_tensor_type type, int n_dims, const int64_t *ne,
                               const void *data, ath_error *err);
/* Writes to a temporary name beside path, syncs, renames: path is whole or untouched. */
ath_status ath_gguf_write(ath_gguf_writer *w, const char *path, ath_error *err);

#endif
