#include "base/memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t meminfo_available(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return UINT64_MAX;
    char line[256];
    unsigned long long kib, found = 0;
    int seen = 0;
    while (!seen && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) found = kib, seen = 1;
    fclose(file);
    return seen ? (uint64_t)found * 1024 : UINT64_MAX;
}

/* "max" or a missing file is no limit. */
static uint64_t read_number(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return UINT64_MAX;
    unsigned long long value;
    int got = fscanf(file, "%llu", &value);
    fclose(file);
    return got == 1 ? (uint64_t)value : UINT64_MAX;
}

static uint64_t group_available(void) {
    uint64_t max = read_number("/sys/fs/cgroup/memory.max"), now = read_number("/sys/fs/cgroup/memory.current");
    if (max == UINT64_MAX || now == UINT64_MAX) return UINT64_MAX;
    return max > now ? max - now : 0;
}

static uint64_t address_space_available(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    if (file) {
        if (fscanf(file, "%llu", &pages) != 1) pages = 0;
        fclose(file);
    }
    uint64_t used = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

uint64_t ath_memory_available(void) {
    return least(meminfo_available(), least(group_available(), address_space_available()));
}

/* Maps one huge page more than asked for, and gives back what lies outside the aligned part. */
void *ath_memory_map(size_t bytes) {
    size_t all = bytes + ATH_HUGE_PAGE;
    if (all < bytes) return NULL;
    char *start = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    size_t before = (ATH_HUGE_PAGE - (uintptr_t)start % ATH_HUGE_PAGE) % ATH_HUGE_PAGE, after = ATH_HUGE_PAGE - before;
    if (before) munmap(start, before);
    if (after) munmap(start + before + bytes, after);
    madvise(start + before, bytes, MADV_HUGEPAGE);
    return start + before;
}

void ath_memory_unmap(void *memory, size_t bytes) { munmap(memory, bytes); }
