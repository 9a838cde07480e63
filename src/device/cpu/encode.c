/* Encoding of full cache pages: one task per side and head. */
#include "device/cpu/attend.h"

typedef struct encode_run {
    ath_device *dev;
    const ath_encode_job *jobs;
} encode_run;

static void encode_page(void *arg, int64_t task, int thread) {
    const encode_run *run = arg;
    const ath_encode_job *job = &run->jobs[task];
    run->dev->attn.encode(job->layout, job->tile, job->out, run->dev->attn_scratch->workers[thread].k_tile);
}

void ath_op_encode_pages(ath_device *dev, const ath_encode_job *jobs, int64_t n_jobs) {
    encode_run run = {.dev = dev, .jobs = jobs};
    ath_threads_run(dev->pool, encode_page, &run, n_jobs);
}
