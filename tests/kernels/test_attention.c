/* Attention kernels of every instruction set against plain C, bit for bit. --bench [decode|pages|prefill] prints their
 * speed instead; --quick takes fewer shapes, for slow machines. */
#include <setjmp.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/versions.h"

enum { TOKENS = ATH_PAGE_TOKENS, HEADS = 16, TILE = ATH_MAX_HEAD_DIM * TOKENS, SEED = 20240917 };

enum { N_DIMS = 10 };
static const int dims[N_DIMS] = {16, 32, 48, 64, 80, 96, 112, 128, 192, 576};
static int dim_step = 1; /* --quick: only every fourth */

static uint64_t seed_state;

static float uniform(void) {
    seed_state = seed_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed_state >> 40) * 0x1p-24f;
}

static float normal(void) {
    return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f;
}

/* Exactly n floats on the heap, so that a read past them is seen. */
static float *normals(size_t n) {
    float *x = malloc(n * sizeof *x);
    if (!x) abort();
    for (size_t i = 0; i < n; i++) x[i] = normal();
    return x;
}

static void *raw_copy(ath_kv_type type, const float *x, size_t n) {
    size_t size = type == ATH_KV_F32 ? 4 : 2;
    uint8_t *out = malloc(n * size);
    if (!out) abort();
    for (size_t i = 0; i < n; i++) {
        uint16_t half = type == ATH_KV_F16 ? ath_f32_to_f16(x[i]) : ath_f32_to_bf16(x[i]);
        memcpy(out + i * size, size == 4 ? (const void *)&x[i] : (const void *)&half, size);
    }
    return out;
}

static void same(const void *want, const void *got, size_t n, const char *what, const ath_attn_kernels *k,
                 int dim, int heads) {
    if (memcmp(want, got, n) != 0)
        fail_msg("%s, %s: head_dim %d, %d heads differ from plain C", what, k->isa, dim, heads);
}

static void test_plain(void **state) {
    (void)state;
    ath_attn_kernels c, k;
    ath_attn_kernels_init(&c, 0);
    static float want[HEADS * TILE / 8], got[HEADS * TILE / 8];
    for (int m = 0; m < N_MASKS; m++)
        for (int d = 0; d < N_DIMS; d += dim_step)
            for (int type = 0; type < ATH_KV_RAW_COUNT; type++) {
                ath_attn_kernels_init(&k, ath_cpu_flags(masks[m]));
                int dim = dims[d], heads = 1 + (d + 3 * type) % HEADS;
                size_t n = (size_t)dim * TOKENS;
                float *x = normals(n), *q = normals((size_t)(heads * dim)),
                      *w = normals((size_t)heads * TOKENS);
                void *tile = raw_copy((ath_kv_type)type, x, n);
                c.widen[type](tile, want, (int64_t)n);
                k.widen[type](tile, got, (int64_t)n);
                same(want, got, n * sizeof *got, "widen", &k, dim, heads);
                for (int lo = 0; lo < 8; lo += 3)
                    for (int hi = lo + 1; hi <= 8; hi += 2) {
                        memset(want, 0, sizeof want);
                        memset(got, 0, sizeof got);
                        c.scores[type](tile, dim, lo, hi, q, heads, want);
                        k.scores[type](tile, dim, lo, hi, q, heads, got);
                        same(want, got, (size_t)heads * TOKENS * sizeof *got, "scores", &k, dim, heads);
                        c.accumulate[type](tile, dim, 16 * lo + 3, 16 * hi - 5, w, heads, want);
                        k.accumulate[type](tile, dim, 16 * lo + 3, 16 * hi - 5, w, heads, got);
                        same(want, got, (size_t)(heads * dim) * sizeof *got, "accumulate", &k, dim, heads);
                    }
                free(x);
                free(q);
                free(w);
                free(tile);
            }
}

