/* Speed of attention as the device offers it: one layer of 16 query heads over 8 of 128 channels, 16,384
 * tokens deep; decode of one row, and prefill of 512. Every page has memory of its own. */
#ifndef ATH_TESTS_ATTEND_BENCH_H
#define ATH_TESTS_ATTEND_BENCH_H

#include <stdio.h>
#include <time.h>

#include "attend_fixture.h"

enum {
    BENCH_HEADS = 16,
    BENCH_KV_HEADS = 8,
    BENCH_DIM = 128,
    BENCH_DEPTH = 16384,
    BENCH_ROWS = 512,
    BENCH_LAYERS = 6, /* as many as it takes to read from memory */
    BENCH_PAGES = (BENCH_DEPTH + BENCH_ROWS) / ATH_PAGE_TOKENS
};

static double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of `times` runs, each on another layer. */
static double bench_attend(ath_device *dev, const ath_attn_args *args, ath_attn_seq *seq, uint8_t **pages,
                           int times) {
    double best = INFINITY;
    for (int i = 0; i < times; i++) {
        double start = bench_now();
        seq->pages = (const uint8_t *const *)pages + i % BENCH_LAYERS * BENCH_PAGES;
        ath_op_attend(dev, args);
        best = fmin(best, bench_now() - start);
    }
    return best;
}

/* One side of all heads of a page: as pages hold it, and as f16 tiles. */
static uint16_t *bench_fill(const ath_kv_layout *layout, uint8_t *page) {
    size_t n = BENCH_DIM * ATH_PAGE_TOKENS;
    uint16_t *tiles = xmalloc(BENCH_KV_HEADS * n * sizeof *tiles);
    float *scratch = xmalloc(n * sizeof *scratch);
    rng r = {7};
    for (size_t i = 0; i < BENCH_KV_HEADS * n; i++) tiles[i] = ath_f32_to_f16(rng_normal(&r));
    for (size_t h = 0; h < BENCH_KV_HEADS; h++)
        ath_kv_encode_page(layout, tiles + h * n, page + h * layout->bytes, scratch);
    free(scratch);
    return tiles;
}

static void bench_type(ath_device *dev, ath_kv_type type) {
    enum { PAGES = BENCH_LAYERS * BENCH_PAGES };
    attend_config c = {type, type, BENCH_DIM, BENCH_DIM, BENCH_HEADS, BENCH_KV_HEADS, 0, 0, false};
    ath_error err;
    ath_attn_counters counters = {0};
    ath_attn_args args = {.n_heads = BENCH_HEADS, .n_kv_heads = BENCH_KV_HEADS, .scale = 0.088f, .n_seqs = 1};
    if (ath_kv_layout_init(&args.k.layout, type, BENCH_DIM, true, &err) != ATH_OK ||
        ath_kv_layout_init(&args.v.layout, type, BENCH_DIM, false, &err) != ATH_OK)
        abort();
    args.v.offset = BENCH_KV_HEADS * args.k.layout.bytes;
    size_t bytes = args.v.offset + BENCH_KV_HEADS * args.v.layout.bytes;
    uint8_t *pages[PAGES];
    const uint16_t *recent[2][BENCH_PAGES], *tiles[2] = {NULL, NULL};
    for (int i = 0; i < PAGES; i++) {
        pages[i] = xmalloc(bytes + ATH_PAGE_SLACK);
        if (i) memcpy(pages[i], pages[0], bytes);
        if (!i) tiles[0] = bench_fill(&args.k.layout, pages[0]);
        if (!i) tiles[1] = bench_fill(&args.v.layout, pages[0] + args.v.offset);
    }
    for (int i = 0; i < BENCH_PAGES; i++) recent[0][i] = tiles[0], recent[1][i] = tiles[1];
    float *q = random_queries(&c, BENCH_ROWS, 5),
          *out = xmalloc(BENCH_ROWS * BENCH_HEADS * BENCH_DIM * sizeof *out);
    ath_attn_seq seq = {.n_rows = 1, .pos0 = BENCH_DEPTH - 1};
    seq.recent_k = recent[0], seq.recent_v = recent[1], seq.sink_k = tiles[0], seq.sink_v = tiles[1];
    args.seqs = &seq, args.q = q, args.out = out, args.counters = &counters;
    double decode = bench_attend(dev, &args, &seq, pages, 5 * BENCH_LAYERS);
    printf("%-10s decode %8.1f us, %5.1f GB/s", ath_kv_type_name(type), decode * 1e6,
           (double)bytes * BENCH_DEPTH / ATH_PAGE_TOKENS / decode * 1e-9);
    seq.n_rows = BENCH_ROWS, seq.pos0 = BENCH_DEPTH;
    double prefill = bench_attend(dev, &args, &seq, pages, 3),
           pairs = BENCH_ROWS * (BENCH_DEPTH + 0.5 * BENCH_ROWS);
    printf("; prefill %6.1f ms, %5.1f GMAC/s\n", prefill * 1e3,
           pairs * BENCH_HEADS * 2 * BENCH_DIM / prefill * 1e-9);
    for (int i = 0; i < PAGES; i++) free(pages[i]);
    for (int side = 0; side < 2; side++) free((uint16_t *)tiles[side]);
    free(q);
    free(out);
}

static void bench_device(ath_device *dev, int argc, char **types) {
    printf("%s\n", ath_device_describe(dev));
    for (int t = 0; t < ATH_KV_TYPE_COUNT; t++) {
        bool asked = argc == 0;
        for (int i = 0; i < argc; i++) asked |= strcmp(types[i], ath_kv_type_name((ath_kv_type)t)) == 0;
        if (asked) bench_type(dev, (ath_kv_type)t);
    }
}

#endif
