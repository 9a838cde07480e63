/* Decoders of the plain float types. Weights may lie unaligned in a file, hence memcpy. */
#include "codec/dequant.h"

#include <string.h>

#include "base/half.h"

void ath_dequantize_f32(const void *src, float *dst, int64_t n) {
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *dst);
}

void ath_dequantize_f16(const void *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, sizeof h);
        dst[i] = ath_f16_to_f32(h);
    }
}

void ath_dequantize_bf16(const void *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, (const char *)src + 2 * i, sizeof b);
        dst[i] = ath_bf16_to_f32(b);
    }
}
