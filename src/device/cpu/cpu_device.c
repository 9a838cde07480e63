/* Life of the CPU device: threads, kernel tables, scratch. */
#include "device/cpu/cpu_device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu_flags.h"

static void name_kernels(ath_device *dev) {
    for (int type = 0; type < ATH_TYPE_COUNT; type++) {
        const ath_tensor_type_info *info = ath_tensor_type_get(type);
        if (!info->name) continue;
        char name[24] = "";
        for (size_t i = 0; info->name[i] && i + 1 < sizeof name; i++)
            name[i] = (char)tolower((unsigned char)info->name[i]);
        ath_panel_format format = ath_device_format(dev, (ath_tensor_type)type);
        const char *partner = format != ATH_PANEL_NONE && format < ATH_PANEL_QUANTISED ? "int8" : "f32";
        for (int repacked = 0; repacked < 2; repacked++) {
            const char *note = format == ATH_PANEL_NONE ? " (expanded)" : repacked ? "" : " (not repacked)";
            snprintf(dev->kernel_names[type][repacked], ATH_KERNEL_NAME, "%s x %s, %s%s", name, partner,
                     dev->matmul.isa, note);
        }
    }
}

static void describe(ath_device *dev) {
    char flags[48], threads[40];
    ath_cpu_flags_describe(dev->cpu_flags, flags, sizeof flags);
    int decode = ath_threads_count(dev->pools[0]), batch = ath_threads_count(dev->pools[1]);
    if (decode == batch)
        snprintf(threads, sizeof threads, "%d thread%s", decode, decode == 1 ? "" : "s");
    else
        snprintf(threads, sizeof threads, "%d thread%s, %d in prefill", decode, decode == 1 ? "" : "s",
                 batch);
    snprintf(dev->description, sizeof dev->description, "CPU, %s, %s", flags, threads);
}

static ath_status create_rope_caches(ath_device *dev, ath_error *err) {
    for (int i = 0; i < ATH_ROPE_CACHES; i++) {
        ath_rope_cache *c = &dev->rope[i];
        c->pos = malloc((size_t)dev->max_rows * sizeof *c->pos);
        c->inv_freq = malloc(ATH_MAX_ROT / 2 * sizeof *c->inv_freq);
        c->cos_sin = malloc((size_t)dev->max_rows * ATH_MAX_ROT * sizeof *c->cos_sin);
        if (!c->pos || !c->inv_freq || !c->cos_sin)
            return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the rotation tables");
    }
    return ATH_OK;
}

/* A pool each for decode and prefill, or one for both. */
static ath_status create_pools(ath_device *dev, const ath_device_params *params, ath_error *err) {
    const ath_placement usual = {.poll = 50}, *places[] = {params->placement, params->placement_batch};
    bool same = params->n_threads_batch == params->n_threads;
    for (int i = 0; i < 2; i++) {
        if (!places[i]) places[i] = &usual;
        dev->placed |= !ath_placement_equal(places[i], &usual);
    }
    ATH_TRY(ath_threads_create(&dev->pools[0], params->n_threads, places[0], err));
    if (same && ath_placement_equal(places[0], places[1]))
        dev->pools[1] = dev->pools[0];
    else
        ATH_TRY(ath_threads_create(&dev->pools[1], params->n_threads_batch, places[1], err));
    ath_device_use_threads(dev, false);
    return ATH_OK;
}

static ath_status create_parts(ath_device *dev, const ath_device_params *params, ath_error *err) {
    ATH_TRY(create_pools(dev, params, err));
    dev->max_threads =
        params->n_threads > params->n_threads_batch ? params->n_threads : params->n_threads_batch;
    ATH_TRY(create_rope_caches(dev, err));
    ATH_TRY(ath_attn_scratch_create(&dev->attn_scratch, dev->max_threads, dev->max_rows, err));
    dev->cpu_flags = ath_cpu_flags(params->cpu_mask);
    ath_matmul_kernels_init(&dev->matmul, dev->cpu_flags);
    ath_elementwise_kernels_init(&dev->elementwise, dev->cpu_flags);
    ath_attn_kernels_init(&dev->attn, dev->cpu_flags);
    dev->delta_rule = ath_delta_kernel(dev->cpu_flags);
    name_kernels(dev);
    describe(dev);
    return ATH_OK;
}

ath_status ath_device_cpu_create(ath_device **out, const ath_device_params *params, ath_error *err) {
    *out = NULL;
    if (params->max_rows < 1 || params->max_rows > 1 << 20)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a batch of %lld rows: between 1 and 1048576 are possible",
                        (long long)params->max_rows);
    ath_device *dev = calloc(1, sizeof *dev);
    if (!dev) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a device");
    dev->max_rows = params->max_rows;
    dev->exact = params->exact;
    ath_status status = create_parts(dev, params, err);
    if (status != ATH_OK) {
        ath_device_free(dev);
        return status;
    }
    *out = dev;
    return ATH_OK;
}

void ath_device_free(ath_device *dev) {
    if (!dev) return;
    ath_attn_scratch_free(dev->attn_scratch);
    ath_mm_scratch_free(&dev->mm);
    free(dev->adapter_scratch);
    ath_weight_chunks_free(dev);
    for (int i = 0; i < ATH_ROPE_CACHES; i++) {
        free(dev->rope[i].pos);
        free(dev->rope[i].inv_freq);
        free(dev->rope[i].cos_sin);
    }
    if (dev->pools[1] != dev->pools[0]) ath_threads_free(dev->pools[1]);
    ath_threads_free(dev->pools[0]);
    free(dev);
}

const char *ath_device_describe(const ath_device *dev) {
    return dev->description;
}
const char *ath_device_attention_kernel(const ath_device *dev) {
    return dev->attn.isa;
}

void ath_device_use_threads(ath_device *dev, bool prefill) {
    if (dev->pool == dev->pools[prefill]) return;
    dev->pool = dev->pools[prefill];
    if (dev->placed) ath_threads_enter(dev->pool);
}

bool ath_device_priority_refused(const ath_device *dev) {
    return ath_threads_priority_refused(dev->pools[0]) || ath_threads_priority_refused(dev->pools[1]);
}

void ath_device_parallel(ath_device *dev, ath_task_fn fn, void *arg, int64_t n_tasks) {
    ath_threads_run(dev->pool, fn, arg, n_tasks);
}

typedef struct range_run {
    ath_range_fn fn;
    void *arg;
    int64_t n, step;
} range_run;

static void range_task(void *arg, int64_t task, int thread) {
    (void)thread;
    const range_run *r = arg;
    int64_t begin = task * r->step, end = begin + r->step;
    r->fn(r->arg, begin, end < r->n ? end : r->n);
}

void ath_parallel_ranges(ath_device *dev, ath_range_fn fn, void *arg, int64_t n, int64_t item_cost) {
    enum { PIECE = 8192 };
    range_run r = {fn, arg, n, item_cost < PIECE ? PIECE / (item_cost > 0 ? item_cost : 1) : 1};
    ath_threads_run(dev->pool, range_task, &r, (n + r.step - 1) / r.step);
}
