/* Reference decoders of the weight types, one each, in plain C. Every one decodes n elements (a multiple of
 * the type's block size) from src (blocks.h; no alignment needed) to n floats at dst. They are what SIMD
 * kernels are tested against: the order of the float operations is part of the definition of each type.
 * Callers normally reach them through ath_tensor_type_get(). Safe from any thread. */
#ifndef ATH_CODEC_DEQUANT_H
#define ATH_CODEC_DEQUANT_H

#include <stdint.h>

void ath_dequantize_f32(const void *src, float *dst, int64_t n);
void ath_dequantize_f16(const void *src, float *dst, int64_t n);
void ath_dequantize_bf16(const void *src, float *dst, int64_t n);

void ath_dequantize_q4_0(const void *src, float *dst, int64_t n);
void ath_dequantize_q4_1(const void *src, float *dst, int64_t n);
void ath_dequantize_q5_0(const void *src, float *dst, int64_t n);
void ath_dequantize_q5_1(const void *src, float *dst, int64_t n);
void ath_dequantize_q8_0(const void *src, float *dst, int64_t n);
void ath_dequantize_q1_0(const void *src, float *dst, int64_t n);
void ath_dequantize_q2_0(const void *src, float *dst, int64_t n);

void ath_dequantize_q2_k(const void *src, float *dst, int64_t n);
void ath_dequantize_q3_k(const void *src, float *dst, int64_t n);
void ath_dequantize_q4_k(const void *src, float *dst, int64_t n);
void ath_dequantize_q5_k(const void *src, float *dst, int64_t n);
void ath_dequantize_q6_k(const void *src, float *dst, int64_t n);

void ath_dequantize_iq1_s(const void *src, float *dst, int64_t n);
void ath_dequantize_iq1_m(const void *src, float *dst, int64_t n);
void ath_dequantize_iq2_xxs(const void *src, float *dst, int64_t n);
void ath_dequantize_iq2_xs(const void *src, float *dst, int64_t n);
void ath_dequantize_iq2_s(const void *src, float *dst, int64_t n);
void ath_dequantize_iq3_xxs(const void *src, float *dst, int64_t n);
void ath_dequantize_iq3_s(const void *src, float *dst, int64_t n);
void ath_dequantize_iq4_nl(const void *src, float *dst, int64_t n);
void ath_dequantize_iq4_xs(const void *src, float *dst, int64_t n);

void ath_dequantize_tq1_0(const void *src, float *dst, int64_t n);
void ath_dequantize_tq2_0(const void *src, float *dst, int64_t n);
void ath_dequantize_mxfp4(const void *src, float *dst, int64_t n);
void ath_dequantize_nvfp4(const void *src, float *dst, int64_t n);

#endif
