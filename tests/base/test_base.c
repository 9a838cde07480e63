/* base: half floats against exact arithmetic, the thread pool under load, file maps. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/half.h"
#include "base/mapfile.h"
#include "base/memory.h"
#include "base/threads.h"

static void f16_round_trip_is_exact(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = ath_f16_to_f32((uint16_t)h);
        if (isnan(x)) {
            assert_true(isnan(ath_f16_to_f32(ath_f32_to_f16(x))));
            continue;
        }
        assert_int_equal(ath_f32_to_f16(x), h);
    }
}

/* The nearest f16 of any x lies between two neighbours; check the choice, ties to even, in double. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double a = ath_f16_to_f32((uint16_t)h), b = ath_f16_to_f32((uint16_t)(h + 1)), middle = (a + b) / 2;
        float below = nextafterf((float)middle, 0), above = nextafterf((float)middle, INFINITY);
        assert_int_equal(ath_f32_to_f16((float)middle), (h & 1) ? h + 1 : h);
        assert_int_equal(ath_f32_to_f16(below), h);
        assert_int_equal(ath_f32_to_f16(above), h + 1);
    }
    assert_int_equal(ath_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(ath_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(ath_f32_to_f16(-INFINITY), 0xfc00);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    assert_int_equal(ath_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(ath_f32_to_bf16(ath_f32_from_bits(0x3f808000)), 0x3f80);
    assert_int_equal(ath_f32_to_bf16(ath_f32_from_bits(0x3f818000)), 0x3f82);
    assert_int_equal(ath_f32_to_bf16(ath_f32_from_bits(0x3f808001)), 0x3f81);
    assert_true(isnan(ath_bf16_to_f32(ath_f32_to_bf16(NAN))));
}

struct count {
    _Atomic int64_t sum;
    _Atomic int runs[64];
};

static void add_task(void *arg, int64_t task, int thread) {
    struct count *count = arg;
    assert_in_range(thread, 0, 3);
    atomic_fetch_add(&count->sum, task);
    if (task < 64) atomic_fetch_add(&count->runs[task], 1);
}

static void threads_run_every_task_once(void **state) {
    (void)state;
    const ath_placement usual = {.poll = 50};
    ath_threads *pool;
    assert_int_equal(ath_threads_create(&pool, 4, &usual, NULL), ATH_OK);
    for (int round = 0; round < 3000; round++) {
        struct count count = {0};
        int64_t n = round % 97;
        ath_threads_run(pool, add_task, &count, n);
        assert_int_equal(count.sum, n * (n - 1) / 2);
        for (int i = 0; i < 64; i++) assert_int_equal(count.runs[i], i < n);
        if (round % 500 == 0) usleep(20000); /* let the workers fall asleep */
    }
    ath_threads_free(pool);
    ath_error err;
    assert_int_equal(ath_threads_create(&pool, 0, &usual, &err), ATH_ERR_ARGUMENT);
}

static int held_by[2]; /* a pipe */
static _Atomic bool is_held;
static pthread_t held_thread;

/* Two seconds at most, so that a pool that waits for the thread fails and doesn't hang. */
static void hold_thread(int signal) {
    (void)signal;
    is_held = true;
    struct pollfd released = {.fd = held_by[0], .events = POLLIN};
    poll(&released, 1, 2000);
    is_held = false;
}

static void see_thread(void *arg, int64_t task, int thread) {
    (void)task;
    if (thread == 1) held_thread = pthread_self();
    if (thread == 1) *(_Atomic bool *)arg = true;
    usleep(1000);
}

/* A worker that gets no time, and holds no task, keeps nobody waiting. */
static void loops_end_without_a_worker_that_is_held(void **state) {
    (void)state;
    const ath_placement usual = {.poll = 50};
    ath_threads *pool;
    _Atomic bool seen = false;
    struct count count = {0};
    assert_int_equal(pipe(held_by), 0);
    signal(SIGUSR1, hold_thread);
    assert_int_equal(ath_threads_create(&pool, 2, &usual, NULL), ATH_OK);
    for (int round = 0; round < 1000 && !seen; round++) ath_threads_run(pool, see_thread, (void *)&seen, 4);
    assert_true(seen);
    assert_int_equal(pthread_kill(held_thread, SIGUSR1), 0);
    for (int i = 0; i < 2000 && !is_held; i++) usleep(1000);
    for (int round = 0; round < 3; round++) ath_threads_run(pool, add_task, &count, 50);
    assert_true(is_held);
    assert_int_equal(count.sum, 3 * 50 * 49 / 2);
    assert_int_equal(write(held_by[1], "x", 1), 1);
    ath_threads_free(pool);
    signal(SIGUSR1, SIG_DFL);
    close(held_by[0]), close(held_by[1]);
}

