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

enum { ROUNDS_PER_POLL = 40 }; /* --poll 50 spins for about 30-60 us before a thread sleeps */

struct ath_threads {
    _Alignas(64) _Atomic uint32_t epoch;     /* futex word: bumped once per loop, and at the end */
    _Alignas(64) _Atomic int64_t left;       /* tasks of the present loop to be handed out */
    _Alignas(64) _Atomic int64_t unfinished; /* tasks that are not known to be done */
    _Atomic uint32_t ends;                   /* futex word: bumped when nothing is unfinished any more */
    _Atomic bool caller_sleeps;
    _Atomic int sleepers;
    _Atomic int stop;
    _Atomic int refused; /* a priority */
    int spin_rounds, priority;
    bool strict;
    cpu_set_t cpus; /* of all threads; with strict of one thread each */
    ath_task_fn fn;
    void *arg;
    int64_t n_tasks;
    int n_threads;
    struct worker {
        ath_threads *pool;
        pthread_t thread;
        int index;
        bool placed;
    } *workers; /* [n_threads - 1] */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int64_t n) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, n < INT_MAX ? (int)n : INT_MAX, NULL, NULL, 0);
}

/* A task of the present loop, or -1. The loop can't end before the task does: what it consists of stays as it is. */
static int64_t take_task(ath_threads *pool) {
    int64_t left = atomic_load_explicit(&pool->left, memory_order_relaxed);
    while (left > 0)
        if (atomic_compare_exchange_weak_explicit(&pool->left, &left, left - 1, memory_order_acquire, memory_order_relaxed))
            return pool->n_tasks - left;
    return -1;
}

static void run_tasks(ath_threads *pool, int index) {
    int64_t done = 0;
    for (int64_t task; (task = take_task(pool)) >= 0; done++) pool->fn(pool->arg, task, index);
    if (done == 0 || atomic_fetch_sub(&pool->unfinished, done) > done) return;
    atomic_fetch_add(&pool->ends, 1);
    if (atomic_load(&pool->caller_sleeps)) futex_wake(&pool->ends, 1);
}

static uint32_t wait_for_epoch(ath_threads *pool, uint32_t seen) {
    for (int i = 0; i < pool->spin_rounds; i++) {
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

/* The index-th CPU of the set, counting round. */
static cpu_set_t one_cpu(const cpu_set_t *cpus, int index) {
    cpu_set_t one;
    CPU_ZERO(&one);
    int skip = index % CPU_COUNT(cpus), cpu = 0;
    while (!CPU_ISSET(cpu, cpus) || skip-- > 0) cpu++;
    CPU_SET(cpu, &one);
    return one;
}

/* Moves the calling thread to the place of the pool's index-th. The set was checked when the pool was made: a CPU that
 * has gone since leaves the thread where it is. */
static void take_place(ath_threads *pool, int index) {
    static const int levels[] = {0, 40, 80, 90};
    cpu_set_t cpus = pool->strict ? one_cpu(&pool->cpus, index) : pool->cpus;
    sched_setaffinity(0, sizeof cpus, &cpus);
    int policy = pool->priority > 0 ? SCHED_FIFO : pool->priority < 0 ? SCHED_BATCH : SCHED_OTHER;
    struct sched_param level = {.sched_priority = pool->priority > 0 ? levels[pool->priority] : 0};
    if (sched_setscheduler(0, policy, &level) != 0) atomic_store(&pool->refused, 1);
}

void ath_threads_enter(ath_threads *pool) { take_place(pool, 0); }

bool ath_threads_priority_refused(const ath_threads *pool) { return atomic_load(&pool->refused) != 0; }

bool ath_placement_equal(const ath_placement *a, const ath_placement *b) {
    return memcmp(a->cpus, b->cpus, sizeof a->cpus) == 0 && a->strict == b->strict && a->priority == b->priority &&
           a->poll == b->poll;
}

static void *worker_main(void *arg) {
    struct worker *self = arg;
    ath_threads *pool = self->pool;
    if (self->placed) take_place(pool, self->index);
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_epoch(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        run_tasks(pool, self->index);
    }
}

/* Takes the placement over; its CPUs must be among those of the calling thread. */
static ath_status set_placement(ath_threads *pool, const ath_placement *p, ath_error *err) {
    cpu_set_t here;
    CPU_ZERO(&here);
    if (sched_getaffinity(0, sizeof here, &here) != 0) CPU_SET(0, &here); /* more CPUs than a set holds */
    pool->cpus = here;
    pool->spin_rounds = p->poll * ROUNDS_PER_POLL;
    pool->priority = p->priority;
    pool->strict = p->strict;
    if (p->poll < 0 || p->poll > 100 || p->priority < -1 || p->priority > 3)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "priority %d, polling %d: -1 to 3 and 0 to 100 are possible", p->priority,
                        p->poll);
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (int cpu = 0; cpu < 1024; cpu++) {
        if (!(p->cpus[cpu / 64] >> cpu % 64 & 1)) continue;
        if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &here))
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "this process may not run on CPU %d: choose among those it may (taskset -p)",
                            cpu);
        CPU_SET(cpu, &wanted);
    }
    if (CPU_COUNT(&wanted) > 0) pool->cpus = wanted;
    return ATH_OK;
}

ath_status ath_threads_create(ath_threads **out, int n_threads, const ath_placement *placement, ath_error *err) {
    *out = NULL;
    const ath_placement anywhere = {.poll = placement->poll};
    bool placed = !ath_placement_equal(placement, &anywhere);
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
    ath_status status = set_placement(pool, placement, err);
    if (status != ATH_OK) {
        ath_threads_free(pool);
        return status;
    }
    for (int i = 0; i < n_threads - 1; i++) {
        workers[i] = (struct worker){.pool = pool, .index = i + 1, .placed = placed};
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
    futex_wake(&pool->epoch, INT_MAX);
    for (int i = 0; i < pool->n_threads - 1; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
}

int ath_threads_count(const ath_threads *pool) { return pool->n_threads; }

static void wait_for_tasks(ath_threads *pool) {
    for (int i = 0; i < pool->spin_rounds; i++) {
        if (atomic_load_explicit(&pool->unfinished, memory_order_acquire) == 0) return;
        CPU_RELAX();
    }
    atomic_store(&pool->caller_sleeps, true);
    for (;;) {
        uint32_t seen = atomic_load(&pool->ends);
        if (atomic_load(&pool->unfinished) == 0) break;
        futex_wait(&pool->ends, seen);
    }
    atomic_store(&pool->caller_sleeps, false);
}

void ath_threads_run(ath_threads *pool, ath_task_fn fn, void *arg, int64_t n_tasks) {
    if (pool->n_threads == 1 || n_tasks <= 1) {
        for (int64_t task = 0; task < n_tasks; task++) fn(arg, task, 0);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->n_tasks = n_tasks;
    atomic_store_explicit(&pool->unfinished, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&pool->left, n_tasks, memory_order_release);
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers) > 0) futex_wake(&pool->epoch, n_tasks - 1);
    run_tasks(pool, 0);
    wait_for_tasks(pool);
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
