/* athanor bench --memory: how fast this machine reads memory, which bounds decode. Each thread adds up its own part of a
 * block that is much larger than the caches; the parts lie in huge pages where the system gives them, so that page tables
 * cost nothing. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "json.h"

enum { PASSES = 8, LANES = 16, MOST_THREADS = 1024 };

typedef struct reader {
    pthread_t thread;
    pthread_barrier_t *barrier;
    uint64_t *data;
    size_t n; /* words, a multiple of LANES */
    uint64_t sum;
    double start_ms[PASSES], end_ms[PASSES];
} reader;

/* Independent sums, so that the compiler may use vectors and loads never wait for an addition. */
static uint64_t add_up(const uint64_t *data, size_t n) {
    uint64_t sums[LANES] = {0}, all = 0;
    for (size_t i = 0; i < n; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) sums[lane] += data[i + lane];
    for (size_t lane = 0; lane < LANES; lane++) all += sums[lane];
    return all;
}

static void *read_part(void *arg) {
    reader *r = arg;
    memset(r->data, 1, r->n * sizeof *r->data); /* the pages come to the reader's own node */
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(r->barrier);
        r->start_ms[pass] = ath_tool_now_ms();
        r->sum += add_up(r->data, r->n);
        r->end_ms[pass] = ath_tool_now_ms();
    }
    return NULL;
}

/* GB/s of the best pass: all bytes over the time from the first start to the last end. The sums keep the loop alive. */
static double best_pass(const reader *readers, int n_threads, uint64_t *sums) {
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = readers[0].start_ms[pass], end = 0, bytes = 0;
        for (int i = 0; i < n_threads; i++) {
            if (readers[i].start_ms[pass] < start) start = readers[i].start_ms[pass];
            if (readers[i].end_ms[pass] > end) end = readers[i].end_ms[pass];
            bytes += (double)readers[i].n * sizeof(uint64_t);
            *sums += readers[i].sum;
        }
        double speed = end > start ? bytes / (end - start) * 1e-6 : 0;
        if (speed > best) best = speed;
    }
    return best;
}

static double run_readers(reader *readers, int n_threads) {
    pthread_barrier_t barrier;
    if (pthread_barrier_init(&barrier, NULL, (unsigned)n_threads)) return -1;
    for (int i = 0; i < n_threads; i++) {
        readers[i].barrier = &barrier;
        /* a barrier that too few threads reach would hang: without its threads the program can't go on */
        if (i > 0 && pthread_create(&readers[i].thread, NULL, read_part, &readers[i])) {
            ath_tool_fail("no thread can be started");
            abort();
        }
    }
    read_part(&readers[0]);
    for (int i = 1; i < n_threads; i++) pthread_join(readers[i].thread, NULL);
    pthread_barrier_destroy(&barrier);
    uint64_t sums = 0;
    double best = best_pass(readers, n_threads, &sums);
    return sums ? best : -1;
}

static double read_block(int n_threads, size_t bytes) {
    size_t part = bytes / (size_t)n_threads / (LANES * sizeof(uint64_t)) * LANES;
    reader *readers = calloc((size_t)n_threads, sizeof *readers);
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double speed = -1;
    if (readers && block != MAP_FAILED) {
        madvise(block, bytes, MADV_HUGEPAGE);
        for (int i = 0; i < n_threads; i++) {
            readers[i].data = (uint64_t *)block + (size_t)i * part;
            readers[i].n = part;
        }
        speed = run_readers(readers, n_threads);
    }
    if (block != MAP_FAILED) munmap(block, bytes);
    free(readers);
    return speed;
}

int bench_read_bandwidth(const ath_args *args, int n_threads, double *speed) {
    int64_t mib = ATH_ARG_INT(args, B_MEMORY_SIZE), available = (int64_t)(ath_available_memory() >> 20);
    if (mib < 1 || mib > 1 << 24) return ath_tool_fail("--memory-size expects 1 to %d", 1 << 24);
    if (mib > available)
        return ath_tool_fail("%lld MiB of memory can't be read, %lld are available: lower --memory-size", (long long)mib,
                             (long long)available);
    *speed = read_block(n_threads, (size_t)mib << 20);
    return *speed > 0 ? -1 : ath_tool_fail("the speed of memory can't be measured");
}

static int print_json(int64_t mib, const char *cpu, const int *threads, const double *speeds, int n) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "cpu_info", cpu);
    cJSON_AddNumberToObject(json, "bytes", (double)mib * (1 << 20));
    cJSON *list = cJSON_AddArrayToObject(json, "read");
    for (int i = 0; i < n; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "threads", threads[i]);
        cJSON_AddNumberToObject(one, "gb_per_s", speeds[i]);
        cJSON_AddItemToArray(list, one);
    }
    return ath_json_print(json, stdout);
}

int bench_memory(const ath_args *args) {
    int64_t mib = ATH_ARG_INT(args, B_MEMORY_SIZE);
    const char *format = ATH_ARG_TEXT(args, B_OUTPUT);
    bool json = strcmp(format, "json") == 0;
    if (!json && strcmp(format, "md") != 0)
        return ath_tool_fail("--memory prints text or JSON (-o json), not -o %s", format);
    int all = (int)sysconf(_SC_NPROCESSORS_ONLN), n = all > 1 ? 2 : 1, code = -1;
    int threads[2] = {1, all > MOST_THREADS ? MOST_THREADS : all};
    double speeds[2];
    for (int i = 0; i < n && code < 0; i++) code = bench_read_bandwidth(args, threads[i], &speeds[i]);
    if (code >= 0) return code;
    char cpu[128];
    bench_cpu_name(cpu, sizeof cpu);
    if (json) return print_json(mib, cpu, threads, speeds, n) || ath_tool_flush();
    printf("%s, reading %lld MiB\n", cpu, (long long)mib);
    for (int i = 0; i < n; i++) printf("%4d thread%s %8.2f GB/s\n", threads[i], threads[i] > 1 ? "s" : " ", speeds[i]);
    return ath_tool_flush();
}
