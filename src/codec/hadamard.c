/* The rotation of the KV recipe: fixed random signs, then an orthonormal Walsh-Hadamard transform per part.
 * The order of the butterflies is part of the format: docs/turbo_format.md, "Rotation". */
#include "codec/kv_page.h"
#include "codec/turbo_tables.h"

_Static_assert(sizeof ath_signs / sizeof ath_signs[0] == ATH_MAX_HEAD_DIM, "a sign for every channel");

const float *ath_rotation_signs(void) {
    return ath_signs;
}

float ath_rotation_scale(int n) {
    /* A division would round the odd powers of two differently. */
    switch (n) {
    case 128: return 0x1.6a09e6p-4f;
    case 64: return 0x1p-3f;
    case 32: return 0x1.6a09e6p-3f;
    case 16: return 0x1p-2f;
    case 8: return 0x1.6a09e6p-2f;
    case 4: return 0x1p-1f;
    case 2: return 0x1.6a09e6p-1f;
    default: return 1;
    }
}

/* Unnormalised transform of n rows of `lanes` values, across the rows. */
static void butterflies(float *x, size_t n, size_t lanes) {
    for (size_t half = 1; half < n; half *= 2) {
        for (size_t row = 0; row < n; row++) {
            if (row & half) continue;
            float *a = x + row * lanes, *b = a + half * lanes;
            for (size_t i = 0; i < lanes; i++) {
                float sum = a[i] + b[i], difference = a[i] - b[i];
                a[i] = sum;
                b[i] = difference;
            }
        }
    }
}

static void multiply(float *x, float factor, size_t lanes) {
    for (size_t i = 0; i < lanes; i++) x[i] *= factor;
}

static void transform(const ath_kv_layout *layout, float *x, size_t lanes) {
    for (int p = 0; p < layout->n_parts; p++) {
        float *part = x + (size_t)layout->part_start[p] * lanes;
        size_t n = (size_t)layout->part_dim[p];
        butterflies(part, n, lanes);
        multiply(part, ath_rotation_scale((int)n), n * lanes);
    }
}

static void apply_signs(const ath_kv_layout *layout, float *x, size_t lanes) {
    for (int c = 0; c < layout->head_dim; c++) multiply(x + (size_t)c * lanes, ath_signs[c], lanes);
}

void ath_rotate_lanes(const ath_kv_layout *layout, float *x, size_t lanes) {
    apply_signs(layout, x, lanes);
    transform(layout, x, lanes);
}

void ath_unrotate_lanes(const ath_kv_layout *layout, float *x, size_t lanes) {
    transform(layout, x, lanes);
    apply_signs(layout, x, lanes);
}

void ath_rotate(const ath_kv_layout *layout, float *x) {
    ath_rotate_lanes(layout, x, 1);
}

void ath_unrotate(const ath_kv_layout *layout, float *x) {
    ath_unrotate_lanes(layout, x, 1);
}
