/* Rotary embedding. Angles are taken in double; their cos and sin are computed once per batch and kept, since
 * every layer asks for the same positions (two tables: models have up to two kinds of layers). */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu_device.h"

typedef struct rope_run {
    const ath_rope *rope;
    ath_rope_cache *cache;
    float *x;
    int n_heads, head_dim;
} rope_run;

static void angles_range(void *arg, int64_t begin, int64_t end) {
    const rope_run *r = arg;
    int half = r->rope->n_rot / 2;
    for (int64_t row = begin; row < end; row++) {
        float *cosines = r->cache->cos_sin + row * r->rope->n_rot, *sines = cosines + half;
        for (int i = 0; i < half; i++) {
            double angle = (double)r->cache->pos[row] * r->rope->inv_freq[i];
            cosines[i] = (float)(cos(angle) * (double)r->rope->magnitude);
            sines[i] = (float)(sin(angle) * (double)r->rope->magnitude);
        }
    }
}

static ath_rope_cache *find_angles(ath_device *dev, const ath_rope *rope, const int64_t *pos, int64_t rows) {
    size_t freq_bytes = (size_t)rope->n_rot / 2 * sizeof(double), pos_bytes = (size_t)rows * sizeof *pos;
    for (int i = 0; i < ATH_ROPE_CACHES; i++) {
        ath_rope_cache *c = &dev->rope[i];
        if (c->n_rot == rope->n_rot && c->magnitude == rope->magnitude && c->n_rows == rows &&
            memcmp(c->inv_freq, rope->inv_freq, freq_bytes) == 0 && memcmp(c->pos, pos, pos_bytes) == 0) {
            return c;
        }
    }
    ath_rope_cache *c = &dev->rope[dev->rope_next];
    dev->rope_next = (dev->rope_next + 1) % ATH_ROPE_CACHES;
    c->n_rot = rope->n_rot;
    c->magnitude = rope->magnitude;
    c->n_rows = rows;
    memcpy(c->inv_freq, rope->inv_freq, freq_bytes);
    memcpy(c->pos, pos, pos_bytes);
    rope_run r = {.rope = rope, .cache = c};
    ath_parallel_ranges(dev, angles_range, &r, rows, 25 * rope->n_rot);
    return c;
}

static void rotate_range(void *arg, int64_t begin, int64_t end) {
    const rope_run *r = arg;
    int half = r->rope->n_rot / 2;
    for (int64_t row = begin; row < end; row++) {
        const float *cosines = r->cache->cos_sin + row * r->rope->n_rot, *sines = cosines + half;
        for (int h = 0; h < r->n_heads; h++) {
            float *x = r->x + (row * r->n_heads + h) * r->head_dim;
            if (r->rope->neox) {
                float *y = x + half;
                for (int i = 0; i < half; i++) {
                    float a = x[i], b = y[i];
                    x[i] = a * cosines[i] - b * sines[i];
                    y[i] = a * sines[i] + b * cosines[i];
                }
            } else {
                for (int i = 0; i < half; i++) {
                    float a = x[2 * i], b = x[2 * i + 1];
                    x[2 * i] = a * cosines[i] - b * sines[i];
                    x[2 * i + 1] = a * sines[i] + b * cosines[i];
                }
            }
        }
    }
}

void ath_op_rope(ath_device *dev, const ath_rope *rope, float *x, const int64_t *pos, int n_heads,
                 int head_dim, int64_t rows) {
    for (int64_t row = 0; row < rows; row += dev->max_rows) {
        int64_t n = rows - row < dev->max_rows ? rows - row : dev->max_rows;
        rope_run r = {rope, find_angles(dev, rope, pos + row, n), x + row * n_heads * head_dim, n_heads,
                      head_dim};
        ath_parallel_ranges(dev, rotate_range, &r, n, n_heads * (int64_t)rope->n_rot / 2);
    }
}
