/* Pages of the KV cache: types, byte layout, and the reference encoder and decoder.
 *
 * A page holds 128 consecutive tokens of one layer and one kv head, K or V ("side"). It is encoded as a unit
 * when its 128th token is there, so it may carry side data for the page as a whole. docs/turbo_format.md is
 * the normative text; this header states the layout once for the C code. The recipe and its sources
 * (TurboQuant: random rotation and a fixed codebook; page mean and equalisation of K; trellis codes) are
 * described there.
 *
 * Plain (unencoded) tiles, f16 or f32, have one of two shapes:
 *     K: [head_dim][128]  channel-major, tokens contiguous: scores of 16 tokens are 16 lanes
 *     V: [128][head_dim]  token-major, channels contiguous: outputs of 16 channels are 16 lanes */
#ifndef ATH_CODEC_KV_PAGE_H
#define ATH_CODEC_KV_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    ATH_PAGE_TOKENS = 128,
    ATH_SINK_TOKENS = 4, /* first positions of a sequence, always read in f16 */
    ATH_MAX_HEAD_DIM = 1024,
    ATH_MAX_PARTS = 16,
    ATH_KV_BLOCK = 32,   /* channels of a block of the block types */
    ATH_PAGE_SLACK = 64, /* readable bytes that every page buffer must have after its last byte */
};

typedef enum ath_kv_type {
    ATH_KV_F32,
    ATH_KV_F16,
    ATH_KV_BF16,
    ATH_KV_Q8_0,
    ATH_KV_Q5_1,
    ATH_KV_Q5_0,
    ATH_KV_Q4_1,
    ATH_KV_Q4_0,
    ATH_KV_IQ4_NL,
    ATH_KV_TURBO4,
    ATH_KV_TURBO3,
    ATH_KV_TURBO2,
    ATH_KV_TURBO4_TCQ,
    ATH_KV_TURBO3_TCQ,
    ATH_KV_TURBO2_TCQ,
    ATH_KV_TURBO4_PLAIN, /* "turbo4:plain": the scalar codes alone, as other engines have them; to compare with */
    ATH_KV_TURBO3_PLAIN,
    ATH_KV_TURBO2_PLAIN,
    ATH_KV_TYPE_COUNT,
} ath_kv_type;

/* "turbo3" etc.; names as on the command line. */
const char *ath_kv_type_name(ath_kv_type type);
/* ATH_ERR_ARGUMENT with the list of names if there is no such type. */
ath_status ath_kv_type_parse(ath_kv_type *out, const char *name, ath_error *err);

/* f32, f16 and bf16 pages are plain tiles, written token by token; all other types are encoded. */
static inline bool ath_kv_type_is_raw(ath_kv_type type) {
    return type <= ATH_KV_BF16;
}
/* ":plain" types: no mean, no equalisation, and no position is read in f16: every token is encoded at once. */
static inline bool ath_kv_type_is_plain(ath_kv_type type) {
    return type >= ATH_KV_TURBO4_PLAIN;
}
/* Encoded when a page is full; sinks, the own page and the one before it are read in f16; K has mean and equalisation. */
static inline bool ath_kv_type_has_page_data(ath_kv_type type) {
    return !ath_kv_type_is_raw(type) && !ath_kv_type_is_plain(type);
}
/* Has a turbo code (ath_turbo_code_of), plain types included. */
static inline bool ath_kv_type_has_code(ath_kv_type type) {
    return type >= ATH_KV_TURBO4;
}
/* The turbo types with page data, which attention has kernels of their own for. */
static inline bool ath_kv_type_is_turbo(ath_kv_type type) {
    return ath_kv_type_has_code(type) && !ath_kv_type_is_plain(type);
}
/* 4, 3, 2 for types with a code; 0 otherwise. */
static inline int ath_kv_turbo_bits(ath_kv_type type) {
    return ath_kv_type_has_code(type) ? 4 - (int)(type - ATH_KV_TURBO4) % 3 : 0;
}

/* The tensor type (tensor_type.h) of a raw or block cache type; -1 for types with a code. */
int ath_kv_tensor_type(ath_kv_type type);

/* How a turbo type's symbols become values. A part of n channels is a circular stream of n * k bits per
 * token; symbol i is bits k*i .. k*i + k - 1, least significant first. state_i = bits k*i .. k*i + L - 1
 * (modulo n * k), value_i = table[(state_i ^ state_i >> w) & (2^w - 1)]. Scalar codes: L = w = k, so the
 * symbol is the index. */
typedef struct ath_turbo_code {
    int k, L, w;
    const int8_t *table; /* [1 << w]; scalar: ascending */
    float scale;         /* integer units of the table per unit of rms; pages don't need it */
    const float
        *thresholds; /* scalar: 2^k - 1, ascending, in units of rms; NULL: trellis, which has the rest */
    const int16_t *targets; /* [1 << w]: table in the encoder's units */
    float target_scale;     /* the encoder's units per unit of rms */
    int limit;              /* its input is clamped to +-limit units */
} ath_turbo_code;

/* The code of a type that has one. */
const ath_turbo_code *ath_turbo_code_of(ath_kv_type type);

/* One side of one kv head in a page. All offsets and sizes are multiples of 16 bytes. Sections in this order:
 *   codes  turbo: a token's stream is the streams of its parts one after the other, S = head_dim * k / 8 bytes;
 *                 stored in planes, see ath_turbo_byte_at
 *          block types: [128 tokens][head_dim/32] of the type's GGUF block
 *          raw types: the plain tile
 *   norms  turbo only: bf16 [n_parts][128]
 *   mean   K with page data only: f16 [head_dim]
 *   eq     the same: u8 [head_dim], scale 2^((e-128)/4) */
