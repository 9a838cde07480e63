/* A paged KV cache of random values, as the cache code would hand it to attention, and the judge: a plain
 * masked softmax in double precision over the values that the rules say are read. Slots of tokens that are
 * not there hold NaN. */
#ifndef ATH_TESTS_ATTEND_FIXTURE_H
#define ATH_TESTS_ATTEND_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "device/device.h"

typedef struct rng {
    uint64_t state;
} rng;

static inline float rng_normal(rng *r) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        r->state = r->state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(r->state >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
}

typedef struct attend_config {
    ath_kv_type type_k, type_v;
    int head_dim_k, head_dim_v, n_heads, n_kv_heads;
    int64_t window;
    float softcap;
    bool sink_logits;
} attend_config;

typedef struct cache {
    attend_config c;
    ath_kv_layout k, v;
    int64_t n_tokens, n_pages;
    uint16_t *rows[2];   /* f16 [n_tokens][n_kv_heads][head_dim]: K, V */
    uint16_t **tiles[2]; /* [n_pages] */
    uint16_t *sinks[2];
    uint8_t **pages;    /* [n_pages] */
    float **decoded[2]; /* [n_pages][n_kv_heads * tile], of full pages */
} cache;

static inline void *xmalloc(size_t n) {
    void *p = malloc(n);
    if (!p) abort();
    return p;
}

static inline int side_dim(const cache *c, int side) {
    return side ? c->c.head_dim_v : c->c.head_dim_k;
}
static inline const ath_kv_layout *side_layout(const cache *c, int side) {
    return side ? &c->v : &c->k;
}

static void cache_fill_page(cache *c, int64_t page, int side) {
    const ath_kv_layout *layout = side_layout(c, side);
    int dim = side_dim(c, side), heads = c->c.n_kv_heads;
    size_t tile_size = (size_t)dim * ATH_PAGE_TOKENS;
    uint16_t *tiles = c->tiles[side][page] = xmalloc(tile_size * (size_t)heads * sizeof *tiles);
    c->decoded[side][page] = xmalloc(tile_size * (size_t)heads * sizeof(float));
    float *scratch = xmalloc(tile_size * sizeof *scratch);
    for (int h = 0; h < heads; h++) {
        uint16_t *tile = tiles + (size_t)h * tile_size;
        for (int t = 0; t < ATH_PAGE_TOKENS; t++)
            for (int i = 0; i < dim; i++) {
                int64_t pos = page * ATH_PAGE_TOKENS + t;
                uint16_t x = pos < c->n_tokens ? c->rows[side][(pos * heads + h) * dim + i] : 0x7e00;
                tile[side ? t * dim + i : i * ATH_PAGE_TOKENS + t] = x;
            }
        uint8_t *out = c->pages[page] + (side ? (size_t)heads * c->k.bytes : 0) + (size_t)h * layout->bytes;
        float *decoded = c->decoded[side][page] + (size_t)h * tile_size;
        if (ath_kv_type_has_page_data(layout->type) && (page + 1) * ATH_PAGE_TOKENS > c->n_tokens) {
            memset(out, 0xff, layout->bytes); /* not full, so not there yet */
            continue;
        }
        ath_kv_encode_page(layout, tile, out, scratch);
        ath_kv_decode_page(layout, out, decoded);
    }
    free(scratch);
}