static void test_softmax(void **state) {
    (void)state;
    ath_attn_kernels c, k;
    ath_attn_kernels_init(&c, 0);
    for (int m = 0; m < N_MASKS; m++) {
        ath_attn_kernels_init(&k, ath_cpu_flags(masks[m]));
        float state_c[2] = {-INFINITY, 0}, state_k[2] = {-INFINITY, 0};
        for (int i = 0; i < 2000; i++) {
            float a[TOKENS], b[TOKENS];
            int lo = (int)(uniform() * 129), hi = (int)(uniform() * 129);
            float spread = i % 7 == 0 ? 60.0f : 3.0f, unseen = i % 2 ? NAN : 1000.0f;
            for (int t = 0; t < TOKENS; t++) a[t] = b[t] = t >= lo && t < hi ? normal() * spread : unseen;
            float factor_c = c.softmax(a, lo, hi, &state_c[0], &state_c[1]);
            float factor_k = k.softmax(b, lo, hi, &state_k[0], &state_k[1]);
            same(&factor_c, &factor_k, sizeof factor_c, "softmax factor", &k, lo, hi);
            same(state_c, state_k, sizeof state_c, "softmax state", &k, lo, hi);
            same(a, b, sizeof a, "softmax", &k, lo, hi);
            if (i % 20 == 0) state_c[0] = state_k[0] = -INFINITY, state_c[1] = state_k[1] = 0;
            for (int t = 0; t < TOKENS; t++) a[t] = b[t] = normal() * 40;
            c.softcap(a, TOKENS, 30.0f);
            k.softcap(b, TOKENS, 30.0f);
            same(a, b, sizeof a, "softcap", &k, 0, 0);
        }
    }
}

static ath_kv_layout layout_of(ath_kv_type type, int dim, bool key) {
    ath_kv_layout layout;
    ath_error err;
    if (ath_kv_layout_init(&layout, type, dim, key, &err) != ATH_OK) abort();
    return layout;
}

/* A random tile: channels of unequal size, one of them constant; a V token of zeros, and one of two equal
 * values, whose transform is exactly zero in half of the channels. */
static uint16_t *random_tile(const ath_kv_layout *layout) {
    size_t dim = (size_t)layout->head_dim;
    uint16_t *tile = malloc(dim * TOKENS * sizeof *tile);
    if (!tile) abort();
    for (size_t c = 0; c < dim; c++) {
        float size = c % 5 == 0 ? 30.0f : c % 7 == 0 ? 1e-4f : 1.0f, mean = c % 11 == 0 ? 50.0f : 0.0f;
        for (size_t t = 0; t < TOKENS; t++) {
            float x = c == 3 ? 2.0f : normal() * size + mean;
            if (!layout->is_key && (t == 77 || t == 78)) x = t == 78 && (c == 1 || c == 2) ? 1.0f : 0.0f;
            tile[layout->is_key ? c * TOKENS + t : t * dim + c] = ath_f32_to_f16(x);
        }
    }
    return tile;
}

static uint8_t *random_page(const ath_kv_layout *layout) {
    uint16_t *tile = random_tile(layout);
    float *scratch = malloc((size_t)layout->head_dim * TOKENS * sizeof *scratch);
    uint8_t *page = malloc(layout->bytes + ATH_PAGE_SLACK);
    if (!scratch || !page) abort();
    memset(page + layout->bytes, 0xff, ATH_PAGE_SLACK);
    ath_kv_encode_page(layout, tile, page, scratch);
    free(tile);
    free(scratch);
    return page;
}

/* The types whose pages are encoded that a head of this size can have. */
static bool can_hold(ath_kv_type type, int dim) {
    return ath_kv_type_is_turbo(type) || dim % ATH_KV_BLOCK == 0;
}