typedef struct ath_kv_layout {
    ath_kv_type type;
    bool is_key;
    int head_dim;
    int n_parts;                   /* Hadamard parts: powers of two, at most 128, greedy from the left */
    int part_dim[ATH_MAX_PARTS];   /* channels of each part; sum = head_dim */
    int part_start[ATH_MAX_PARTS]; /* first channel of each part */
    size_t codes_at, norms_at, mean_at, eq_at; /* byte offsets; codes_at = 0 */
    size_t bytes;                              /* of the whole side */
} ath_kv_layout;

/* ATH_ERR_UNSUPPORTED names the head_dim and the types that it can be stored in: raw types take any head_dim
 * of at most ATH_MAX_HEAD_DIM, turbo types need a multiple of 16, block types a multiple of 32. */
ath_status ath_kv_layout_init(ath_kv_layout *layout, ath_kv_type type, int head_dim, bool is_key,
                              ath_error *err);

/* +1 or -1 for each channel of a head: the fixed random signs of the rotation, [ATH_MAX_HEAD_DIM]. */
const float *ath_rotation_signs(void);

/* y = H (s o x) / sqrt(n) per part, in place, for one head vector of layout->head_dim values, and its
 * inverse. Butterflies ascend (1, 2, 4 ...), the scale is multiplied last: the order is part of the format's
 * reference. */
void ath_rotate(const ath_kv_layout *layout, float *x);
void ath_unrotate(const ath_kv_layout *layout, float *x);

/* The same for `lanes` vectors at once, x[head_dim][lanes]: the same bits. */
void ath_rotate_lanes(const ath_kv_layout *layout, float *x, size_t lanes);
void ath_unrotate_lanes(const ath_kv_layout *layout, float *x, size_t lanes);

/* The f32 nearest to 1/sqrt(n), n a power of two of at most 128 (not 1.0f / sqrtf(n), which rounds twice). */
float ath_rotation_scale(int n);

/* Place of byte b of a token's stream among the codes. Planes of 16 tokens for K, 4 for V: 64 consecutive
 * bytes hold what a vector of sums over channels (scores) or over tokens (outputs) needs. */
static inline size_t ath_turbo_byte_at(const ath_kv_layout *layout, size_t token, size_t b) {
    size_t group = layout->is_key ? 16 : 4;
    size_t stream = (size_t)(layout->head_dim * ath_kv_turbo_bits(layout->type)) / 8;
    return token / group * group * stream + b * group + token % group;
}

/* The table values of one part of a token: values[part_dim]. Safe for any bytes. */
void ath_turbo_values(const ath_kv_layout *layout, const uint8_t *page, int part, size_t token,
                      int8_t *values);

/* How the blocks of 32 channels lie (codec/blocks.h has the structs): first a scale d in f16; a value is d
 * times an integer, plus a minimum. Integers are codes less offset, or what a table says of a code. The
 * minimum is the one of the block plus d times offset: around zero, sums of integers lose less when they are
 * rounded. */
typedef struct ath_block_kind {
    int bytes, bits;       /* of a block; of a code: 4, 5, or 8 (signed, so without offset) */
    int codes_at, high_at; /* bytes of codes, and of the fifth bits */
    int offset;
    bool has_minimum, has_table; /* the minimum, f16, follows the scale */
} ath_block_kind;
/* clang-format off */
#define ATH_BLOCK_KIND_Q8_0   {34, 8, 2, 0, 0, false, false}
#define ATH_BLOCK_KIND_Q5_1   {24, 5, 8, 4, 16, true, false}
#define ATH_BLOCK_KIND_Q5_0   {22, 5, 6, 2, 16, false, false}
#define ATH_BLOCK_KIND_Q4_1   {20, 4, 4, 0, 8, true, false}
#define ATH_BLOCK_KIND_Q4_0   {18, 4, 2, 0, 8, false, false}
#define ATH_BLOCK_KIND_IQ4_NL {18, 4, 2, 0, 0, false, true}
/* clang-format on */

/* The kind of a block type. */
const ath_block_kind *ath_block_kind_of(ath_kv_type type);
/* What the 16 codes of iq4_nl stand for. */
const int8_t *ath_block_table(void);
/* One block of a token: values[32]; the block is scale * values[i] + minimum (0 if the type has none). Safe
 * for any bytes. */
void ath_block_values(const ath_kv_layout *layout, const uint8_t *page, size_t token, int block,
                      int8_t *values, float *scale, float *minimum);

/* The equalisation scale 2^((e-128)/4), rounded to f32; e is clamped to 112..144, which encoders never leave.
 * Its reciprocal is ath_eq_scale(256 - e). */
float ath_eq_scale(uint8_t e);
/* The equalisation byte of a channel whose root of rms is `ratio` times the average channel's. */
uint8_t ath_eq_byte(float ratio);

/* Encodes a full page. tile: f16 in the side's plain shape, all finite. out: layout->bytes. Raw types are
 * converted. Reference version; the kernels' versions give the same bytes. scratch: [head_dim*128] floats. */
void ath_kv_encode_page(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch);

/* Decodes a page to f32 in the side's plain shape and original domain (unrotated, times eq, plus mean). */
void ath_kv_decode_page(const ath_kv_layout *layout, const uint8_t *page, float *tile);

#endif
