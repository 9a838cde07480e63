/* The cache on the CPU device: attention outputs against a double-precision reference of the position rule,
 * and bit for bit between runs that differ in nothing that may matter. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/half.h"
#include "kv/kv.h"
#include "kv/kv_values.h"

enum { N_SEQS = 3, GROUP = 2, MAX_TOKENS = 1600, MAX_LAYERS = 4, N_UBATCH = 512 };

typedef struct engine {
    ath_device *device;
    ath_kv *kv;
    ath_kv_params params;
    ath_kv_layer layers[MAX_LAYERS];
    uint32_t tokens[N_SEQS][MAX_TOKENS];
    float *out[N_SEQS][MAX_LAYERS]; /* [MAX_TOKENS][n_heads * head_dim_v]: of the run that came last */
} engine;

static int64_t out_width(const engine *e, int layer) {
    return (int64_t)e->layers[layer].n_kv_heads * GROUP * e->layers[layer].head_dim_v;
}

static engine *engine_new(const ath_kv_layer *layers, int n_layers, int n_threads, bool swa_full,
                          int entry_every) {
    engine *e = calloc(1, sizeof *e);
    memcpy(e->layers, layers, (size_t)n_layers * sizeof *layers);
    e->params = (ath_kv_params){.layers = e->layers,
                                .n_layers = n_layers,
                                .n_ctx = MAX_TOKENS,
                                .n_seqs = N_SEQS,
                                .n_ubatch = N_UBATCH,
                                .entry_every = entry_every,
                                .swa_full = swa_full};
    ath_device_params device = {n_threads, n_threads, ~0u, N_UBATCH, NULL, NULL, false};
    ath_error err;
    if (ath_device_cpu_create(&e->device, &device, &err) != ATH_OK) fail_msg("%s", err.message);
    if (ath_kv_create(&e->kv, e->device, &e->params, &err) != ATH_OK) fail_msg("%s", err.message);
    for (int s = 0; s < N_SEQS; s++) {
        for (int64_t i = 0; i < MAX_TOKENS; i++) e->tokens[s][i] = (uint32_t)(s * 100000 + i % 911);
        for (int l = 0; l < n_layers; l++)
            e->out[s][l] = calloc((size_t)(MAX_TOKENS * out_width(e, l)), sizeof(float));
    }
    return e;
}

static void engine_free(engine *e) {
    for (int s = 0; s < N_SEQS; s++)
        for (int l = 0; l < MAX_LAYERS; l++) free(e->out[s][l]);
    ath_kv_free(e->kv);
    ath_device_free(e->device);
    free(e);
}

static float *fill_rows(const engine *e, const ath_kv_rows *rows, int n, int layer, int what, int heads,
                        int head_dim) {
    int64_t n_rows = 0;
    for (int s = 0; s < n; s++) n_rows += rows[s].n_rows;
    float *x = malloc((size_t)(n_rows * heads * head_dim) * sizeof *x), *to = x;
    for (int s = 0; s < n; s++)
        for (int64_t r = 0; r < rows[s].n_rows; r++) {
            int64_t pos = ath_kv_length(e->kv, rows[s].seq) + r;
            for (int h = 0; h < heads; h++)
                for (int c = 0; c < head_dim; c++)
                    *to++ = kv_value(layer, what, h, c, pos, e->tokens[rows[s].seq][pos]);
        }
    return x;
}

static float scale_of(const ath_kv_layer *layer) {
    return 1.5f / sqrtf((float)layer->head_dim_k);
}

static void run_batch(engine *e, const ath_kv_rows *rows, int n) {
    ath_error err;
    if (ath_kv_begin(e->kv, rows, n, &err) != ATH_OK) fail_msg("%s", err.message);
    for (int l = 0; l < e->params.n_layers; l++) {
        const ath_kv_layer *layer = &e->layers[l];
        float *k = fill_rows(e, rows, n, l, 0, layer->n_kv_heads, layer->head_dim_k);
        float *v = fill_rows(e, rows, n, l, 1, layer->n_kv_heads, layer->head_dim_v);
        float *q = fill_rows(e, rows, n, l, 2, layer->n_kv_heads * GROUP, layer->head_dim_k);
        int64_t width = out_width(e, l), row = 0;
        for (int s = 0; s < n; s++) row += rows[s].n_rows;
        float *out = malloc((size_t)(row * width) * sizeof *out);
        ath_kv_append(e->kv, l, k, v);
        ath_attn_args args = {
            .n_heads = layer->n_kv_heads * GROUP, .scale = scale_of(layer), .q = q, .out = out};
        ath_kv_attend(e->kv, l, &args);
        row = 0;
        for (int s = 0; s < n; s++) {
            int64_t at = ath_kv_length(e->kv, rows[s].seq);
            memcpy(e->out[rows[s].seq][l] + at * width, out + row * width,
                   (size_t)(rows[s].n_rows * width) * sizeof *out);
            row += rows[s].n_rows;
        }
        free(k);
        free(v);
        free(q);
        free(out);
    }
    if (ath_kv_commit(e->kv, &err) != ATH_OK) fail_msg("%s", err.message);
}