static cache *cache_new(const attend_config *config, int64_t n_tokens, uint64_t seed) {
    cache *c = xmalloc(sizeof *c);
    *c = (cache){
        .c = *config, .n_tokens = n_tokens, .n_pages = (n_tokens + ATH_PAGE_TOKENS - 1) / ATH_PAGE_TOKENS};
    ath_error err;
    if (ath_kv_layout_init(&c->k, config->type_k, config->head_dim_k, true, &err) != ATH_OK ||
        ath_kv_layout_init(&c->v, config->type_v, config->head_dim_v, false, &err) != ATH_OK)
        abort();
    size_t heads = (size_t)config->n_kv_heads;
    rng r = {seed};
    c->pages = xmalloc((size_t)c->n_pages * sizeof *c->pages);
    for (int64_t p = 0; p < c->n_pages; p++)
        c->pages[p] = xmalloc(heads * (c->k.bytes + c->v.bytes) + ATH_PAGE_SLACK);
    for (int side = 0; side < 2; side++) {
        size_t dim = (size_t)side_dim(c, side), width = heads * dim;
        c->rows[side] = xmalloc((size_t)n_tokens * width * sizeof(uint16_t));
        for (size_t i = 0; i < (size_t)n_tokens * width; i++) {
            float constant = side == 0 && i % dim == 3 ? 4.0f : 0.0f; /* K has channels with a mean */
            c->rows[side][i] = ath_f32_to_f16(rng_normal(&r) + constant);
        }
        c->tiles[side] = xmalloc((size_t)c->n_pages * sizeof *c->tiles[side]);
        c->decoded[side] = xmalloc((size_t)c->n_pages * sizeof *c->decoded[side]);
        c->sinks[side] = xmalloc(ATH_SINK_TOKENS * width * sizeof(uint16_t));
        for (size_t h = 0; h < heads; h++)
            for (size_t t = 0; t < ATH_SINK_TOKENS && (int64_t)t < n_tokens; t++)
                memcpy(c->sinks[side] + (h * ATH_SINK_TOKENS + t) * dim,
                       c->rows[side] + (t * heads + h) * dim, dim * sizeof(uint16_t));
        for (int64_t p = 0; p < c->n_pages; p++) cache_fill_page(c, p, side);
    }
    return c;
}

static void cache_free(cache *c) {
    for (int64_t p = 0; p < c->n_pages; p++) {
        free(c->pages[p]);
        for (int side = 0; side < 2; side++) {
            free(c->tiles[side][p]);
            free(c->decoded[side][p]);
        }
    }
    for (int side = 0; side < 2; side++) {
        free(c->rows[side]);
        free(c->tiles[side]);
        free(c->decoded[side]);
        free(c->sinks[side]);
    }
    free(c->pages);
    free(c);
}

/* Some rows of a cache in a batch. */
typedef struct batch_seq {
    const cache *cache;
    int64_t pos0, n_rows;
} batch_seq;

enum { MAX_BATCH = 8 };

static inline int64_t first_visible(const attend_config *c, int64_t pos) {
    return c->window > 0 && pos - c->window + 1 > 0 ? pos - c->window + 1 : 0;
}

static const float test_sink_logits[64] = {0.5f, -1.0f, 2.0f, 0.0f, 1.5f, -3.0f, 4.0f, 1.0f};

static const void **slice(void *const *all, int64_t first, int64_t last) {
    const void **part = xmalloc((size_t)(last - first + 1) * sizeof *part);
    for (int64_t i = first; i <= last; i++) part[i - first] = all[i];
    return part;
}

/* Only what attention may read is handed over: pages and tiles outside that are not even in the arrays. */
static void attend(ath_device *dev, const batch_seq *batch, int n, const float *q, float *out,
                   ath_attn_counters *counters) {
    const attend_config *c = &batch[0].cache->c;
    ath_attn_seq seqs[MAX_BATCH];
    const void **parts[MAX_BATCH][3] = {{NULL}};
    int64_t row = 0;
    for (int i = 0; i < n; i++) {
        const cache *x = batch[i].cache;
        int64_t first = first_visible(c, batch[i].pos0) / ATH_PAGE_TOKENS;
        int64_t last = (batch[i].pos0 + batch[i].n_rows - 1) / ATH_PAGE_TOKENS;
        int64_t recent = batch[i].pos0 / ATH_PAGE_TOKENS - 1;
        if (recent < first) recent = first;
        parts[i][0] = slice((void *const *)x->pages, first, last);
        seqs[i] = (ath_attn_seq){.row0 = row,
                                 .n_rows = batch[i].n_rows,
                                 .pos0 = batch[i].pos0,
                                 .first_page = first,
                                 .pages = (const uint8_t *const *)parts[i][0],
                                 .first_recent = recent};
        if (!ath_kv_type_is_raw(c->type_k)) {
            parts[i][1] = slice((void *const *)x->tiles[0], recent, last);
            seqs[i].recent_k = (const uint16_t *const *)parts[i][1];
            seqs[i].sink_k = x->sinks[0];
        }
        if (!ath_kv_type_is_raw(c->type_v)) {
            parts[i][2] = slice((void *const *)x->tiles[1], recent, last);
            seqs[i].recent_v = (const uint16_t *const *)parts[i][2];
            seqs[i].sink_v = x->sinks[1];
        }
        row += batch[i].n_rows;
    }
    const cache *x = batch[0].cache;
    ath_attn_args args = {.n_heads = c->n_heads,
                          .n_kv_heads = c->n_kv_heads,
                          .scale = 1.0f / sqrtf((float)c->head_dim_k),
                          .softcap = c->softcap,
                          .sink_logits = c->sink_logits ? test_sink_logits : NULL,
                          .window = c->window,
                          .k = {x->k, 0},
                          .v = {x->v, (size_t)c->n_kv_heads * x->k.bytes},
                          .seqs = seqs,
                          .n_seqs = n,
                          .q = q,
                          .out = out,
                          .counters = counters};
    ath_op_attend(dev, &args);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 3; j++) free(parts[i][j]);
}

