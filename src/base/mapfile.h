/* Read-only memory maps of whole files. */
#ifndef ATH_BASE_MAPFILE_H
#define ATH_BASE_MAPFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct ath_mapfile {
    const uint8_t *data; /* page-aligned; NULL for an empty file */
    size_t size;         /* bytes */
} ath_mapfile;

/* Maps path. A missing file, a folder or an unreadable one is ATH_ERR_IO with the path and the reason. */
ath_status ath_mapfile_open(ath_mapfile *map, const char *path, ath_error *err);
void ath_mapfile_close(ath_mapfile *map); /* NULL and unopened maps are fine */

/* Lets the kernel drop the resident pages that lie wholly inside [offset, offset + size): used after a tensor was
 * repacked, so that weights are not counted twice. The data can still be read (from disk again). */
void ath_mapfile_release(const ath_mapfile *map, size_t offset, size_t size);

#endif
