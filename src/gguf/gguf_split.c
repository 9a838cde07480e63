/* Opening and closing: one file, one piece of memory, or the parts PREFIX-00001-of-0000N.gguf of a split
 * model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf_internal.h"

/* Appends an empty part for path, NULL if there is no memory. Earlier part pointers are void afterwards. */
static ath_gguf_part *add_part(ath_gguf *gguf, const char *path) {
    char *copy = strdup(path);
    ath_gguf_part *parts = copy ? realloc(gguf->parts, ((size_t)gguf->n_parts + 1) * sizeof *parts) : NULL;
    if (!parts) {
        free(copy);
        return NULL;
    }
    gguf->parts = parts;
    parts[gguf->n_parts] = (ath_gguf_part){.path = copy};
    return &parts[gguf->n_parts++];
}

static ath_status open_part(ath_gguf *gguf, const char *path, ath_error *err) {
    ath_gguf_part *part = add_part(gguf, path);
    if (!part) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory to open %s", ath_gguf_show_path(path).text);
    ATH_TRY(ath_mapfile_open(&part->map, path, err));
    return ath_gguf_part_read(gguf, err);
}

static void close_part(ath_gguf_part *part) {
    for (size_t i = 0; i < part->n_kv; i++) free((void *)part->kvs[i].strings);
    free(part->kvs);
    for (size_t i = 0; i < part->n_overrides; i++) free(part->overrides[i]);
    free(part->overrides);
    free(part->kv_index.slots);
    if (!part->borrowed) ath_mapfile_close(&part->map);
    free(part->path);
}

void ath_gguf_close(ath_gguf *gguf) {
    if (!gguf) return;
    for (int i = 0; i < gguf->n_parts; i++) close_part(&gguf->parts[i]);
    free(gguf->parts);
    free(gguf->tensors);
    free(gguf->tensor_index.slots);
    free(gguf);
}

/* The other parts bring tensors only: their keys must tell the same story, then are of no use. */
static ath_status check_part(const ath_gguf *gguf, uint32_t no, uint32_t count, ath_error *err) {
    const ath_gguf_part *part = &gguf->parts[no];
    uint32_t its_no, its_count;
    ATH_TRY(ath_gguf_part_u32(part, "split.no", &its_no, err));
    ATH_TRY(ath_gguf_part_u32(part, "split.count", &its_count, err));
    if (its_no != no) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key 'split.no' is %" PRIu32 ", but its name says %" PRIu32,
                        ath_gguf_show_path(part->path).text, its_no, no);
    }
    if (its_count != count) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key 'split.count' is %" PRIu32 ", but the first part says %" PRIu32,
                        ath_gguf_show_path(part->path).text, its_count, count);
    }
    return ATH_OK;
}

static ath_status open_others(ath_gguf *gguf, uint32_t count, ath_error *err) {
    char end[64];
    snprintf(end, sizeof end, "-00001-of-%05" PRIu32 ".gguf", count);
    size_t path_size = strlen(gguf->parts[0].path), end_size = strlen(end);
    if (path_size < end_size || strcmp(gguf->parts[0].path + path_size - end_size, end) != 0) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key 'split.count' says %" PRIu32
                        " parts, so the name must end in %s for the others to be found",
                        ath_gguf_show_path(gguf->parts[0].path).text, count, end);
    }
    size_t room = path_size + sizeof end;
    char *path = malloc(room);
    if (!path) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory to open the parts of a split model");
    memcpy(path, gguf->parts[0].path, path_size - end_size);
    ath_status status = ATH_OK;
    for (uint32_t no = 1; no < count && status == ATH_OK; no++) {
        snprintf(path + path_size - end_size, room - (path_size - end_size),
                 "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", no + 1, count);
        status = open_part(gguf, path, err);
        if (status == ATH_OK) status = check_part(gguf, no, count, err);
    }
    free(path);
    return status;
}

/* If the first part says that it is one of several, opens the others. */
static ath_status open_splits(ath_gguf *gguf, ath_error *err) {
    const ath_gguf_part *first = &gguf->parts[0];
    if (!ath_gguf_part_find(first, "split.count")) return ATH_OK;
    uint32_t no, count, n_tensors;
    ATH_TRY(ath_gguf_part_u32(first, "split.count", &count, err));
    if (count <= 1) return ATH_OK;
    ATH_TRY(ath_gguf_part_u32(first, "split.no", &no, err));
    ATH_TRY(ath_gguf_part_u32(first, "split.tensors.count", &n_tensors, err));
    ath_gguf_shown path = ath_gguf_show_path(first->path);
    if (count > UINT16_MAX) {
        return ATH_FAIL(err, ATH_ERR_FORMAT, "%s: key 'split.count' is %" PRIu32 ", more than 65535",
                        path.text, count);
    }
    if (no != 0) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key 'split.no' is %" PRIu32 ": this is not the first of %" PRIu32
                        " parts; name that one",
                        path.text, no, count);
    }
    if (first->borrowed) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key 'split.count' is %" PRIu32 ", but memory holds one part", path.text, count);
    }
    ATH_TRY(open_others(gguf, count, err));
    if (gguf->n_tensors != n_tensors) {
        return ATH_FAIL(err, ATH_ERR_FORMAT,
                        "%s: key 'split.tensors.count' is %" PRIu32 ", but the %" PRIu32 " parts hold %zu",
                        path.text, n_tensors, count, gguf->n_tensors);
    }
    return ATH_OK;
}

static ath_status finish_open(ath_gguf **out, ath_gguf *gguf, ath_status status) {
    if (status == ATH_OK) {
        *out = gguf;
    } else {
        ath_gguf_close(gguf);
    }
    return status;
}

ath_status ath_gguf_open(ath_gguf **out, const char *path, ath_error *err) {
    *out = NULL;
    ath_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory to open %s", ath_gguf_show_path(path).text);
    ath_status status = open_part(gguf, path, err);
    if (status == ATH_OK) status = open_splits(gguf, err);
    return finish_open(out, gguf, status);
}

ath_status ath_gguf_open_memory(ath_gguf **out, const void *data, size_t size, const char *name,
                                ath_error *err) {
    *out = NULL;
    ath_gguf *gguf = calloc(1, sizeof *gguf);
    ath_gguf_part *part = gguf ? add_part(gguf, name) : NULL;
    if (!part) {
        return finish_open(
            out, gguf, ATH_FAIL(err, ATH_ERR_NOMEM, "no memory to open %s", ath_gguf_show_path(name).text));
    }
    part->map = (ath_mapfile){data, size};
    part->borrowed = true;
    ath_status status = ath_gguf_part_read(gguf, err);
    if (status == ATH_OK) status = open_splits(gguf, err);
    return finish_open(out, gguf, status);
}
