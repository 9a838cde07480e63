/* Low-rank adapters (LoRA, arXiv 2106.09685): what they add to the products of a weight. The two thin products go through
 * the ops of any other weight, in parts of so many rows that a part fits the scratch. */
#include <stdlib.h>

#include "device/cpu/cpu_device.h"

enum { SCRATCH_FLOATS = 1 << 20 };

/* Floats that one row takes while its product is added, with n_used experts. */
static int64_t row_floats(const ath_weight *w, int64_t n_used) {
    int64_t most = 0;
    for (const ath_adapter *a = w->adapters; a; a = a->next) {
        int64_t floats = n_used * (a->a.n_out + a->b.n_out);
        if (floats > most) most = floats;
    }
    return most;
}

ath_status ath_device_adapters_reserve(ath_device *dev, const ath_weight *w, ath_error *err) {
    int64_t floats = row_floats(w, w->n_experts);
    if (floats < SCRATCH_FLOATS) floats = SCRATCH_FLOATS;
    if (floats <= dev->adapter_floats) return ATH_OK;
    free(dev->adapter_scratch);
    dev->adapter_scratch = aligned_alloc(64, ((size_t)floats * sizeof(float) + 63) / 64 * 64);
    dev->adapter_floats = dev->adapter_scratch ? floats : 0;
    return dev->adapter_scratch ? ATH_OK
                                : ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %lld MiB of an adapter's scratch",
                                           (long long)floats >> 18);
}

typedef struct add_run {
    float *out;
    const float *y;
    float scale;
    int64_t n;
} add_run;

static void add_range(void *arg, int64_t begin, int64_t end) {
    const add_run *r = arg;
    for (int64_t i = begin * r->n; i < end * r->n; i++) r->out[i] += r->scale * r->y[i];
}

/* out += scale * b(a(x)), rows of x_slots inputs and n_used outputs each. */
static void add_one(ath_device *dev, const ath_adapter *adapter, float *out, const float *x, int x_slots,
                    const int32_t *expert, int n_used, int64_t rows) {
    const ath_weight *a = &adapter->a, *b = &adapter->b;
    int64_t pairs = rows * n_used;
    float *inner = dev->adapter_scratch, *y = inner + pairs * a->n_out;
    if (expert) {
        ath_op_matmul_experts(dev, &a, &inner, 1, x, x_slots, expert, n_used, rows);
        ath_op_matmul_experts(dev, &b, &y, 1, inner, n_used, expert, n_used, rows);
    } else {
        ath_op_matmul(dev, &a, &inner, 1, x, rows);
        ath_op_matmul(dev, &b, &y, 1, inner, rows);
    }
    add_run r = {out, y, adapter->scale, b->n_out};
    ath_parallel_ranges(dev, add_range, &r, pairs, b->n_out / 4);
}

void ath_add_adapters(ath_device *dev, const ath_weight *w, float *out, const float *x, int x_slots,
                      const int32_t *expert, int n_used, int64_t rows) {
    if (!w->adapters) return;
    int64_t step = dev->adapter_floats / row_floats(w, n_used);
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        for (const ath_adapter *a = w->adapters; a; a = a->next)
            add_one(dev, a, out + row * n_used * w->n_out, x + row * x_slots * w->n_in, x_slots,
                    expert ? expert + row * n_used : NULL, n_used, n);
    }
}