/* Evaluates up to `end` tokens in chunks. */
static void run_to(engine *e, int seq, int64_t end, int64_t chunk) {
    for (int64_t n = ath_kv_length(e->kv, seq); n < end; n = ath_kv_length(e->kv, seq)) {
        ath_kv_rows rows = {seq, end - n < chunk ? end - n : chunk};
        run_batch(e, &rows, 1);
    }
}

static void assert_same_rows(const engine *a, int seq_a, const engine *b, int seq_b, int64_t from,
                             int64_t to) {
    for (int l = 0; l < a->params.n_layers; l++) {
        int64_t width = out_width(a, l);
        for (int64_t r = from; r < to; r++)
            if (memcmp(a->out[seq_a][l] + r * width, b->out[seq_b][l] + r * width,
                       (size_t)width * sizeof(float)))
                fail_msg("layer %d: row %lld differs", l, (long long)r);
    }
}

/* ---- reference */
typedef struct reference_side { /* one layer and head: every position as it is read from f16 or raw, and from
                                   pages */
    float *plain, *encoded;     /* [MAX_TOKENS][head_dim] */
} reference_side;

static float raw_value(float x, ath_kv_type type) {
    if (type == ATH_KV_F32) return x;
    return type == ATH_KV_BF16 ? ath_bf16_to_f32(ath_f32_to_bf16(x)) : ath_f16_to_f32(ath_f32_to_f16(x));
}

static reference_side reference_init(const engine *e, int layer, int is_value, int head, ath_kv_type type,
                                     int64_t n) {
    int head_dim = is_value ? e->layers[layer].head_dim_v : e->layers[layer].head_dim_k;
    size_t values = (size_t)MAX_TOKENS * (size_t)head_dim, tile_values = (size_t)head_dim * ATH_PAGE_TOKENS;
    reference_side side = {calloc(values, sizeof(float)), calloc(values, sizeof(float))};
    for (int64_t t = 0; t < n; t++)
        for (int c = 0; c < head_dim; c++)
            side.plain[t * head_dim + c] =
                raw_value(kv_value(layer, is_value, head, c, t, e->tokens[0][t]), type);
    if (ath_kv_type_is_raw(type)) return side;
    ath_kv_layout layout;
    assert_int_equal(ath_kv_layout_init(&layout, type, head_dim, !is_value, NULL), ATH_OK);
    uint16_t *tile = calloc(tile_values, sizeof *tile);
    uint8_t *page = calloc(1, layout.bytes + ATH_PAGE_SLACK);
    float *scratch = calloc(tile_values, sizeof *scratch);
    bool partial = ath_kv_type_is_plain(type); /* the last page is read encoded too, zeros behind its end */
    for (int64_t p = 0; p < (n + (partial ? ATH_PAGE_TOKENS - 1 : 0)) / ATH_PAGE_TOKENS; p++) {
        float *plain = side.plain + p * (int64_t)tile_values,
              *encoded = side.encoded + p * (int64_t)tile_values;
        for (int t = 0; t < ATH_PAGE_TOKENS; t++)
            for (int c = 0; c < head_dim; c++)
                tile[is_value ? t * head_dim + c : c * ATH_PAGE_TOKENS + t] =
                    ath_f32_to_f16(plain[t * head_dim + c]);
        ath_kv_encode_page(&layout, tile, page, scratch);
        ath_kv_decode_page(&layout, page, scratch);
        for (int t = 0; t < ATH_PAGE_TOKENS; t++)
            for (int c = 0; c < head_dim; c++)
                encoded[t * head_dim + c] = scratch[is_value ? t * head_dim + c : c * ATH_PAGE_TOKENS + t];
    }
    free(tile);
    free(page);
    free(scratch);
    return side;
}