static void test_encoded_keys(void **state) {
    (void)state;
    ath_attn_kernels c, k;
    ath_attn_kernels_init(&c, 0);
    for (int m = 0; m < N_MASKS; m++)
        for (int d = 0; d < N_DIMS; d += dim_step)
            for (ath_kv_type type = ATH_KV_Q8_0; type < ATH_KV_TURBO4_PLAIN; type++) {
                if (!can_hold(type, dims[d])) continue;
                ath_attn_kernels_init(&k, ath_cpu_flags(masks[m]));
                int dim = dims[d], heads = 1 + (d + 3 * (int)type) % HEADS;
                ath_kv_layout layout = layout_of(type, dim, true);
                bool turbo = ath_kv_type_is_turbo(type);
                uint8_t *page = random_page(&layout);
                float *q = normals((size_t)(heads * dim));
                if (d % 2) memset(q, 0, (size_t)dim * sizeof *q);
                static ath_turbo_query want[HEADS], got[HEADS];
                memset(want, 0, sizeof want);
                memset(got, 0, sizeof got);
                c.turbo_query(&layout, page, q, heads, want);
                k.turbo_query(&layout, page, q, heads, got);
                same(want, got, sizeof want, "turbo_query", &k, dim, heads);
                float a[HEADS * TOKENS] = {0}, b[HEADS * TOKENS] = {0};
                for (int lo = 0; lo < 8; lo += 5) {
                    (turbo ? c.turbo_scores : c.block_scores)(&layout, page, want, heads, lo, 8 - lo / 2, a,
                                                              NULL);
                    (turbo ? k.turbo_scores : k.block_scores)(&layout, page, want, heads, lo, 8 - lo / 2, b,
                                                              lo ? page : NULL);
                    same(a, b, sizeof a, ath_kv_type_name(type), &k, dim, heads);
                }
                free(page);
                free(q);
            }
}

static void test_encoded_values(void **state) {
    (void)state;
    ath_attn_kernels c, k;
    ath_attn_kernels_init(&c, 0);
    for (int m = 0; m < N_MASKS; m++)
        for (int d = 0; d < N_DIMS; d += dim_step)
            for (ath_kv_type type = ATH_KV_Q8_0; type < ATH_KV_TURBO4_PLAIN; type++) {
                if (!can_hold(type, dims[d])) continue;
                ath_attn_kernels_init(&k, ath_cpu_flags(masks[m]));
                int dim = dims[d], heads = 1 + (d + 3 * (int)type) % HEADS;
                ath_kv_layout layout = layout_of(type, dim, false);
                bool turbo = ath_kv_type_is_turbo(type);
                uint8_t *page = random_page(&layout);
                float *w = normals((size_t)heads * TOKENS), *a = normals((size_t)(heads * dim));
                float *b = malloc((size_t)(heads * dim) * sizeof *b);
                if (!b) abort();
                memcpy(b, a, (size_t)(heads * dim) * sizeof *b);
                for (int i = 0; i < heads * TOKENS; i++) w[i] = i / TOKENS == 1 ? 0 : w[i] * w[i];
                for (int lo = 0; lo < 12; lo += 4) {
                    int hi = TOKENS - 5 * lo;
                    (turbo ? c.turbo_accumulate : c.block_accumulate)(&layout, page, lo, hi, w, heads, a,
                                                                      NULL);
                    (turbo ? k.turbo_accumulate : k.block_accumulate)(&layout, page, lo, hi, w, heads, b,
                                                                      lo ? page : NULL);
                    same(a, b, (size_t)(heads * dim) * sizeof *b, ath_kv_type_name(type), &k, dim, heads);
                }
                c.unrotate(&layout, a);
                k.unrotate(&layout, b);
                same(a, b, (size_t)(heads * dim) * sizeof *b, "unrotate", &k, dim, heads);
                free(page);
                free(w);
                free(a);
                free(b);
            }
}

