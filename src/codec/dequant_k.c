/* Decoders of the K types: super-blocks of 256 elements, cut into sub-blocks of 16 or 32 whose small integer
 * scales multiply the f16 scale of the super-block.
 *
 * Codes lie in planes: with b bits a code, a run of 32 bytes holds 8 / b planes of 32 elements each, the
 * first in the lowest bits. */
#include "codec/dequant.h"

#include "base/half.h"
#include "codec/blocks.h"

/* Four planes of two bits. Each 16 elements have a byte in scales: low nibble scale, high nibble minimum. */
void ath_dequantize_q2_k(const void *src, float *dst, int64_t n) {
    const ath_block_q2_k *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q2_K, b++) {
        float d = ath_f16_to_f32(b->d), dmin = ath_f16_to_f32(b->dmin);
        for (int s = 0; s < 16; s++) {
            float scale = d * (float)(b->scales[s] & 15), min = dmin * (float)(b->scales[s] >> 4);
            const uint8_t *qs = b->qs + s / 8 * 32 + s % 2 * 16;
            int shift = s / 2 % 4 * 2;
            for (int j = 0; j < 16; j++) *dst++ = scale * (float)((qs[j] >> shift) & 3) - min;
        }
    }
}

/* As Q2_K without minimum; bit k of hmask[l] clear takes 4 off element l of plane k (of all eight). Sixteen
 * 6-bit scales: low four bits in the nibbles of bytes 0-7, high two in bits 2k, 2k + 1 of bytes 8-11. */
void ath_dequantize_q3_k(const void *src, float *dst, int64_t n) {
    const ath_block_q3_k *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q3_K, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int s = 0; s < 16; s++) {
            int low = (b->scales[s % 8] >> s / 8 * 4) & 15, high = (b->scales[8 + s % 4] >> s / 4 * 2) & 3;
            float scale = d * (float)((low | high << 4) - 32);
            const uint8_t *qs = b->qs + s / 8 * 32 + s % 2 * 16, *hmask = b->hmask + s % 2 * 16;
            int plane = s / 2, shift = plane % 4 * 2;
            for (int j = 0; j < 16; j++) {
                int q = ((qs[j] >> shift) & 3) - (hmask[j] >> plane & 1 ? 0 : 4);
                *dst++ = scale * (float)q;
            }
        }
    }
}

/* Scale and minimum of sub-block s of Q4_K and Q5_K, six bits each: the first four of both lie in the low
 * bits of bytes 0-7, the others in the nibbles of bytes 8-11 with their top two bits above the first four. */
static void k4_scale_min(const uint8_t *scales, int s, int *scale, int *min) {
    if (s < 4) {
        *scale = scales[s] & 63;
        *min = scales[s + 4] & 63;
    } else {
        *scale = (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4;
        *min = scales[s + 4] >> 4 | scales[s] >> 6 << 4;
    }
}

/* Two planes of four bits, one sub-block a plane. */
void ath_dequantize_q4_k(const void *src, float *dst, int64_t n) {
    const ath_block_q4_k *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q4_K, b++) {
        float d = ath_f16_to_f32(b->d), dmin = ath_f16_to_f32(b->dmin);
        for (int s = 0; s < 8; s++) {
            int scale, min, shift = s % 2 * 4;
            k4_scale_min(b->scales, s, &scale, &min);
            float ds = d * (float)scale, dm = dmin * (float)min;
            const uint8_t *qs = b->qs + s / 2 * 32;
            for (int j = 0; j < 32; j++) *dst++ = ds * (float)((qs[j] >> shift) & 15) - dm;
        }
    }
}

/* As Q4_K; bit s of qh[j] is the fifth bit of element j of sub-block s. */
void ath_dequantize_q5_k(const void *src, float *dst, int64_t n) {
    const ath_block_q5_k *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q5_K, b++) {
        float d = ath_f16_to_f32(b->d), dmin = ath_f16_to_f32(b->dmin);
        for (int s = 0; s < 8; s++) {
            int scale, min, shift = s % 2 * 4;
            k4_scale_min(b->scales, s, &scale, &min);
            float ds = d * (float)scale, dm = dmin * (float)min;
            const uint8_t *qs = b->qs + s / 2 * 32;
            for (int j = 0; j < 32; j++) {
                int q = ((qs[j] >> shift) & 15) | ((b->qh[j] >> s) & 1) << 4;
                *dst++ = ds * (float)q - dm;
            }
        }
    }
}

/* Each half has 64 bytes of ql (two planes of four bits, 64 elements wide) and 32 bytes of qh (four planes of
 * two bits). One signed scale for 16 elements. */
void ath_dequantize_q6_k(const void *src, float *dst, int64_t n) {
    const ath_block_q6_k *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_Q6_K, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int s = 0; s < 16; s++) {
            float scale = d * (float)b->scales[s];
            const uint8_t *ql = b->ql + s / 8 * 64 + s % 4 * 16, *qh = b->qh + s / 8 * 32 + s % 2 * 16;
            int low_shift = s / 4 % 2 * 4, high_shift = s / 2 % 4 * 2;
            for (int j = 0; j < 16; j++) {
                int q = ((ql[j] >> low_shift) & 15) | ((qh[j] >> high_shift) & 3) << 4;
                *dst++ = scale * (float)(q - 32);
            }
        }
    }
}