static const float *reference_row(const reference_side *side, ath_kv_type type, int head_dim, int64_t at,
                                  int64_t pos) {
    bool recent = at / ATH_PAGE_TOKENS >= pos / ATH_PAGE_TOKENS - 1 || at < ATH_SINK_TOKENS;
    bool plain = ath_kv_type_is_raw(type) || (recent && !ath_kv_type_is_plain(type));
    return (plain ? side->plain : side->encoded) + at * head_dim;
}

/* Largest difference of sequence 0's outputs at pos from the reference, relative to the largest output. */
static double reference_error(const engine *e, int l, int head, const reference_side *k,
                              const reference_side *v, int64_t pos) {
    const ath_kv_layer *layer = &e->layers[l];
    int64_t first = layer->window > 0 && pos >= layer->window ? pos - layer->window + 1 : 0;
    double worst = 0, largest = 0, weights[MAX_TOKENS], *sum = calloc((size_t)layer->head_dim_v, sizeof *sum);
    for (int g = head * GROUP; g < (head + 1) * GROUP; g++) {
        double max = -INFINITY, total = 0;
        for (int64_t at = first; at <= pos; at++) {
            const float *row = reference_row(k, ath_kv_effective_k(e->kv, l), layer->head_dim_k, at, pos);
            double score = 0;
            for (int c = 0; c < layer->head_dim_k; c++)
                score += (double)row[c] * (double)kv_value(l, 2, g, c, pos, e->tokens[0][pos]);
            weights[at] = score * (double)scale_of(layer);
            if (weights[at] > max) max = weights[at];
        }
        memset(sum, 0, (size_t)layer->head_dim_v * sizeof *sum);
        for (int64_t at = first; at <= pos; at++) {
            const float *row = reference_row(v, ath_kv_effective_v(e->kv, l), layer->head_dim_v, at, pos);
            double weight = exp(weights[at] - max);
            total += weight;
            for (int c = 0; c < layer->head_dim_v; c++) sum[c] += weight * (double)row[c];
        }
        const float *out = e->out[0][l] + pos * out_width(e, l) + (int64_t)g * layer->head_dim_v;
        for (int c = 0; c < layer->head_dim_v; c++) {
            double expected = sum[c] / total;
            worst = fmax(worst, fabs(expected - (double)out[c]));
            largest = fmax(largest, fabs(expected));
        }
    }
    free(sum);
    return worst / largest;
}

/* A pair of cache types on layers without and with windows: rows [0, 640) came in chunks, [640, 652) one by
 * one. */
static void check_pair(ath_kv_type type_k, ath_kv_type type_v) {
    static const int64_t windows[] = {0, 129, 130, 300};
    static const int64_t positions[] = {0, 3, 127, 128, 255, 256, 259, 383, 384, 500, 639, 640, 645, 651};
    ath_kv_layer layers[4];
    for (int l = 0; l < 4; l++) layers[l] = (ath_kv_layer){1, 32, 64, windows[l], type_k, type_v, ATH_KV_OWN, 0, 0};
    engine *e = engine_new(layers, 4, 2, false, 0);
    run_to(e, 0, 640, 100);
    run_to(e, 0, 652, 1);
    for (int l = 0; l < 4; l++) {
        reference_side k = reference_init(e, l, 0, 0, ath_kv_effective_k(e->kv, l), 652);
        reference_side v = reference_init(e, l, 1, 0, ath_kv_effective_v(e->kv, l), 652);
        bool integers = !ath_kv_type_is_raw(ath_kv_effective_k(e->kv, l)) ||
                        !ath_kv_type_is_raw(ath_kv_effective_v(e->kv, l));
        for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
            int64_t pos = positions[i];
            /* One row reads encoded pages with queries of 16 bits and weights of 15 or 16: an output is off by a
             * few times a rounding of 2^-16 of the largest weight. */
            double allowed = integers && pos >= 640 ? 4e-4 : 1e-5,
                   error = reference_error(e, l, 0, &k, &v, pos);
            if (!(error <= allowed))
                fail_msg("%s, %s, window %lld, position %lld: off by %g", ath_kv_type_name(type_k),
                         ath_kv_type_name(type_v), (long long)windows[l], (long long)pos, error);
        }
        free(k.plain);
        free(k.encoded);
        free(v.plain);
        free(v.encoded);
    }
    engine_free(e);
}

