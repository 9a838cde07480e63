/* Attention kernels: everything that touches a page of K or V. The C versions are the specification; all
 * others give the same bits, but for matrix products.
 *
 * Shapes: queries q [n][head_dim], already times the scale; scores and weights [n][128], one per token of a
 * page; accumulators acc [n][head_dim]. A page's tokens are 8 groups of 16; [group0, group1) and [lo, hi) are
 * groups and tokens of one page. Lanes of a scores row outside the groups asked for are left alone.
 *
 * Orders that fix the bits: a score is a sequential fma over channels; an output channel is a sequential fma
 * over tokens. On turbo pages the products are exact integer sums of table values with the query in 16 bits
 * (scores) or the weights in 15 bits (values), scaled once per Hadamard part. On pages of blocks they are
 * exact integer sums of the blocks' integers with the query, or with the weights times the tokens' scales in
 * 16 bits, scaled once per block. */
#ifndef ATH_KERNELS_ATTENTION_H
#define ATH_KERNELS_ATTENTION_H

#include "codec/kv_page.h"

enum { ATH_KV_RAW_COUNT = ATH_KV_BF16 + 1, ATH_WEIGHT_STEPS = 32767, ATH_QUERY_STEPS = 127 * 257 };

/* One query head prepared for one encoded K page: multiplied by eq, rotated, in integers of 16 bits. */
typedef struct ath_turbo_query {
    int8_t high[ATH_MAX_HEAD_DIM], low[ATH_MAX_HEAD_DIM]; /* integer = 256 * high + low */
    float step[ATH_MAX_PARTS];                            /* value of one step */
    int32_t sum[ATH_MAX_PARTS];                           /* of the integers */
    float bias;                                           /* q . mean, added to every score of the page */
} ath_turbo_query;

/* Products by matrix instructions, out[n][lanes] (+)= a[n][steps] . b[steps][lanes], in the place of scores and accumulate
 * on f32 tiles: queries with K, weights with V. Operands are packed first, each float as the sum of `parts` bf16: three hold
 * all its bits, two 16 of them. Close to the f32 product, but not its bits. The bits of a row of out belong to that row
 * alone, as everywhere. steps and lanes are multiples of 32; out and a when packed have room for a multiple of 32 rows, of
 * which those behind n are zero in a. */
enum { ATH_MATRIX_ROWS = 32, ATH_MATRIX_LANES = 32, ATH_SCORE_PARTS = 3, ATH_VALUE_PARTS = 2 };
typedef struct ath_attn_matrix {
    void (*begin)(void); /* before and after the products of a thread's task */
    void (*end)(void);
    /* parts * n (a multiple of 32) * steps / 2 dwords; parts * steps * lanes / 2 */
    void (*pack_rows)(const float *a, int n, int steps, int parts, uint32_t *out);
    void (*pack_steps)(const float *b, int steps, int lanes, int parts, uint32_t *out);
    void (*product)(const uint32_t *a, const uint32_t *b, int n, int steps, int lanes, int parts, float *out, bool add);
} ath_attn_matrix;

typedef struct ath_attn_kernels {
    const char *isa;
    const ath_attn_matrix *matrix; /* NULL: there are no such instructions */
    /* dst[i] = src[i] in f32; by raw type. */
    void (*widen[ATH_KV_RAW_COUNT])(const void *src, float *dst, int64_t n);
    /* Scores against a plain K tile [head_dim][128] of the raw type. */
    void (*scores[ATH_KV_RAW_COUNT])(const void *tile, int head_dim, int group0, int group1, const float *q,
                                     int n, float *scores);
    /* acc += weights . V over tokens [lo, hi) of a plain V tile [128][head_dim] of the raw type. accumulate:
     * head_dim is a multiple of 16; accumulate_any is the C version. */
    void (*accumulate[ATH_KV_RAW_COUNT])(const void *tile, int head_dim, int lo, int hi, const float *weights,
                                         int n, float *acc);
    void (*accumulate_any[ATH_KV_RAW_COUNT])(const void *tile, int head_dim, int lo, int hi,
                                             const float *weights, int n, float *acc);
    /* One step of the online softmax on one row: visible scores [lo, hi) become exp(score - max), all others
     * 0; max and sum
     * (-inf and 0 at first) take them in. Returns the factor that earlier weights must be multiplied by. */
    float (*softmax)(float *scores, int lo, int hi, float *max, float *sum);
    /* scores[i] = cap * tanh(scores[i] / cap) for n values, a multiple of 16. */
    void (*softcap)(float *scores, int n, float cap);
    /* Turbo pages. out, q: n of them. acc is in the rotated domain: ath_unrotate gives the output. next: a
     * page of this layout that will be read soon, to be fetched into the cache on the way; NULL if there is
     * none. */
    void (*turbo_query)(const ath_kv_layout *layout, const uint8_t *page, const float *q, int n,
                        ath_turbo_query *out);
    void (*turbo_scores)(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores, const uint8_t *next);
    void (*turbo_accumulate)(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc, const uint8_t *next);
    /* The same on pages of blocks, whose queries come from turbo_query too. */
    void (*block_scores)(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                         int group0, int group1, float *scores, const uint8_t *next);
    void (*block_accumulate)(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                             const float *weights, int n, float *acc, const uint8_t *next);
    void (*unrotate)(const ath_kv_layout *layout, float *x); /* ath_unrotate */
    /* ath_kv_decode_page and ath_kv_encode_page, with their bits. */
    void (*expand)(const ath_kv_layout *layout, const uint8_t *page, float *tile);
    void (*encode)(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch);
} ath_attn_kernels;

/* The fastest version of each kernel that the flags (ath_cpu_flags) allow. */
void ath_attn_kernels_init(ath_attn_kernels *k, uint32_t flags);

/* Each overwrites what it has. */
void ath_attn_kernels_init_c(ath_attn_kernels *k);
void ath_attn_kernels_init_avx2(ath_attn_kernels *k);
void ath_attn_kernels_init_avx512(ath_attn_kernels *k);
void ath_attn_kernels_init_amx(ath_attn_kernels *k);
void ath_attn_kernels_init_neon(ath_attn_kernels *k);
void ath_attn_kernels_init_dotprod(ath_attn_kernels *k);

#endif
