/* The measurement behind `athanor distortion` (distortion.h). Sums are in double: this is the judge. */
#include "codec/kv_distortion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

/* splitmix64 and the Box-Muller transform: a seed gives the same vectors everywhere, up to libm's last bit.
 */
typedef struct normal_source {
    uint64_t state;
    bool has_spare;
    double spare;
} normal_source;

static double next_uniform(normal_source *source) {
    uint64_t z = source->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return ((double)(z >> 11) + 0.5) * 0x1p-53;
}

static float next_normal(normal_source *source) {
    if (source->has_spare) {
        source->has_spare = false;
        return (float)source->spare;
    }
    double radius = sqrt(-2 * log(next_uniform(source))), angle = 2 * acos(-1) * next_uniform(source);
    source->has_spare = true;
    source->spare = radius * sin(angle);
    return (float)(radius * cos(angle));
}

/* Mean squared error of the codebook of a scalar turbo type on N(0,1), from the integrals of the density. */
static double codebook_mse(ath_kv_type type) {
    if (!ath_kv_type_has_code(type) || !ath_turbo_code_of(type)->thresholds) return 0;
    const ath_turbo_code *code = ath_turbo_code_of(type);
    int n = 1 << code->k;
    double mse = 0, density = 0, below = 0,
           first = 0; /* density, its integral, and x times it, at the left edge */
    for (int i = 0; i < n; i++) {
        bool last = i == n - 1;
        double edge = last ? 0 : (double)code->thresholds[i];
        double edge_density = last ? 0 : exp(-edge * edge / 2) / sqrt(2 * acos(-1));
        double edge_below = last ? 1 : erfc(-edge / sqrt(2)) / 2, edge_first = edge * edge_density;
        double value = code->table[i] / (double)code->scale, share = edge_below - below;
        mse += first - edge_first + share - 2 * value * (density - edge_density) + value * value * share;
        density = edge_density, below = edge_below, first = edge_first;
    }
    return mse;
}

typedef struct measurement {
    ath_kv_layout layout;
    normal_source vectors, queries;
    float *original, *decoded, *scratch; /* [128][head_dim], plain tile, encoder's scratch */
    uint16_t *tile;
    uint8_t *page;
    double error, energy, inner_sum, inner_squares, worst_square;
    int64_t n_signs, n_flips;
} measurement;

static size_t tile_index(const ath_kv_layout *layout, size_t token, size_t channel) {
    return layout->is_key ? channel * ATH_PAGE_TOKENS + token : token * (size_t)layout->head_dim + channel;
}

/* Fills m->original with the `count` vectors from `first` on, repeated up to a page. */
static ath_status load_vectors(measurement *m, const ath_distortion_input *in, int64_t first, int64_t count,
                               ath_distortion_result *out, ath_error *err) {
    size_t n = (size_t)in->head_dim;
    for (int64_t v = 0; v < ATH_PAGE_TOKENS; v++) {
        float *x = m->original + (size_t)v * n;
        if (v >= count) {
            memcpy(x, m->original + (size_t)(v % count) * n, n * sizeof *x);
            continue;
        }
        for (size_t c = 0; c < n; c++) {
            x[c] = in->vectors ? in->vectors[(size_t)(first + v) * n + c] : next_normal(&m->vectors);
            if (!isfinite(x[c])) {
                return ATH_FAIL(err, ATH_ERR_ARGUMENT, "value %zu of vector %lld is no finite number", c,
                                (long long)(first + v));
            }
            out->saturated += fabsf(x[c]) > 65504;
        }
    }
    return ATH_OK;
}