/* Any bytes are a page of blocks: scales that are infinite or NaN give the same nonsense everywhere. */
static void test_any_blocks(void **state) {
    (void)state;
    enum { DIM = 64, ANY_HEADS = 3 };
    ath_attn_kernels c, k;
    ath_attn_kernels_init(&c, 0);
    for (int m = 0; m < N_MASKS; m++)
        for (ath_kv_type type = ATH_KV_Q8_0; type < ATH_KV_TURBO4; type++) {
            ath_attn_kernels_init(&k, ath_cpu_flags(masks[m]));
            ath_kv_layout layout = layout_of(type, DIM, false);
            uint8_t *page = malloc(layout.bytes + ATH_PAGE_SLACK);
            float *w = normals(ANY_HEADS * TOKENS), a[ANY_HEADS * DIM] = {0}, b[ANY_HEADS * DIM] = {0};
            for (size_t i = 0; i < layout.bytes; i++) page[i] = (uint8_t)(uniform() * 256);
            for (int i = 0; i < ANY_HEADS * TOKENS; i++) w[i] = fabsf(w[i]);
            c.block_accumulate(&layout, page, 0, TOKENS, w, ANY_HEADS, a, NULL);
            k.block_accumulate(&layout, page, 0, TOKENS, w, ANY_HEADS, b, NULL);
            for (int i = 0; i < ANY_HEADS * DIM; i++)
                if (!(isnan(a[i]) && isnan(b[i])))
                    same(&a[i], &b[i], sizeof *a, "any blocks", &k, DIM, ANY_HEADS);
            free(page);
            free(w);
        }
}

static void test_pages(void **state) {
    (void)state;
    ath_attn_kernels k;
    static float want[TILE], got[TILE];
    for (int m = 0; m < N_MASKS; m++)
        for (int d = 0; d < N_DIMS; d += dim_step)
            for (int type = 0; type < ATH_KV_TYPE_COUNT; type++)
                for (int key = 0; key < 2; key++) {
                    bool raw = ath_kv_type_is_raw((ath_kv_type)type);
                    if (raw ? dims[d] > 128 : !can_hold((ath_kv_type)type, dims[d])) continue;
                    ath_attn_kernels_init(&k, ath_cpu_flags(masks[m]));
                    ath_kv_layout layout = layout_of((ath_kv_type)type, dims[d], key);
                    size_t n = (size_t)dims[d] * TOKENS;
                    uint16_t *tile = random_tile(&layout);
                    float *scratch = malloc(n * sizeof *scratch);
                    uint8_t *page = malloc(layout.bytes + ATH_PAGE_SLACK), *page2 = malloc(layout.bytes);
                    ath_kv_encode_page(&layout, tile, page, scratch);
                    memset(page2, 0xaa, layout.bytes);
                    k.encode(&layout, tile, page2, scratch);
                    same(page, page2, layout.bytes, "encode", &k, dims[d], 1);
                    ath_kv_decode_page(&layout, page, want);
                    k.expand(&layout, page, got);
                    same(want, got, n * sizeof *got, "expand", &k, dims[d], 1);
                    free(tile);
                    free(scratch);
                    free(page);
                    free(page2);
                }
}

/* ---- bench */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Decode of one row over 16K tokens of 8 KV heads, as the device walks them: a page of memory holds K of all heads, then V
 * of all, and a head's pages are read one after the other. More than a second-level cache holds, so the bytes come from
 * where a model's would. Best and median of the heads' walks; then each kernel alone over one page, again and again. */
enum { BENCH_PAGES = 128, BENCH_KV_HEADS = 8, BENCH_ROUNDS = 6 };

/* How often to repeat what is done n times: plain C is slow, and not hurried by what else runs. */
static int bench_times(const ath_attn_kernels *k, int n) {
    return strcmp(k->isa, "plain C") == 0 ? (n + 59) / 60 : n;
}

typedef struct decode_bench {
    const ath_attn_kernels *k;
    ath_kv_type type;
    ath_kv_layout key, value;
    int group, dim;
    size_t stride; /* of pages */
    uint8_t *data;
    float *q, *acc;
    ath_turbo_query queries[HEADS];
    float scores[HEADS * TOKENS], max[HEADS], sum[HEADS];
} decode_bench;

static uint8_t *normal_page(const ath_kv_layout *layout) {
    size_t n = (size_t)layout->head_dim * TOKENS;
    float *scratch = normals(n);
    uint16_t *tile = malloc(n * sizeof *tile);
    uint8_t *page = calloc(1, layout->bytes + ATH_PAGE_SLACK);
    if (!tile || !page) abort();
    for (size_t i = 0; i < n; i++) tile[i] = ath_f32_to_f16(scratch[i]);
    ath_kv_encode_page(layout, tile, page, scratch);
    free(tile);
    free(scratch);
    return page;
}

