/* Encoders of the block types that a KV cache can be stored in. The roundings are those that other programs
 * use for these types, so that the blocks agree bit for bit; IQ4_NL, which allows a choice, is our own. */
#include "codec/quant_legacy.h"

#include <math.h>

#include "base/half.h"
#include "codec/blocks.h"
#include "codec/iq_grids.h"

enum { BLOCK = 32 }; /* elements of a block of any of these types */

/* The value of largest magnitude, with its sign; the first of equals. */
static float signed_max(const float *x) {
    float max = x[0];
    for (int j = 1; j < BLOCK; j++) {
        if (fabsf(x[j]) > fabsf(max)) max = x[j];
    }
    return max;
}

static void min_max(const float *x, float *min, float *max) {
    *min = *max = x[0];
    for (int j = 1; j < BLOCK; j++) {
        if (x[j] < *min) *min = x[j];
        if (x[j] > *max) *max = x[j];
    }
}

static float inverse(float d) { return d != 0 ? 1 / d : 0; }

/* x cut off to an integer in 0..max; NaN gives 0. */
static uint8_t to_code(float x, int max) {
    if (!(x > 0)) return 0;
    return (uint8_t)(x < (float)max ? (int)x : max);
}

static void pack_nibbles(const uint8_t *codes, uint8_t *qs) {
    for (int j = 0; j < 16; j++) qs[j] = (uint8_t)((codes[j] & 15) | codes[j + 16] << 4);
}

static uint32_t pack_fifth_bits(const uint8_t *codes) {
    uint32_t qh = 0;
    for (int j = 0; j < BLOCK; j++) qh |= (uint32_t)(codes[j] >> 4) << j;
    return qh;
}

/* Codes around the middle one: the value of largest magnitude gets the end of the range that has one code
 * more. Returns the f16 scale. */
static uint16_t encode_symmetric(const float *x, int n_codes, uint8_t *codes) {
    float middle = (float)(n_codes / 2), d = signed_max(x) / -middle, id = inverse(d);
    for (int j = 0; j < BLOCK; j++) codes[j] = to_code(x[j] * id + (middle + 0.5f), n_codes - 1);
    return ath_f32_to_f16(d);
}

/* Codes from the minimum to the maximum. Returns the f16 scale; *m is the f16 minimum (no field of a block:
 * those are packed and have no address to pass). */
static uint16_t encode_range(const float *x, int n_codes, uint8_t *codes, uint16_t *m) {
    float min, max;
    min_max(x, &min, &max);
    float d = (max - min) / (float)(n_codes - 1), id = inverse(d);
    for (int j = 0; j < BLOCK; j++) codes[j] = to_code((x[j] - min) * id + 0.5f, n_codes - 1);
    *m = ath_f32_to_f16(min);
    return ath_f32_to_f16(d);
}

void ath_quantize_q4_0(const float *src, void *dst, int64_t n) {
    ath_block_q4_0 *b = dst;
    uint8_t codes[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK, b++) {
        b->d = encode_symmetric(src + i, 16, codes);
        pack_nibbles(codes, b->qs);
    }
}

void ath_quantize_q5_0(const float *src, void *dst, int64_t n) {
    ath_block_q5_0 *b = dst;
    uint8_t codes[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK, b++) {
        b->d = encode_symmetric(src + i, 32, codes);
        b->qh = pack_fifth_bits(codes);
        pack_nibbles(codes, b->qs);
    }
}

void ath_quantize_q4_1(const float *src, void *dst, int64_t n) {
    ath_block_q4_1 *b = dst;
    uint8_t codes[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK, b++) {
        uint16_t m;
        b->d = encode_range(src + i, 16, codes, &m);
        b->m = m;
        pack_nibbles(codes, b->qs);
    }
}

void ath_quantize_q5_1(const float *src, void *dst, int64_t n) {
    ath_block_q5_1 *b = dst;
    uint8_t codes[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK, b++) {
        uint16_t m;
        b->d = encode_range(src + i, 32, codes, &m);
        b->m = m;
        b->qh = pack_fifth_bits(codes);
        pack_nibbles(codes, b->qs);
    }
}

/* Halves are rounded away from zero. */
void ath_quantize_q8_0(const float *src, void *dst, int64_t n) {
    ath_block_q8_0 *b = dst;
    for (int64_t i = 0; i < n; i += BLOCK, b++) {
        float d = fabsf(signed_max(src + i)) / 127, id = inverse(d);
        b->d = ath_f32_to_f16(d);
        for (int j = 0; j < BLOCK; j++) {
            b->qs[j] = (int8_t)roundf(fmaxf(-127, fminf(127, src[i + j] * id)));
        }
    }
}

/* Index of the value of the IQ4 table nearest to x, the lower of two equally near. */
static uint8_t nearest_iq4(float x) {
    uint8_t k = 0;
    while (k < 15 && 2 * x > (float)(ath_iq4_values[k] + ath_iq4_values[k + 1])) k++;
    return k;
}

/* The value of largest magnitude meets the table's largest (-127, code 0); for the codes thus chosen, the
 * scale is then the one of least squared error. */
void ath_quantize_iq4_nl(const float *src, void *dst, int64_t n) {
    ath_block_iq4_nl *b = dst;
    for (int64_t i = 0; i < n; i += BLOCK, b++) {
        float id = inverse(signed_max(src + i) / (float)ath_iq4_values[0]), xy = 0, yy = 0;
        uint8_t codes[BLOCK];
        for (int j = 0; j < BLOCK; j++) {
            codes[j] = nearest_iq4(src[i + j] * id);
            float y = (float)ath_iq4_values[codes[j]];
            xy += src[i + j] * y;
            yy += y * y;
        }
        b->d = ath_f32_to_f16(xy / yy);
        pack_nibbles(codes, b->qs);
    }
}