/* A page of a raw type is written value by value from f32; the others start from f16. */
static void encode_and_decode(measurement *m) {
    const ath_kv_layout *layout = &m->layout;
    size_t n = (size_t)layout->head_dim;
    for (size_t t = 0; t < ATH_PAGE_TOKENS; t++) {
        for (size_t c = 0; c < n; c++) {
            float x = m->original[t * n + c];
            size_t at = tile_index(layout, t, c);
            if (layout->type == ATH_KV_F32)
                m->decoded[at] = x;
            else if (layout->type == ATH_KV_BF16)
                m->decoded[at] = ath_bf16_to_f32(ath_f32_to_bf16(x));
            else
                m->tile[at] = ath_f32_to_f16(fmaxf(-65504, fminf(65504, x)));
        }
    }
    if (layout->type == ATH_KV_F32 || layout->type == ATH_KV_BF16) return;
    ath_kv_encode_page(layout, m->tile, m->page, m->scratch);
    ath_kv_decode_page(layout, m->page, m->decoded);
}

static void compare_vector(measurement *m, int64_t index, size_t token, ath_distortion_result *out) {
    const ath_kv_layout *layout = &m->layout;
    double error = 0, energy = 0, query_energy = 0, inner = 0;
    for (size_t c = 0; c < (size_t)layout->head_dim; c++) {
        float x = m->original[token * (size_t)layout->head_dim + c],
              y = m->decoded[tile_index(layout, token, c)];
        double q = (double)next_normal(&m->queries), difference = (double)y - (double)x;
        error += difference * difference;
        energy += (double)x * (double)x;
        query_energy += q * q;
        inner += q * difference;
        m->n_signs += x != 0;
        m->n_flips += (x > 0 && !(y > 0)) || (x < 0 && !(y < 0));
    }
    m->error += error;
    m->energy += energy;
    if (energy == 0) return;
    inner /= sqrt(query_energy) * sqrt(energy);
    m->inner_sum += inner;
    m->inner_squares += inner * inner;
    if (error / energy > m->worst_square) {
        m->worst_square = error / energy;
        out->worst_vector = index;
    }
}

static ath_status measure(measurement *m, const ath_distortion_input *in, ath_distortion_result *out,
                          ath_error *err) {
    for (int64_t first = 0; first < in->n_vectors; first += ATH_PAGE_TOKENS) {
        int64_t left = in->n_vectors - first, count = left < ATH_PAGE_TOKENS ? left : ATH_PAGE_TOKENS;
        ATH_TRY(load_vectors(m, in, first, count, out, err));
        encode_and_decode(m);
        for (int64_t v = 0; v < count; v++) compare_vector(m, first + v, (size_t)v, out);
    }
    double n = (double)in->n_vectors;
    out->n_vectors = in->n_vectors;
    out->bytes_per_value = (double)m->layout.bytes / (ATH_PAGE_TOKENS * (double)in->head_dim);
    out->codebook_mse = codebook_mse(in->type);
    out->mse = m->energy > 0 ? m->error / m->energy : 0;
    out->snr_db = out->mse > 0 ? -10 * log10(out->mse) : INFINITY;
    out->worst_error = sqrt(m->worst_square);
    out->inner_mean = m->inner_sum / n;
    out->inner_rms = sqrt(m->inner_squares / n);
    out->sign_flips = m->n_signs ? (double)m->n_flips / (double)m->n_signs : 0;
    return ATH_OK;
}

ath_status ath_measure_distortion(const ath_distortion_input *in, ath_distortion_result *out,
                                  ath_error *err) {
    measurement m = {.vectors.state = in->seed, .queries.state = in->seed ^ 0x71756572696573};
    *out = (ath_distortion_result){0};
    if (in->n_vectors < 1) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "there are no vectors to measure");
    ATH_TRY(ath_kv_layout_init(&m.layout, in->type, in->head_dim, in->is_key, err));
    size_t values = (size_t)in->head_dim * ATH_PAGE_TOKENS;
    float *floats = malloc(3 * values * sizeof(float));
    m.tile = malloc(values * sizeof *m.tile);
    m.page = malloc(m.layout.bytes + ATH_PAGE_SLACK);
    ath_status status = ATH_OK;
    if (floats && m.tile && m.page) {
        m.original = floats, m.decoded = floats + values, m.scratch = floats + 2 * values;
        status = measure(&m, in, out, err);
    } else {
        status = ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the scratch of %zu KiB", values * 32 / 1024);
    }
    free(floats);
    free(m.tile);
    free(m.page);
    return status;
}