static void outputs_match_the_reference(void **state) {
    (void)state;
    for (int type = 0; type < ATH_KV_TYPE_COUNT; type++) check_pair((ath_kv_type)type, (ath_kv_type)type);
    check_pair(ATH_KV_F16, ATH_KV_TURBO3);
    check_pair(ATH_KV_TURBO3, ATH_KV_F32);
    check_pair(ATH_KV_Q8_0, ATH_KV_TURBO2);
    check_pair(ATH_KV_TURBO4, ATH_KV_Q4_0);
}

/* ---- bitwise */
static const ath_kv_layer three_layers[] = {{2, 32, 64, 0, ATH_KV_TURBO3, ATH_KV_TURBO3, ATH_KV_OWN, 0, 0},
                                            {1, 64, 32, 300, ATH_KV_TURBO4, ATH_KV_Q4_0, ATH_KV_OWN, 0, 0},
                                            {1, 32, 32, 20, ATH_KV_F32, ATH_KV_BF16, ATH_KV_OWN, 0, 0}};

static void chunks_do_not_matter(void **state) {
    (void)state;
    static const int64_t chunks[] = {7, 64, 200};
    engine *whole = engine_new(three_layers, 3, 1, false, 0);
    run_to(whole, 0, 700, 512);
    for (int i = 0; i < 3; i++) { /* no chunk of one row among them */
        engine *e = engine_new(three_layers, 3, 2, false, 2);
        run_to(e, 0, 700, chunks[i]);
        assert_same_rows(whole, 0, e, 0, 0, 700);
        engine_free(e);
    }
    engine_free(whole);
}

static void windowed_pages_equal_a_full_cache(void **state) {
    (void)state;
    static const int64_t windows[] = {16, 128, 129, 130, 300};
    for (int i = 0; i < 5; i++) {
        ath_kv_layer layer = {1, 32, 32, windows[i], ATH_KV_TURBO3, ATH_KV_Q8_0, ATH_KV_OWN, 0, 0};
        engine *windowed = engine_new(&layer, 1, 1, false, 0), *full = engine_new(&layer, 1, 2, true, 3);
        for (int64_t end = 100; end <= 1400; end += 100) {
            engine *both[] = {windowed, full};
            for (int b = 0; b < 2; b++) {
                run_to(both[b], 0, end - 3, 60);
                run_to(both[b], 0, end, 1);
            }
        }
        assert_same_rows(windowed, 0, full, 0, 0, 1400);
        ath_kv_stats stats;
        ath_kv_get_stats(windowed->kv, &stats);
        assert_in_range(stats.pages_in_use[1], 1, (windows[i] + 128) / 128 + 2);
        engine_free(windowed);
        engine_free(full);
    }
}

static void rolled_back_rows_come_out_the_same(void **state) {
    (void)state;
    static const int64_t backs[] = {1, 2, 8, 63, 127, 128};
    engine *straight = engine_new(three_layers, 3, 1, false, 0),
           *e = engine_new(three_layers, 3, 1, false, 0);
    for (int i = 0; i < 6; i++) {
        int64_t n = 520 + 40 * i, kept = n - backs[i];
        for (int b = 0; b < 2; b++) ath_kv_clear(b ? e->kv : straight->kv, 0);
        run_to(straight, 0, kept, 128);
        run_to(straight, 0, kept + 150, 50);
        run_to(straight, 0, kept + 160, 1);
        run_to(e, 0, kept, 128);
        uint32_t tokens[MAX_TOKENS];
        memcpy(tokens, e->tokens[0], sizeof tokens);
        for (int64_t t = kept; t < n; t++) e->tokens[0][t] += 5000; /* a draft that is not accepted */
        run_to(e, 0, n, 30);
        memcpy(e->tokens[0], tokens, sizeof tokens);
        assert_int_equal(ath_kv_truncate(e->kv, 0, kept), kept);
        run_to(e, 0, kept + 150, 50);
        run_to(e, 0, kept + 160, 1);
        assert_same_rows(straight, 0, e, 0, kept, kept + 160);
    }
    engine_free(straight);
    engine_free(e);
}

