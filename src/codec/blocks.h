/* Blocks of the quantised weight types as they lie in a GGUF file: little-endian, packed, no alignment.
 * d is a scale, dmin (or m) an offset, both f16; qs are codes. Which bits belong to which element stands at
 * the decoders. The sizes come from tensor_type.def and are checked here against the structs. */
#ifndef ATH_CODEC_BLOCKS_H
#define ATH_CODEC_BLOCKS_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weights are used as they lie in the file, which is little-endian"
#endif

enum {
#define ATH_TENSOR_TYPE(type, size, bytes, decoder)                                                          \
    ATH_BLOCK_SIZE_##type = size, ATH_BLOCK_BYTES_##type = bytes,
#include "codec/tensor_type.def"
#undef ATH_TENSOR_TYPE
};

#define ATH_PACKED struct __attribute__((packed))
#define ATH_CHECK_BLOCK(name, type) _Static_assert(sizeof(name) == ATH_BLOCK_BYTES_##type, "size of " #type)

/* clang-format off */

typedef ATH_PACKED { uint16_t d; uint8_t qs[16]; } ath_block_q4_0;
typedef ATH_PACKED { uint16_t d, m; uint8_t qs[16]; } ath_block_q4_1;
typedef ATH_PACKED { uint16_t d; uint32_t qh; uint8_t qs[16]; } ath_block_q5_0;
typedef ATH_PACKED { uint16_t d, m; uint32_t qh; uint8_t qs[16]; } ath_block_q5_1;
typedef ATH_PACKED { uint16_t d; int8_t qs[32]; } ath_block_q8_0;
typedef ATH_PACKED { uint16_t d, sum; int8_t qs[32]; } ath_block_q8_1; /* sum: f16, d times the sum of qs */
typedef ATH_PACKED { uint16_t d; uint8_t qs[16]; } ath_block_q1_0;
typedef ATH_PACKED { uint16_t d; uint8_t qs[16]; } ath_block_q2_0;
ATH_CHECK_BLOCK(ath_block_q4_0, Q4_0);
ATH_CHECK_BLOCK(ath_block_q4_1, Q4_1);
ATH_CHECK_BLOCK(ath_block_q5_0, Q5_0);
ATH_CHECK_BLOCK(ath_block_q5_1, Q5_1);
ATH_CHECK_BLOCK(ath_block_q8_0, Q8_0);
ATH_CHECK_BLOCK(ath_block_q8_1, Q8_1);
ATH_CHECK_BLOCK(ath_block_q1_0, Q1_0);
ATH_CHECK_BLOCK(ath_block_q2_0, Q2_0);

typedef ATH_PACKED { uint8_t scales[16], qs[64]; uint16_t d, dmin; } ath_block_q2_k;
typedef ATH_PACKED { uint8_t hmask[32], qs[64], scales[12]; uint16_t d; } ath_block_q3_k;
typedef ATH_PACKED { uint16_t d, dmin; uint8_t scales[12], qs[128]; } ath_block_q4_k;
typedef ATH_PACKED { uint16_t d, dmin; uint8_t scales[12], qh[32], qs[128]; } ath_block_q5_k;
typedef ATH_PACKED { uint8_t ql[128], qh[64]; int8_t scales[16]; uint16_t d; } ath_block_q6_k;
typedef ATH_PACKED { float d; int8_t qs[256]; int16_t sums[16]; } ath_block_q8_k; /* sums of 16 qs each */
ATH_CHECK_BLOCK(ath_block_q2_k, Q2_K);
ATH_CHECK_BLOCK(ath_block_q3_k, Q3_K);
ATH_CHECK_BLOCK(ath_block_q4_k, Q4_K);
ATH_CHECK_BLOCK(ath_block_q5_k, Q5_K);
ATH_CHECK_BLOCK(ath_block_q6_k, Q6_K);
ATH_CHECK_BLOCK(ath_block_q8_k, Q8_K);

/* scale_signs: four 7-bit sign codes, then a 4-bit scale. */
typedef ATH_PACKED { uint8_t qs[4]; uint32_t scale_signs; } ath_iq2_xxs_group;
typedef ATH_PACKED { uint16_t d; ath_iq2_xxs_group groups[8]; } ath_block_iq2_xxs;
typedef ATH_PACKED { uint16_t d, qs[32]; uint8_t scales[8]; } ath_block_iq2_xs;
typedef ATH_PACKED { uint16_t d; uint8_t qs[32], signs[32], qh[8], scales[8]; } ath_block_iq2_s;
typedef ATH_PACKED { uint16_t d; uint8_t qs[64]; uint32_t scale_signs[8]; } ath_block_iq3_xxs;
typedef ATH_PACKED { uint16_t d; uint8_t qs[64], qh[8], signs[32], scales[4]; } ath_block_iq3_s;
typedef ATH_PACKED { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; } ath_block_iq1_s;
typedef ATH_PACKED { uint8_t qs[32], qh[16]; uint16_t scales[4]; } ath_block_iq1_m;
typedef ATH_PACKED { uint16_t d; uint8_t qs[16]; } ath_block_iq4_nl;
typedef ATH_PACKED { uint16_t d, scales_h; uint8_t scales_l[4], qs[128]; } ath_block_iq4_xs;
ATH_CHECK_BLOCK(ath_block_iq2_xxs, IQ2_XXS);
ATH_CHECK_BLOCK(ath_block_iq2_xs, IQ2_XS);
ATH_CHECK_BLOCK(ath_block_iq2_s, IQ2_S);
ATH_CHECK_BLOCK(ath_block_iq3_xxs, IQ3_XXS);
ATH_CHECK_BLOCK(ath_block_iq3_s, IQ3_S);
ATH_CHECK_BLOCK(ath_block_iq1_s, IQ1_S);
ATH_CHECK_BLOCK(ath_block_iq1_m, IQ1_M);
ATH_CHECK_BLOCK(ath_block_iq4_nl, IQ4_NL);
ATH_CHECK_BLOCK(ath_block_iq4_xs, IQ4_XS);

typedef ATH_PACKED { uint8_t qs[48], qh[4]; uint16_t d; } ath_block_tq1_0;
typedef ATH_PACKED { uint8_t qs[64]; uint16_t d; } ath_block_tq2_0;
typedef ATH_PACKED { uint8_t e, qs[16]; } ath_block_mxfp4;
typedef ATH_PACKED { uint8_t scales[4], qs[32]; } ath_block_nvfp4;
ATH_CHECK_BLOCK(ath_block_tq1_0, TQ1_0);
ATH_CHECK_BLOCK(ath_block_tq2_0, TQ2_0);
ATH_CHECK_BLOCK(ath_block_mxfp4, MXFP4);
ATH_CHECK_BLOCK(ath_block_nvfp4, NVFP4);

/* clang-format on */

#endif