static decode_bench *decode_bench_new(const ath_attn_kernels *k, ath_kv_type type, int group, int dim) {
    decode_bench *b = calloc(1, sizeof *b);
    if (!b) abort();
    *b = (decode_bench){.k = k, .type = type, .group = group, .dim = dim};
    b->key = layout_of(type, dim, true);
    b->value = layout_of(type, dim, false);
    b->stride = (BENCH_KV_HEADS * (b->key.bytes + b->value.bytes) + 127) / 64 * 64;
    b->data = malloc(BENCH_PAGES * b->stride);
    b->q = normals((size_t)(group * dim));
    b->acc = calloc((size_t)(group * dim), sizeof *b->acc);
    uint8_t *key = normal_page(&b->key), *value = normal_page(&b->value);
    if (!b->data || !b->acc) abort();
    for (int i = 0; i < group * dim; i++) b->q[i] /= sqrtf((float)dim);
    for (size_t p = 0; p < BENCH_PAGES; p++)
        for (size_t h = 0; h < BENCH_KV_HEADS; h++) {
            uint8_t *page = b->data + p * b->stride;
            memcpy(page + h * b->key.bytes, key, b->key.bytes);
            memcpy(page + BENCH_KV_HEADS * b->key.bytes + h * b->value.bytes, value, b->value.bytes);
        }
    free(key);
    free(value);
    return b;
}

static void decode_bench_free(decode_bench *b) {
    free(b->data);
    free(b->q);
    free(b->acc);
    free(b);
}

enum { STAGE_QUERY = 1, STAGE_SCORES = 2, STAGE_SOFTMAX = 4, STAGE_VALUES = 8, STAGE_ALL = 15 };

