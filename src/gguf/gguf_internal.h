/* What the files of src/gguf share: the parts of an open file, the name index, the printing of untrusted
 * names. */
#ifndef ATH_GGUF_INTERNAL_H
#define ATH_GGUF_INTERNAL_H

#include "gguf/gguf.h"

/* Values are copied between file and memory as they are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "GGUF files are read and written in the host's byte order");

enum {
    ATH_GGUF_DEFAULT_ALIGNMENT = 32,
    ATH_GGUF_MAX_DIMS = 4,
    ATH_GGUF_MAX_TENSOR_NAME = 63, /* bytes */
    ATH_GGUF_MAX_LENGTH = 1 << 30, /* bytes of a string, elements of an array */
};

/* Finds the element of an array by its name. Open addressing; a slot holds element number + 1, 0 is free. The
 * elements are structs that begin with their ath_str name, so one index serves keys and tensors, reader and
 * writer. */
typedef struct ath_gguf_index {
    size_t *slots;
    size_t n_slots; /* power of two, or 0 */
    size_t n_used;
} ath_gguf_index;

/* Element number, or -1. */
int64_t ath_gguf_index_find(const ath_gguf_index *index, const void *items, size_t item_size, ath_str name);
/* Adds items[n], whose name must not be in it yet; false: no memory. */
bool ath_gguf_index_add(ath_gguf_index *index, const void *items, size_t item_size, size_t n);

/* Makes room for one more item behind n of them; false: no memory. */
bool ath_gguf_grow(void **items, size_t *capacity, size_t n, size_t item_size);

/* A name or path of the outside world, made fit for a message: printable ASCII, cut. A temporary of it may
 * stand in an argument list. */
typedef struct ath_gguf_shown {
    char text[160];
} ath_gguf_shown;
ath_gguf_shown ath_gguf_show(ath_str name);          /* keeps the beginning */
ath_gguf_shown ath_gguf_show_path(const char *path); /* keeps the end */

ath_str ath_gguf_str(const char *s);

typedef struct ath_gguf_part {
    ath_mapfile map;
    bool borrowed; /* map.data is the caller's memory */
    char *path;
    uint32_t version;
    ath_gguf_kv *kvs;
    size_t n_kv, kv_capacity;
    ath_gguf_index kv_index;
    uint8_t **overrides; /* memory of keys that did not come from the file */
    size_t n_overrides;
} ath_gguf_part;

struct ath_gguf {
    ath_gguf_part *parts; /* never 0 of them after opening; keys are those of parts[0] */
    int n_parts;
    ath_gguf_tensor *tensors; /* of all parts */
    size_t n_tensors, tensor_capacity;
    ath_gguf_index tensor_index;
};

/* Reads keys and tensors of the last part, whose map is in place. */
ath_status ath_gguf_part_read(ath_gguf *gguf, ath_error *err);
const ath_gguf_kv *ath_gguf_part_find(const ath_gguf_part *part, const char *key);
/* An absent key is an error here: split files cannot do without. */
ath_status ath_gguf_part_u32(const ath_gguf_part *part, const char *key, uint32_t *out, ath_error *err);

bool ath_gguf_type_is_integer(ath_gguf_type type); /* bool included */
size_t ath_gguf_type_size(ath_gguf_type type); /* bytes of a scalar; 0 for strings, arrays and unknown ones */
const char *ath_gguf_type_name(ath_gguf_type type);

#endif
