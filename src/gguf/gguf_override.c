/* Keys from the command line in place of the file's: --override-kv. They get the form that the file would have them in, so
 * nothing that asks for a key can tell the difference. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf_internal.h"

typedef struct value {
    ath_gguf_type type;
    uint8_t bytes[8]; /* of scalars */
    const char *text; /* of strings */
} value;

/* The part behind "TYPE:". False: it is no such value. */
static bool parse_value(const char *type, size_t size, const char *text, value *v) {
    char *end;
    errno = 0;
    *v = (value){.text = text};
    if (size == 3 && memcmp(type, "int", 3) == 0) {
        v->type = ATH_GGUF_I64;
        int64_t number = strtoll(text, &end, 10);
        memcpy(v->bytes, &number, sizeof number);
        return end != text && !*end && errno == 0;
    }
    if (size == 5 && memcmp(type, "float", 5) == 0) {
        v->type = ATH_GGUF_F64;
        double number = strtod(text, &end);
        memcpy(v->bytes, &number, sizeof number);
        return end != text && !*end && errno == 0;
    }
    if (size == 4 && memcmp(type, "bool", 4) == 0) {
        v->type = ATH_GGUF_BOOL;
        v->bytes[0] = strcmp(text, "true") == 0;
        return v->bytes[0] || strcmp(text, "false") == 0;
    }
    v->type = ATH_GGUF_STRING;
    return size == 3 && memcmp(type, "str", 3) == 0;
}

/* Room for the key and its value behind one another, freed with the part. NULL: no memory. */
static uint8_t *keep(ath_gguf_part *part, size_t size) {
    uint8_t **more = realloc(part->overrides, (part->n_overrides + 1) * sizeof *more);
    if (!more) return NULL;
    part->overrides = more;
    uint8_t *memory = malloc(size);
    if (memory) more[part->n_overrides++] = memory;
    return memory;
}

static bool set_key(ath_gguf_part *part, ath_gguf_kv kv) {
    int64_t at = ath_gguf_index_find(&part->kv_index, part->kvs, sizeof *part->kvs, kv.key);
    if (at >= 0) {
        free((void *)part->kvs[at].strings);
        part->kvs[at] = kv;
        return true;
    }
    if (!ath_gguf_grow((void **)&part->kvs, &part->kv_capacity, part->n_kv, sizeof *part->kvs)) return false;
    part->kvs[part->n_kv++] = kv;
    return ath_gguf_index_add(&part->kv_index, part->kvs, sizeof *part->kvs, part->n_kv - 1);
}

static ath_status override_one(ath_gguf_part *part, const char *spec, ath_error *err) {
    const char *equals = strchr(spec, '='), *colon = equals ? strchr(equals, ':') : NULL;
    value v;
    if (!colon || equals == spec || !parse_value(equals + 1, (size_t)(colon - equals - 1), colon + 1, &v))
        return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                        "--override-kv expects KEY=TYPE:VALUE with a type of int, float, bool, str, but got \"%.100s\"",
                        spec);
    size_t key_size = (size_t)(equals - spec);
    if (strncmp(spec, "split.", 6) == 0 || strncmp(spec, "general.alignment=", 18) == 0)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "--override-kv %.*s: it says how the file is laid out, and stays as it is",
                        (int)key_size, spec);
    uint64_t text_size = strlen(v.text);
    uint8_t *memory = keep(part, key_size + 8 + text_size);
    if (!memory) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for --override-kv");
    memcpy(memory, spec, key_size);
    memcpy(memory + key_size, v.type == ATH_GGUF_STRING ? (void *)&text_size : v.bytes, 8);
    memcpy(memory + key_size + 8, v.text, text_size);
    ath_gguf_kv kv = {.key = {(const char *)memory, key_size}, .type = v.type, .item_type = v.type, .count = 1,
                      .data = memory + key_size};
    return set_key(part, kv) ? ATH_OK : ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for --override-kv");
}

ath_status ath_gguf_override(ath_gguf *gguf, const char *list, ath_error *err) {
    for (size_t size; *list; list += size + (list[size] == ',')) {
        size = strcspn(list, ",");
        char *spec = strndup(list, size);
        if (!spec) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for --override-kv");
        ath_status status = override_one(&gguf->parts[0], spec, err);
        free(spec);
        ATH_TRY(status);
    }
    return ATH_OK;
}
