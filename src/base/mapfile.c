#include "base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

ath_status ath_mapfile_open(ath_mapfile *map, const char *path, ath_error *err) {
    *map = (ath_mapfile){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    if (fd < 0) return ATH_FAIL(err, ATH_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    ath_status status = ATH_OK;
    if (fstat(fd, &st) != 0) {
        status = ATH_FAIL(err, ATH_ERR_IO, "cannot read the size of %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = ATH_FAIL(err, ATH_ERR_IO, "%s is not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            status = ATH_FAIL(err, ATH_ERR_IO, "cannot map %s: %s", path, strerror(errno));
        } else {
            map->data = p;
            map->size = (size_t)st.st_size;
        }
    }
    close(fd);
    return status;
}

void ath_mapfile_close(ath_mapfile *map) {
    if (!map || !map->data) return;
    munmap((void *)map->data, map->size);
    *map = (ath_mapfile){0};
}

void ath_mapfile_release(const ath_mapfile *map, size_t offset, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (offset + page - 1) / page * page;
    size_t end = (offset + size) / page * page;
    if (begin >= end || end > map->size) return;
    madvise((void *)(map->data + begin), end - begin, MADV_DONTNEED);
}
