/* K and V as no healthy model gives them, through the cache and attention, in every cache type: vectors of zeros, denormals,
 * values at and beyond the end of f16, in single channels or everywhere. The output is finite and that of the values as
 * they are stored, what had to be clamped is counted, and NaN and infinity are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/half.h"
#include "kv/kv.h"
#include "kv/kv_values.h"

enum { DIM = 64, GROUP = 2, N_PREFILL = 390, N = 393, CHANNEL = 5, TOKEN = 200, TILE = DIM * ATH_PAGE_TOKENS };

typedef enum where { ALL, ONE_CHANNEL, ONE_VALUE, EVERY_THIRD_TOKEN } where;
typedef struct extreme {
    const char *name;
    float factor, value; /* x becomes factor * x + value */
    where where;
    int n_clamped; /* of the N tokens, in types that end at 65504 */
} extreme;

static const extreme extremes[] = {
    {"zeros", 0, 0, ALL, 0},
    {"every third vector zero", 0, 0, EVERY_THIRD_TOKEN, 0},
    {"denormal floats", 1e-40f, 0, ALL, 0},
    {"a channel of denormal floats", 1e-40f, 0, ONE_CHANNEL, 0},
    {"denormal halves", 3e-8f, 0, ALL, 0},
    {"a channel of 6e4", 0, 6e4f, ONE_CHANNEL, 0},
    {"a value of 6e4", 0, 6e4f, ONE_VALUE, 0},
    {"a channel of 1e5", 0, 1e5f, ONE_CHANNEL, N},
    {"a value of -1e5", 0, -1e5f, ONE_VALUE, 1},
    {"a channel of +-1e30", 1e30f, 0, ONE_CHANNEL, N},
    {"a value of 1e30", 0, 1e30f, ONE_VALUE, 1},
    {"a channel of 1e35", 0, 1e35f, ONE_CHANNEL, N},
};
enum { N_EXTREMES = sizeof extremes / sizeof extremes[0] };

typedef struct scene {
    ath_device *device;
    ath_kv *kv;
    ath_kv_type type;
    const extreme *x; /* NULL: plain values */
    int side;         /* of x: 0 K, 1 V */
    float out[N][GROUP * DIM];
    float stored[2][N][DIM]; /* as a query far behind reads them; [.][.] of recent rows: plain */
    float plain[2][N][DIM];
} scene;

/* Queries hardly see the channel, so that scores stay of a size that a softmax can tell apart. */
static float value_of(const scene *s, int side, int head, int c, int64_t pos) {
    float v = kv_value(0, side, head, c, pos, 7);
    if (side == 2) return c == CHANNEL ? 1e-4f * v : v;
    if (!s->x || side != s->side) return v;
    bool hit = s->x->where == ALL || (s->x->where == EVERY_THIRD_TOKEN && pos % 3 == 0) ||
               (c == CHANNEL && (s->x->where == ONE_CHANNEL || (s->x->where == ONE_VALUE && pos == TOKEN)));
    return hit ? s->x->factor * v + s->x->value : v;
}

static float as_stored_raw(float x, ath_kv_type type) {
    if (type == ATH_KV_F32) return x;
    if (type == ATH_KV_BF16) return ath_bf16_to_f32(ath_f32_to_bf16(x));
    return ath_f16_to_f32(ath_f32_to_f16(fmaxf(-65504, fminf(65504, x))));
}

/* The reference codec over the clamped values, page by page; a plain type's last page is read encoded too. */
static void fill_stored(scene *s, int side) {
    for (int64_t t = 0; t < N; t++)
        for (int c = 0; c < DIM; c++)
            s->plain[side][t][c] = s->stored[side][t][c] = as_stored_raw(value_of(s, side, 0, c, t), s->type);
    if (ath_kv_type_is_raw(s->type)) return;
    static uint16_t tile[TILE];
    static float decoded[TILE], scratch[TILE];
    static uint8_t page[TILE * 2 + ATH_PAGE_SLACK];
    ath_kv_layout layout;
    assert_int_equal(ath_kv_layout_init(&layout, s->type, DIM, side == 0, NULL), ATH_OK);
    for (int64_t first = 0; first < N; first += ATH_PAGE_TOKENS) {
        memset(tile, 0, sizeof tile);
        int64_t n = N - first < ATH_PAGE_TOKENS ? N - first : ATH_PAGE_TOKENS;
        if (n < ATH_PAGE_TOKENS && !ath_kv_type_is_plain(s->type)) break;
        for (int64_t t = 0; t < n; t++)
            for (int c = 0; c < DIM; c++)
                tile[side ? t * DIM + c : c * ATH_PAGE_TOKENS + t] = ath_f32_to_f16(s->plain[side][first + t][c]);
        ath_kv_encode_page(&layout, tile, page, scratch);
        ath_kv_decode_page(&layout, page, decoded);
        double error = 0, energy = 0;
        for (int64_t t = 0; t < n; t++)
            for (int c = 0; c < DIM; c++) {
                float x = s->plain[side][first + t][c], y = decoded[side ? t * DIM + c : c * ATH_PAGE_TOKENS + t];
                s->stored[side][first + t][c] = y;
                error += ((double)y - (double)x) * ((double)y - (double)x);
                energy += (double)x * (double)x;
            }
        if (!(error <= 0.15 * energy + N * DIM * 1e-12)) /* scales of block types are f16: 1e-6 is nothing to them */
            fail_msg("%s, %s: a page loses %g of %g", ath_kv_type_name(s->type), s->x ? s->x->name : "", error, energy);
    }
}