struct places {
    int cpu[3], allowed[3], policy[3];
};

static void see_place(void *arg, int64_t task, int thread) {
    struct places *seen = arg;
    cpu_set_t set;
    (void)task;
    sched_getaffinity(0, sizeof set, &set);
    seen->allowed[thread] = CPU_COUNT(&set);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (CPU_ISSET(cpu, &set)) seen->cpu[thread] = cpu;
    }
    seen->policy[thread] = sched_getscheduler(0);
    usleep(2000); /* so that every thread gets a task */
}

/* Strict places, one CPU each and counting round; back at home afterwards. */
static void threads_go_where_they_are_sent(void **state) {
    (void)state;
    cpu_set_t home, now;
    assert_int_equal(sched_getaffinity(0, sizeof home, &home), 0);
    ath_placement place = {.strict = true, .priority = -1, .poll = 0}, usual = {.poll = 50};
    int cpus[2] = {-1, -1}, n = 0, absent = -1;
    for (int cpu = 0; cpu < 1024 && n < 2; cpu++) {
        if (!CPU_ISSET(cpu, &home)) continue;
        cpus[n++] = cpu;
        place.cpus[cpu / 64] |= UINT64_C(1) << cpu % 64;
    }
    for (int cpu = 0; cpu < 1024 && absent < 0; cpu++) absent = CPU_ISSET(cpu, &home) ? -1 : cpu;
    ath_threads *pool, *plain;
    assert_int_equal(ath_threads_create(&plain, 1, &usual, NULL), ATH_OK);
    assert_int_equal(ath_threads_create(&pool, 3, &place, NULL), ATH_OK);
    ath_threads_enter(pool);
    struct places seen = {{-1, -1, -1}, {0, 0, 0}, {0, 0, 0}};
    for (int round = 0; round < 200 && (!seen.allowed[0] || !seen.allowed[1] || !seen.allowed[2]); round++)
        ath_threads_run(pool, see_place, &seen, 6);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seen.allowed[i], 1);
        assert_int_equal(seen.cpu[i], cpus[i % n]);
        assert_int_equal(seen.policy[i], SCHED_BATCH);
    }
    assert_false(ath_threads_priority_refused(pool));
    ath_threads_enter(plain);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&home, &now) && sched_getscheduler(0) == SCHED_OTHER);
    ath_threads_free(plain);
    ath_threads_free(pool);
    ath_error err;
    if (absent >= 0) {
        place.cpus[absent / 64] |= UINT64_C(1) << absent % 64;
        assert_int_equal(ath_threads_create(&pool, 2, &place, &err), ATH_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "CPU"));
    }
    place = (ath_placement){.poll = 101};
    assert_int_equal(ath_threads_create(&pool, 2, &place, &err), ATH_ERR_ARGUMENT);
}

static void mapfile_names_the_path(void **state) {
    (void)state;
    ath_mapfile map;
    ath_error err;
    assert_int_equal(ath_mapfile_open(&map, "/nonexistent/x.gguf", &err), ATH_ERR_IO);
    assert_non_null(strstr(err.message, "/nonexistent/x.gguf"));
    assert_int_equal(ath_mapfile_open(&map, "/", &err), ATH_ERR_IO);
    char fifo[64];
    snprintf(fifo, sizeof fifo, "/tmp/ath-fifo-%ld", (long)getpid());
    assert_int_equal(mkfifo(fifo, 0600), 0);
    alarm(20); /* an open that waits for a writer would wait forever */
    assert_int_equal(ath_mapfile_open(&map, fifo, &err), ATH_ERR_IO);
    alarm(0);
    unlink(fifo);
    ath_mapfile_close(&map);
}

static void mapped_memory_is_aligned(void **unused) {
    (void)unused;
    size_t bytes = 3 * ATH_HUGE_PAGE;
    unsigned char *p = ath_memory_map(bytes);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % ATH_HUGE_PAGE, 0);
    assert_int_equal(p[0] | p[bytes / 2] | p[bytes - 1], 0);
    p[0] = p[bytes - 1] = 1;
    ath_memory_unmap(p, bytes);
    assert_null(ath_memory_map(SIZE_MAX / ATH_HUGE_PAGE * ATH_HUGE_PAGE)); /* its size wraps round */
    assert_null(ath_memory_map((size_t)1 << 60));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_round_trip_is_exact),      cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),  cmocka_unit_test(threads_run_every_task_once),
        cmocka_unit_test(loops_end_without_a_worker_that_is_held),
        cmocka_unit_test(mapfile_names_the_path),       cmocka_unit_test(mapped_memory_is_aligned),
        cmocka_unit_test(threads_go_where_they_are_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
