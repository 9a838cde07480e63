/* Decoders of the types with one scale a block.
 *
 * Codes of 4 and 5 bits: byte j holds elements j (low nibble) and j + 16 (high nibble); the fifth bit of
 * element i is bit i of qh. */
#include "codec/dequant.h"

#include "base/half.h"
#include "codec/blocks.h"

void ath_dequantize_q4_0(const void *src, float *dst, int64_t n) {
    const ath_block_q4_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q4_0, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            dst[i + j] = d * (float)((b->qs[j] & 15) - 8);
            dst[i + j + 16] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

void ath_dequantize_q4_1(const void *src, float *dst, int64_t n) {
    const ath_block_q4_1 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q4_1, b++) {
        float d = ath_f16_to_f32(b->d), m = ath_f16_to_f32(b->m);
        for (int j = 0; j < 16; j++) {
            dst[i + j] = d * (float)(b->qs[j] & 15) + m;
            dst[i + j + 16] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

/* Bit i of qh, at its place in a code. */
static inline int fifth_bit(uint32_t qh, int i) { return (int)((qh >> i) & 1) << 4; }

void ath_dequantize_q5_0(const void *src, float *dst, int64_t n) {
    const ath_block_q5_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q5_0, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            dst[i + j] = d * (float)(((b->qs[j] & 15) | fifth_bit(b->qh, j)) - 16);
            dst[i + j + 16] = d * (float)((b->qs[j] >> 4 | fifth_bit(b->qh, j + 16)) - 16);
        }
    }
}

void ath_dequantize_q5_1(const void *src, float *dst, int64_t n) {
    const ath_block_q5_1 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q5_1, b++) {
        float d = ath_f16_to_f32(b->d), m = ath_f16_to_f32(b->m);
        for (int j = 0; j < 16; j++) {
            dst[i + j] = d * (float)((b->qs[j] & 15) | fifth_bit(b->qh, j)) + m;
            dst[i + j + 16] = d * (float)(b->qs[j] >> 4 | fifth_bit(b->qh, j + 16)) + m;
        }
    }
}

void ath_dequantize_q8_0(const void *src, float *dst, int64_t n) {
    const ath_block_q8_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q8_0, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int j = 0; j < ATH_BLOCK_SIZE_Q8_0; j++) dst[i + j] = d * (float)b->qs[j];
    }
}

/* One bit an element, in element order: set is +d, clear is -d. */
void ath_dequantize_q1_0(const void *src, float *dst, int64_t n) {
    const ath_block_q1_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q1_0, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int j = 0; j < ATH_BLOCK_SIZE_Q1_0; j++) dst[i + j] = (b->qs[j / 8] >> j % 8) & 1 ? d : -d;
    }
}

/* Two bits an element, in element order. */
void ath_dequantize_q2_0(const void *src, float *dst, int64_t n) {
    const ath_block_q2_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q2_0, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int j = 0; j < ATH_BLOCK_SIZE_Q2_0; j++) {
            dst[i + j] = d * (float)(((b->qs[j / 4] >> j % 4 * 2) & 3) - 1);
        }
    }
}