static const float *row_read(const scene *s, int side, int64_t at, int64_t pos) {
    bool recent = at / ATH_PAGE_TOKENS >= pos / ATH_PAGE_TOKENS - 1 || at < ATH_SINK_TOKENS;
    return recent && ath_kv_type_has_page_data(s->type) ? s->plain[side][at] : s->stored[side][at];
}

static ath_status run(scene *s, int64_t n, ath_error *err) {
    ath_kv_rows rows = {0, n};
    int64_t pos = ath_kv_length(s->kv, 0);
    float *k = malloc((size_t)(n * DIM) * sizeof *k), *v = malloc((size_t)(n * DIM) * sizeof *v);
    float *q = malloc((size_t)(n * GROUP * DIM) * sizeof *q);
    for (int64_t t = 0; t < n; t++)
        for (int c = 0; c < DIM; c++) {
            k[t * DIM + c] = value_of(s, 0, 0, c, pos + t);
            v[t * DIM + c] = value_of(s, 1, 0, c, pos + t);
            for (int h = 0; h < GROUP; h++) q[(t * GROUP + h) * DIM + c] = value_of(s, 2, h, c, pos + t);
        }
    assert_int_equal(ath_kv_begin(s->kv, &rows, 1, err), ATH_OK);
    ath_kv_append(s->kv, 0, k, v);
    ath_attn_args args = {.n_heads = GROUP, .scale = 0.125f, .q = q, .out = s->out[pos]};
    ath_kv_attend(s->kv, 0, &args);
    free(k);
    free(v);
    free(q);
    return ath_kv_commit(s->kv, err);
}

static scene *scene_new(ath_kv_type type, const extreme *x, int side) {
    scene *s = calloc(1, sizeof *s);
    *s = (scene){.type = type, .x = x, .side = side};
    ath_kv_layer layer = {.n_kv_heads = 1, .head_dim_k = DIM, .head_dim_v = DIM, .type_k = type, .type_v = type};
    ath_kv_params params = {.layers = &layer, .n_layers = 1, .n_ctx = 512, .n_seqs = 1, .n_ubatch = 512};
    ath_device_params device = {.n_threads = 1, .n_threads_batch = 1, .cpu_mask = ~0u, .max_rows = 512};
    assert_int_equal(ath_device_cpu_create(&s->device, &device, NULL), ATH_OK);
    assert_int_equal(ath_kv_create(&s->kv, s->device, &params, NULL), ATH_OK);
    return s;
}

static void scene_free(scene *s) {
    ath_kv_free(s->kv);
    ath_device_free(s->device);
    free(s);
}

/* Output of one head at pos in double, and the largest value of V that it may be made of, by channel. */
static void expected_row(const scene *s, int64_t pos, int head, double out[DIM], double largest[DIM]) {
    double weights[N], max = -INFINITY, total = 0;
    for (int64_t at = 0; at <= pos; at++) {
        const float *row = row_read(s, 0, at, pos);
        weights[at] = 0;
        for (int c = 0; c < DIM; c++) weights[at] += (double)row[c] * (double)value_of(s, 2, head, c, pos) * 0.125;
        max = fmax(max, weights[at]);
    }
    memset(out, 0, DIM * sizeof *out);
    memset(largest, 0, DIM * sizeof *largest);
    for (int64_t at = 0; at <= pos; at++) {
        const float *row = row_read(s, 1, at, pos);
        double weight = exp(weights[at] - max);
        total += weight;
        for (int c = 0; c < DIM; c++) {
            out[c] += weight * (double)row[c];
            largest[c] = fmax(largest[c], fabs((double)row[c]));
        }
    }
    for (int c = 0; c < DIM; c++) out[c] /= total;
}