static void prefix_hits_equal_cold_runs(void **state) {
    (void)state;
    engine *cold = engine_new(three_layers, 3, 1, false, 0), *e = engine_new(three_layers, 3, 1, false, 2);
    memcpy(e->tokens[0], cold->tokens[0], sizeof cold->tokens[0]);
    run_to(e, 0, 1200, 512);
    for (int64_t want = 300; want < 1100; want += 200) {
        int64_t entry = ath_kv_fork(e->kv, 1, 0, want);
        assert_int_equal(entry, want / 256 * 256);
        memcpy(e->tokens[1], e->tokens[0], sizeof e->tokens[0]);
        for (int64_t t = entry; t < MAX_TOKENS; t++)
            e->tokens[1][t] += 7000; /* another prompt from there on */
        memcpy(cold->tokens[0], e->tokens[1], sizeof e->tokens[1]);
        ath_kv_clear(cold->kv, 0);
        run_to(cold, 0, entry, 64);
        for (int b = 0; b < 2; b++) {
            run_to(b ? e : cold, b, entry + 300, 70);
            run_to(b ? e : cold, b, entry + 310, 1);
        }
        assert_same_rows(cold, 0, e, 1, entry, entry + 310);
    }
    run_to(e, 0, 1300, 50); /* the source goes on undisturbed, and back to an entry point */
    assert_int_equal(ath_kv_truncate(e->kv, 0, 700), 512);
    run_to(e, 0, 900, 100);
    memcpy(cold->tokens[0], e->tokens[0], sizeof e->tokens[0]);
    ath_kv_clear(cold->kv, 0);
    run_to(cold, 0, 900, 128);
    assert_same_rows(cold, 0, e, 0, 512, 900);
    engine_free(cold);
    engine_free(e);
}

static void company_in_the_batch_does_not_matter(void **state) {
    (void)state;
    engine *alone = engine_new(three_layers, 3, 1, false, 0),
           *together = engine_new(three_layers, 3, 2, false, 1);
    static const int64_t rows_of[][N_SEQS] = {{90, 1, 200}, {90, 1, 2}, {2, 300, 1}, {1, 1, 1}, {60, 70, 80}};
    for (int i = 0; i < 20; i++) {
        ath_kv_rows rows[N_SEQS];
        for (int s = 0; s < N_SEQS; s++) {
            int seq = (s + i) % N_SEQS;
            rows[s] = (ath_kv_rows){seq, rows_of[i % 5][seq]};
        }
        if (ath_kv_length(together->kv, 2) + 300 > MAX_TOKENS) break;
        run_batch(together, rows, N_SEQS);
        for (int s = 0; s < N_SEQS; s++) run_batch(alone, &rows[s], 1);
    }
    for (int s = 0; s < N_SEQS; s++) {
        assert_in_range(ath_kv_length(alone->kv, s), 700, MAX_TOKENS);
        assert_same_rows(alone, s, together, s, 0, ath_kv_length(alone->kv, s));
    }
    engine_free(alone);
    engine_free(together);
}

static void reads_are_counted(void **state) {
    (void)state;
    engine *e = engine_new(three_layers, 3, 1, false, 0);
    run_to(e, 0, 1200, 400);
    uint64_t compressed = 0, all = 0;
    for (int64_t pos = 0; pos < 1200; pos++) {
        all += (uint64_t)pos + 1;
        if (pos >= 256) compressed += (uint64_t)(pos / 128 - 1) * 128 - 4;
    }
    const ath_attn_counters *full = ath_kv_counters(e->kv, 0), *raw = ath_kv_counters(e->kv, 2);
    assert_int_equal(full->k_compressed, compressed);
    assert_int_equal(full->v_compressed, compressed);
    assert_int_equal(full->k_plain, all - compressed);
    assert_true(full->k_compressed > full->k_plain);
    assert_int_equal(raw->k_compressed + raw->v_compressed, 0);
    ath_kv_reset_counters(e->kv);
    assert_int_equal(ath_kv_counters(e->kv, 0)->k_plain, 0);
    engine_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_match_the_reference),
        cmocka_unit_test(chunks_do_not_matter),
        cmocka_unit_test(windowed_pages_equal_a_full_cache),
        cmocka_unit_test(rolled_back_rows_come_out_the_same),
        cmocka_unit_test(prefix_hits_equal_cold_runs),
        cmocka_unit_test(company_in_the_batch_does_not_matter),
        cmocka_unit_test(reads_are_counted),
    };
    return cmocka_run_group_tests_name("kv_attention", tests, NULL, NULL);
}