static bool reads_encoded(const attend_config *c, int side, int64_t pos, int64_t token) {
    ath_kv_type type = side ? c->type_v : c->type_k;
    return ath_kv_type_is_plain(type) || (!ath_kv_type_is_raw(type) && token >= ATH_SINK_TOKENS &&
                                          token / ATH_PAGE_TOKENS < pos / ATH_PAGE_TOKENS - 1);
}

static double read_value(const cache *c, int side, int head, int64_t pos, int64_t token, int channel) {
    int dim = side_dim(c, side), heads = c->c.n_kv_heads, t = (int)(token % ATH_PAGE_TOKENS);
    if (ath_kv_type_is_raw(side_layout(c, side)->type) || reads_encoded(&c->c, side, pos, token)) {
        const float *tile =
            c->decoded[side][token / ATH_PAGE_TOKENS] + (size_t)head * (size_t)dim * ATH_PAGE_TOKENS;
        return tile[side ? t * dim + channel : channel * ATH_PAGE_TOKENS + t];
    }
    return ath_f16_to_f32(c->rows[side][(token * heads + head) * dim + channel]);
}

/* One query head at position pos, in double. out [head_dim_v]. */
static void judge(const cache *c, int64_t pos, int head, const float *q, double *out) {
    const attend_config *cfg = &c->c;
    int kv_head = head / (cfg->n_heads / cfg->n_kv_heads);
    int64_t first = first_visible(cfg, pos);
    double *s = xmalloc((size_t)(pos + 1) * sizeof *s),
           max = cfg->sink_logits ? test_sink_logits[head] : -INFINITY;
    for (int64_t t = first; t <= pos; t++) {
        double dot = 0;
        for (int i = 0; i < cfg->head_dim_k; i++) dot += q[i] * read_value(c, 0, kv_head, pos, t, i);
        s[t] = dot / sqrt(cfg->head_dim_k);
        if (cfg->softcap > 0) s[t] = cfg->softcap * tanh(s[t] / cfg->softcap);
        if (s[t] > max) max = s[t];
    }
    double sum = cfg->sink_logits ? exp(test_sink_logits[head] - max) : 0;
    for (int64_t t = first; t <= pos; t++) sum += s[t] = exp(s[t] - max);
    for (int i = 0; i < cfg->head_dim_v; i++) {
        out[i] = 0;
        for (int64_t t = first; t <= pos; t++) out[i] += s[t] / sum * read_value(c, 1, kv_head, pos, t, i);
    }
    free(s);
}

static float *random_queries(const attend_config *c, int64_t rows, uint64_t seed) {
    size_t n = (size_t)(rows * c->n_heads * c->head_dim_k);
    float *q = xmalloc(n * sizeof *q);
    rng r = {seed};
    for (size_t i = 0; i < n; i++) q[i] = rng_normal(&r);
    return q;
}

#endif
