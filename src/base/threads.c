#include "base/threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define CPU_RELAX() __builtin_ia32_pause()
#else
#define CPU_RELAX() __asm__ volatile("" ::: "memory")
#endif

enum { SPIN_ROUNDS = 2000 }; /* about 30-60 us of spinning before a thread sleeps */

struct ath_threads {
    _Alignas(64) _Atomic uint32_t epoch; /* futex word: bumped once per loop, and at the end */
    _Alignas(64) _Atomic int64_t next;   /* next task to hand out */
    _Alignas(64) _Atomic uint32_t busy;  /* futex word: workers that have not finished the present loop */
    _Atomic int sleepers;
    _Atomic int stop;
    ath_task_fn fn;
    void *arg;
    int64_t n_tasks;
    int n_threads;
    struct worker {
        ath_threads *pool;
        pthread_t thread;
        int index;
    } *workers; /* [n_threads - 1] */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void run_tasks(ath_threads *pool, int index) {
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= pool->n_tasks) return;
        pool->fn(pool->arg, task, index);
    }
}

static uint32_t wait_for_epoch(ath_threads *pool, uint32_t seen) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        uint32_t now = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        if (now != seen) return now;
        CPU_RELAX();
    }
    atomic_fetch_add(&pool->sleepers, 1);
    uint32_t now;
    while ((now = atomic_load(&pool->epoch)) == seen) futex_wait(&pool->epoch, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
    return now;
}

static void *worker_main(void *arg) {
    struct worker *self = arg;
    ath_threads *pool = self->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_epoch(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        run_tasks(pool, self->index);
        if (atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_acq_rel) == 1) futex_wake_all(&pool->busy);
    }
}

ath_status ath_threads_create(ath_threads **out, int n_threads, ath_error *err) {
    *out = NULL;
    if (n_threads < 1 || n_threads > 1024)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%d threads: between 1 and 1024 are possible", n_threads);
    ath_threads *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    struct worker *workers = calloc((size_t)n_threads, sizeof *workers);
    if (!pool || !workers) {
        free(pool);
        free(workers);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a pool of %d threads", n_threads);
    }
    memset(pool, 0, sizeof *pool);
    pool->n_threads = 1;
    pool->workers = workers;
    for (int i = 0; i < n_threads - 1; i++) {
        workers[i] = (struct worker){.pool = pool, .index = i + 1};
        int code = pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
        if (code != 0) {
            ath_threads_free(pool);
            return ATH_FAIL(err, ATH_ERR_NOMEM, "cannot start thread %d: %s", i + 1, strerror(code));
        }
        pool->n_threads++;
    }
    *out = pool;
    return ATH_OK;
}

void ath_threads_free(ath_threads *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake_all(&pool->epoch);
    for (int i = 0; i < pool->n_threads - 1; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
}

int ath_threads_count(const ath_threads *pool) { return pool->n_threads; }

static void wait_for_workers(ath_threads *pool) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->busy, memory_order_acquire) == 0) return;
        CPU_RELAX();
    }
    uint32_t left;
    while ((left = atomic_load(&pool->busy)) != 0) futex_wait(&pool->busy, left);
}

void ath_threads_run(ath_threads *pool, ath_task_fn fn, void *arg, int64_t n_tasks) {
    if (pool->n_threads == 1 || n_tasks <= 1) {
        for (int64_t task = 0; task < n_tasks; task++) fn(arg, task, 0);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->n_tasks = n_tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->busy, (uint32_t)(pool->n_threads - 1), memory_order_relaxed);
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers) > 0) futex_wake_all(&pool->epoch);
    run_tasks(pool, 0);
    wait_for_workers(pool);
}

/* A logical CPU is counted when it is the first of its core's siblings. */
static int is_first_sibling(int cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    int first = cpu;
    if (file) {
        if (fscanf(file, "%d", &first) != 1) first = cpu;
        fclose(file);
    }
    return first == cpu;
}

int ath_threads_default_count(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int cores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) cores += CPU_ISSET(cpu, &set) && is_first_sibling(cpu);
    return cores > 0 ? cores : 1;
}