static void decode_stages(decode_bench *b, size_t p, size_t head, int stages) {
    const ath_attn_kernels *k = b->k;
    const uint8_t *page = b->data + p * b->stride, *key = page + head * b->key.bytes;
    const uint8_t *value = page + BENCH_KV_HEADS * b->key.bytes + head * b->value.bytes;
    size_t ahead = p + 1 < BENCH_PAGES ? b->stride : 0;
    bool turbo = ath_kv_type_is_turbo(b->type), raw = ath_kv_type_is_raw(b->type);
    if (!raw && stages & STAGE_QUERY) k->turbo_query(&b->key, key, b->q, b->group, b->queries);
    if (!raw && stages & STAGE_SCORES)
        (turbo ? k->turbo_scores : k->block_scores)(&b->key, key, b->queries, b->group, 0, 8, b->scores,
                                                    key + ahead);
    if (raw && stages & STAGE_SCORES) k->scores[b->type](key, b->dim, 0, 8, b->q, b->group, b->scores);
    for (int h = 0; h < b->group && stages & STAGE_SOFTMAX; h++)
        k->softmax(b->scores + h * TOKENS, 0, TOKENS, &b->max[h], &b->sum[h]);
    if (!raw && stages & STAGE_VALUES)
        (turbo ? k->turbo_accumulate : k->block_accumulate)(&b->value, value, 0, TOKENS, b->scores, b->group,
                                                            b->acc, value + ahead);
    if (raw && stages & STAGE_VALUES)
        k->accumulate[b->type](value, b->dim, 0, TOKENS, b->scores, b->group, b->acc);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_decode(const ath_attn_kernels *k, ath_kv_type type, int group, int dim) {
    decode_bench *b = decode_bench_new(k, type, group, dim);
    double walks[BENCH_ROUNDS * BENCH_KV_HEADS], stage[4];
    int n_walks = bench_times(k, BENCH_ROUNDS * BENCH_KV_HEADS);
    for (int i = 0; i < n_walks; i++) {
        for (int h = 0; h < group; h++) b->max[h] = -INFINITY, b->sum[h] = 0;
        double start = now();
        for (size_t p = 0; p < BENCH_PAGES; p++) decode_stages(b, p, (size_t)i % BENCH_KV_HEADS, STAGE_ALL);
        walks[i] = (now() - start) / BENCH_PAGES;
    }
    qsort(walks, (size_t)n_walks, sizeof *walks, by_size);
    decode_stages(b, 0, 0, STAGE_ALL);
    for (int s = 0; s < 4; s++) {
        int times = bench_times(k, 50);
        stage[s] = 1e9;
        for (int round = 0; round < bench_times(k, 20); round++) {
            double start = now();
            for (int i = 0; i < times; i++) decode_stages(b, 0, 0, 1 << s);
            stage[s] = fmin(stage[s], (now() - start) / times);
        }
    }
    double bytes = (double)(b->key.bytes + b->value.bytes), best = walks[0], median = walks[n_walks / 2];
    printf("decode  %-10s %-8s %2d/%d x %3d: %6.2f GB/s (median %6.2f), %5.1f ns per token and KV head; ns per page: "
           "query %4.0f, scores %4.0f, softmax %4.0f, values %4.0f\n",
           ath_kv_type_name(type), k->isa, BENCH_KV_HEADS * group, BENCH_KV_HEADS, dim, bytes / best * 1e-9,
           bytes / median * 1e-9, best / TOKENS * 1e9, stage[0] * 1e9, stage[1] * 1e9, stage[2] * 1e9,
           stage[3] * 1e9);
    decode_bench_free(b);
}

static void bench_pages(const ath_attn_kernels *k, ath_kv_type type, int dim) {
    for (int side = 0; side < 2; side++) {
        ath_kv_layout layout = layout_of(type, dim, side == 0);
        uint16_t *tile = random_tile(&layout);
        uint8_t *page = random_page(&layout);
        float *scratch = malloc((size_t)dim * TOKENS * sizeof *scratch);
        double encode = 1e9, expand = 1e9;
        for (int i = 0; i < bench_times(k, 60); i++) {
            double start = now();
            k->encode(&layout, tile, page, scratch);
            double middle = now();
            k->expand(&layout, page, scratch);
            double end = now();
            encode = fmin(encode, middle - start);
            expand = fmin(expand, end - middle);
        }
        double values = (double)dim * TOKENS;
        printf("pages   %-10s %-8s %s x %3d: encode %6.2f us (%.2f ns per value), expand %6.2f us\n",
               ath_kv_type_name(type), k->isa, side ? "V" : "K", dim, encode * 1e6, encode / values * 1e9,
               expand * 1e6);
        free(tile);
        free(page);
        free(scratch);
    }
}

static void bench_prefill(const ath_attn_kernels *k, int dim) {
    enum { VECTORS = 256, BLOCK = 12, ROUNDS = 20 };
    float *tile = normals((size_t)dim * TOKENS), *q = normals((size_t)dim * VECTORS),
          *acc = normals((size_t)dim * VECTORS);
    static float s[BLOCK * TOKENS];
    double start = now();
    int blocks = 0;
    for (int round = 0; round < bench_times(k, ROUNDS); round++)
        for (int i = 0; i + BLOCK <= VECTORS; i += BLOCK, blocks++) {
            k->scores[0](tile, dim, 0, 8, q + i * dim, BLOCK, s);
            float max = -INFINITY, sum = 0;
            for (int h = 0; h < BLOCK; h++) k->softmax(s + h * TOKENS, 0, TOKENS, &max, &sum);
            k->accumulate[0](tile, dim, 0, TOKENS, s, BLOCK, acc + i * dim);
        }
    double seconds = now() - start;
    printf("prefill f32        %-8s x %3d: %6.1f GFLOP/s\n", k->isa, dim,
           4.0 * blocks * BLOCK * dim * TOKENS / seconds * 1e-9);
    free(tile);
    free(q);
    free(acc);
}

static void bench_decodes(const ath_attn_kernels *k) {
    for (ath_kv_type type = 0; type < ATH_KV_TURBO4_PLAIN; type++) {
        bench_decode(k, type, 2, 128);
        bench_decode(k, type, 4, 64);
    }
}

/* what: "decode", "pages", "prefill"; NULL: everything. */
static void bench(const char *what) {
    for (int m = -1; m < N_MASKS; m++) {
        ath_attn_kernels k;
        ath_attn_kernels_init(&k, m < 0 ? 0 : ath_cpu_flags(masks[m]));
        if (!what || strcmp(what, "decode") == 0) bench_decodes(&k);
        if (!what || strcmp(what, "pages") == 0)
            for (ath_kv_type type = ATH_KV_TURBO4; type < ATH_KV_TURBO4_PLAIN; type++) bench_pages(&k, type, 128);
        if (what && strcmp(what, "prefill") != 0) continue;
        bench_prefill(&k, 128);
        bench_prefill(&k, 64);
    }
}

/* Matrix products against double precision: the error is one of 16 or 24 bits of each factor. Rows behind n are zero, and a row
 * doesn't depend on those beside it. */
static void test_matrix(void **state) {
    (void)state;
    static const int shapes[][3] = {{1, 32, 32}, {31, 64, 128}, {33, 128, 64}, {64, 576, 128}, {100, 128, 512}};
    ath_attn_kernels k;
    ath_attn_kernels_init(&k, ath_cpu_flags(~0u));
    if (!k.matrix) skip();
    k.matrix->begin();
    for (int i = 0; i < 10; i++) {
        const int *shape = shapes[i / 2], parts = 2 + i % 2;
        int n = shape[0], steps = shape[1], lanes = shape[2], room = (n + 31) / 32 * 32;
        float *a = normals((size_t)(n * steps)), *b = normals((size_t)(steps * lanes)), *out = normals((size_t)(room * lanes));
        float *before = malloc((size_t)(room * lanes) * sizeof *before), *alone = calloc((size_t)(32 * lanes), sizeof *alone);
        uint32_t *rows = malloc((size_t)(parts * room * steps / 2) * sizeof *rows),
                 *columns = malloc((size_t)(parts * steps * lanes / 2) * sizeof *columns);
        if (!before || !alone || !rows || !columns) abort();
        memcpy(before, out, (size_t)(room * lanes) * sizeof *out);
        k.matrix->pack_rows(a, n, steps, parts, rows);
        k.matrix->pack_steps(b, steps, lanes, parts, columns);
        k.matrix->product(rows, columns, n, steps, lanes, parts, out, true);
        for (int r = 0; r < room; r++)
            for (int l = 0; l < lanes; l++) {
                double want = (double)before[r * lanes + l], size = fabs(want);
                for (int s = 0; r < n && s < steps; s++) {
                    double x = (double)a[r * steps + s] * (double)b[s * lanes + l];
                    want += x;
                    size += fabs(x);
                }
                double error = fabs((double)out[r * lanes + l] - want);
                if (!(error <= size * (parts == 2 ? 0x1p-15 : 0x1p-21)))
                    fail_msg("%d parts, %d x %d x %d: %g of %g at %d, %d", parts, n, steps, lanes, error, size, r, l);
            }
        k.matrix->product(rows, columns, n, steps, lanes, parts, out, false);
        k.matrix->pack_rows(a + (n - 1) * steps, 1, steps, parts, rows);
        k.matrix->product(rows, columns, 1, steps, lanes, parts, alone, false);
        same(out + (n - 1) * lanes, alone, (size_t)lanes * sizeof *out, "a row alone", &k, steps, n);
        free(a), free(b), free(out), free(before), free(alone), free(rows), free(columns);
    }
    k.matrix->end();
}

int main(int argc, char **argv) {
    seed_state = SEED;
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench(argc > 2 ? argv[2] : NULL);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--quick") == 0) dim_step = 4;
    print_seed_and_cpu(SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_encoded_keys), cmocka_unit_test(test_encoded_values),
        cmocka_unit_test(test_any_blocks),   cmocka_unit_test(test_pages),
        cmocka_unit_test(test_matrix),
    };
    return cmocka_run_group_tests_name("attention kernels", tests, NULL, NULL);
}
