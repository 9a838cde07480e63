/* Reference encoders of the block types that a KV cache can be stored in.
 *
 * Each encodes n floats (a multiple of the block size, 32) at src to blocks (blocks.h; no alignment needed)
 * at dst. They are what SIMD encoders are tested against, bit for bit. Codes are chosen with the scale in
 * full precision; the block keeps it as f16. Values that are no finite numbers, or whose scale does not fit
 * f16, give a block of no use but do no harm. Safe from any thread. */
#ifndef ATH_CODEC_QUANT_LEGACY_H
#define ATH_CODEC_QUANT_LEGACY_H

#include <stdint.h>

void ath_quantize_q8_0(const float *src, void *dst, int64_t n);
void ath_quantize_q5_1(const float *src, void *dst, int64_t n);
void ath_quantize_q5_0(const float *src, void *dst, int64_t n);
void ath_quantize_q4_1(const float *src, void *dst, int64_t n);
void ath_quantize_q4_0(const float *src, void *dst, int64_t n);
void ath_quantize_iq4_nl(const float *src, void *dst, int64_t n);

#endif
