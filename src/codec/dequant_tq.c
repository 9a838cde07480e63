/* Decoders of the ternary types: elements are -d, 0 or d. */
#include "codec/dequant.h"

#include "base/half.h"
#include "codec/blocks.h"

/* A byte is a fraction of 256 whose base-3 digits are the codes: times 3^k modulo 256, then times 3, the
 * carry is digit k. Digit k of all bytes of a run comes before digit k + 1. */
static float *decode_digits(const uint8_t *bytes, int n_bytes, int n_digits, float d, float *dst) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int k = 0; k < n_digits; k++) {
        for (int j = 0; j < n_bytes; j++) {
            uint8_t rest = (uint8_t)(bytes[j] * power[k]);
            *dst++ = d * (float)((rest * 3 >> 8) - 1);
        }
    }
    return dst;
}

void ath_dequantize_tq1_0(const void *src, float *dst, int64_t n) {
    const ath_block_tq1_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_TQ1_0, b++) {
        float d = ath_f16_to_f32(b->d);
        dst = decode_digits(b->qs, 32, 5, d, dst);
        dst = decode_digits(b->qs + 32, 16, 5, d, dst);
        dst = decode_digits(b->qh, 4, 4, d, dst);
    }
}

/* Four planes of two bits in each run of 32 bytes, as in Q2_K. */
void ath_dequantize_tq2_0(const void *src, float *dst, int64_t n) {
    const ath_block_tq2_0 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_TQ2_0, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int plane = 0; plane < 8; plane++) {
            const uint8_t *qs = b->qs + plane / 4 * 32;
            int shift = plane % 4 * 2;
            for (int j = 0; j < 32; j++) *dst++ = d * (float)(((qs[j] >> shift) & 3) - 1);
        }
    }
}