/* Prefill rounds in f32 alone. Decode sums 128 weights of 15 bits and scores of 16 bits, relative to the largest vector of a
 * page. Scores of a K with values beyond 1e4 have errors in f32 that move weights: there only the range is certain. */
static void check_row(const scene *s, int64_t pos, const char *what) {
    double expected[DIM], largest[DIM], size = 0;
    bool range_only = s->x && s->side == 0 && s->x->where != ALL && (s->x->value != 0 || s->x->factor > 1);
    for (int head = 0; head < GROUP; head++) {
        expected_row(s, pos, head, expected, largest);
        for (int c = 0; c < DIM; c++) size = fmax(size, largest[c]);
        double allowed = (pos >= N_PREFILL && ath_kv_type_has_page_data(s->type) ? 2e-3 : 1e-5) * size + 1e-43; /* floats are no finer */
        for (int c = 0; c < DIM; c++) {
            double got = (double)s->out[pos][head * DIM + c], off = fabs(got - expected[c]);
            if (!isfinite(got) || fabs(got) > largest[c] + allowed || (!range_only && off > allowed))
                fail_msg("%s, position %lld, channel %d: %g instead of %g (of %g)", what, (long long)pos, c, got, expected[c],
                         size);
        }
    }
}

static int expected_clamps(ath_kv_type type, const extreme *x) {
    return type == ATH_KV_F32 || type == ATH_KV_BF16 ? 0 : x->n_clamped;
}

static void check_extreme(ath_kv_type type, const extreme *x, int side) {
    static const int64_t positions[] = {0, 3, 100, 128, 255, 256, TOKEN, 300, 383, 384, 389, 390, 392};
    char what[128];
    snprintf(what, sizeof what, "%s, %s in %c", ath_kv_type_name(type), x->name, "KV"[side]);
    scene *s = scene_new(type, x, side);
    for (int i = 0; i < 2; i++) fill_stored(s, i);
    ath_error err = {0};
    if (run(s, N_PREFILL, &err) != ATH_OK) fail_msg("%s: %s", what, err.message);
    while (ath_kv_length(s->kv, 0) < N) assert_int_equal(run(s, 1, &err), ATH_OK);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) check_row(s, positions[i], what);
    ath_kv_stats stats;
    ath_kv_get_stats(s->kv, &stats);
    if (stats.saturated != (uint64_t)expected_clamps(type, x))
        fail_msg("%s: %llu clamped values were counted", what, (unsigned long long)stats.saturated);
    const ath_attn_counters *c = ath_kv_counters(s->kv, 0);
    if (!ath_kv_type_is_raw(type)) assert_true(c->k_compressed > 0 && c->v_compressed > 0);
    scene_free(s);
}

static void extremes_are_stored_or_counted(void **state) {
    (void)state;
    for (int type = 0; type < ATH_KV_TYPE_COUNT; type++)
        for (int i = 0; i < N_EXTREMES; i++)
            for (int side = 0; side < 2; side++) check_extreme((ath_kv_type)type, &extremes[i], side);
}

/* NaN and infinity are refused, leave nothing behind, and the sequence goes on as if they had never come. */
static void what_is_no_number_is_refused(void **state) {
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int type = 0; type < ATH_KV_TYPE_COUNT; type++) {
        scene *clean = scene_new((ath_kv_type)type, NULL, 0);
        ath_error err = {0};
        assert_int_equal(run(clean, 150, &err), ATH_OK);
        assert_int_equal(run(clean, 150, &err), ATH_OK);
        for (int i = 0; i < 6; i++) {
            extreme x = {"no number", 0, values[i / 2], ONE_VALUE, 0};
            scene *s = scene_new((ath_kv_type)type, NULL, i % 2);
            assert_int_equal(run(s, 150, &err), ATH_OK);
            s->x = &x;
            err = (ath_error){0};
            assert_int_equal(run(s, 150, &err), ATH_ERR_FORMAT);
            assert_non_null(strstr(err.message, "layer 0: 1 of the new values are NaN or infinite"));
            assert_int_equal(ath_kv_length(s->kv, 0), 150);
            s->x = NULL;
            assert_int_equal(run(s, 150, &err), ATH_OK);
            assert_memory_equal(s->out, clean->out, 300 * sizeof s->out[0]);
            scene_free(s);
        }
        scene_free(clean);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extremes_are_stored_or_counted),
        cmocka_unit_test(what_is_no_number_is_refused),
    };
    return cmocka_run_group_tests_name("kv extremes", tests, NULL, NULL);
}
