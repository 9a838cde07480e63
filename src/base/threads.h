/* A persistent pool of worker threads for data-parallel loops.
 *
 * Workers spin for a short while after a loop, then sleep on a futex, so that the next loop of a busy decode starts in
 * well under a microsecond and an idle program uses no CPU. Tasks are handed out one at a time from an atomic
 * counter, and a loop ends with its last task, whether or not every worker has noticed it: a slow or descheduled core
 * delays only the task it holds. Which thread runs a task must never change its result. One loop at a time per pool;
 * loops don't nest. */
#ifndef ATH_BASE_THREADS_H
#define ATH_BASE_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "athanor/athanor.h"
#include "base/error.h"

typedef struct ath_threads ath_threads;

/* task: 0 <= task < n_tasks. thread: 0 <= thread < the pool's size; two tasks that run at once never share it,
 * so it may index per-thread scratch. */
typedef void (*ath_task_fn)(void *arg, int64_t task, int thread);

/* n_threads >= 1 counts the caller, which takes part: 1 starts no thread. CPUs of the placement that the process
 * may not use are refused. The caller itself moves to its place with ath_threads_enter. */
ath_status ath_threads_create(ath_threads **pool, int n_threads, const ath_placement *placement, ath_error *err);
void ath_threads_free(ath_threads *pool); /* NULL is fine */
int ath_threads_count(const ath_threads *pool);
/* Gives the calling thread the place and the priority of the pool's first thread (without CPUs in the placement: where it
 * was when the pool was made). */
void ath_threads_enter(ath_threads *pool);
bool ath_threads_priority_refused(const ath_threads *pool); /* by the system, for any thread so far */
bool ath_placement_equal(const ath_placement *a, const ath_placement *b);

/* Calls fn for every task and returns when all are done. Not reentrant. */
void ath_threads_run(ath_threads *pool, ath_task_fn fn, void *arg, int64_t n_tasks);

/* Physical cores this process may run on (logical ones where the topology is unknown), at least 1. */
int ath_threads_default_count(void);

#endif
