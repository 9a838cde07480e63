/* Decoders of the FP4 types: elements are E2M1 floats under a shared scale.
 *
 * The table holds twice the E2M1 values, as integers; the scales are halved to match. */
#include "codec/dequant.h"

#include "base/half.h"
#include "codec/blocks.h"

static const float e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half of the E8M0 scale 2^(e - 127); the two smallest are denormal. */
static float e8m0_half(uint8_t e) {
    return ath_f32_from_bits(e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23);
}

/* Half of the E4M3 scale (exponent bias 7). The sign bit is not looked at; 0x7f, E4M3's NaN, counts as 0. */
static float ue4m3_half(uint8_t x) {
    int exponent = (x >> 3) & 15, mantissa = x & 7;
    if (x == 0x7f) return 0;
    if (exponent == 0) return (float)mantissa * 0x1p-10f;
    return ath_f32_from_bits((uint32_t)(exponent - 8 + 127) << 23 | (uint32_t)mantissa << 20);
}

/* Byte j holds elements j (low nibble) and j + 16 (high nibble). */
void ath_dequantize_mxfp4(const void *src, float *dst, int64_t n) {
    const ath_block_mxfp4 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_MXFP4, b++) {
        float d = e8m0_half(b->e);
        for (int j = 0; j < 16; j++) {
            dst[i + j] = d * e2m1_doubled[b->qs[j] & 15];
            dst[i + j + 16] = d * e2m1_doubled[b->qs[j] >> 4];
        }
    }
}

/* Four sub-blocks of 16; byte j of one holds its elements j and j + 8. A scale of the whole tensor, which is
 * a tensor of its own in the file, is the caller's to apply. */
void ath_dequantize_nvfp4(const void *src, float *dst, int64_t n) {
    const ath_block_nvfp4 *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_NVFP4, b++) {
        for (int s = 0; s < 4; s++, dst += 16) {
            float d = ue4m3_half(b->scales[s]);
            const uint8_t *qs = b->qs + 8 * s;
            for (int j = 0; j < 8; j++) {
                dst[j] = d * e2m1_doubled[qs[j] & 15];
                dst[j + 8] = d * e2m1_doubled[qs[j] >> 4];
            }
        }
    }
}
