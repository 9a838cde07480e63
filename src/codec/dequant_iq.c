/* Decoders of the IQ types: groups of four or eight elements are entries of a published codebook
 * (iq_grids.h), times a scale, with signs kept apart; IQ4's codebook has single values. All but IQ4_NL have
 * super-blocks of 256 elements. */
#include "codec/dequant.h"

#include "base/half.h"
#include "codec/blocks.h"
#include "codec/iq_grids.h"

/* Eight magnitudes, the lowest byte first; bit j of signs negates element j. */
static float *decode_signed(uint64_t grid, unsigned signs, float scale, float *dst) {
    for (int j = 0; j < 8; j++) {
        float x = scale * (float)((grid >> 8 * j) & 255);
        *dst++ = (signs >> j) & 1 ? -x : x;
    }
    return dst;
}

/* Two entries of a codebook of four elements. */
static uint64_t join_grids(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

/* Seven signs are stored, the eighth makes their number even. */
static unsigned expand_signs(uint32_t code) {
    code &= 127;
    return code | (unsigned)__builtin_parity(code) << 7;
}

static int nibble(const uint8_t *bytes, int i) { return (bytes[i / 2] >> i % 2 * 4) & 15; }

void ath_dequantize_iq2_xxs(const void *src, float *dst, int64_t n) {
    const ath_block_iq2_xxs *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ2_XXS, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int s = 0; s < 8; s++) {
            uint32_t signs = b->groups[s].scale_signs;
            float scale = d * (0.5f + (float)(signs >> 28)) * 0.25f;
            for (int g = 0; g < 4; g++, signs >>= 7) {
                dst = decode_signed(ath_iq2_xxs_grid[b->groups[s].qs[g]], expand_signs(signs), scale, dst);
            }
        }
    }
}

/* 9 bits of codebook index, 7 of signs; a scale for two groups. */
void ath_dequantize_iq2_xs(const void *src, float *dst, int64_t n) {
    const ath_block_iq2_xs *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ2_XS, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++) {
            float scale = d * (0.5f + (float)nibble(b->scales, g / 2)) * 0.25f;
            dst = decode_signed(ath_iq2_xs_grid[b->qs[g] & 511], expand_signs(b->qs[g] >> 9), scale, dst);
        }
    }
}

/* Index: 8 bits in qs, 2 in qh. All eight signs are stored. */
void ath_dequantize_iq2_s(const void *src, float *dst, int64_t n) {
    const ath_block_iq2_s *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ2_S, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++) {
            float scale = d * (0.5f + (float)nibble(b->scales, g / 2)) * 0.25f;
            int index = b->qs[g] | ((b->qh[g / 4] >> g % 4 * 2) & 3) << 8;
            dst = decode_signed(ath_iq2_s_grid[index], b->signs[g], scale, dst);
        }
    }
}

/* Entries of four elements, so two for eight signs. */
void ath_dequantize_iq3_xxs(const void *src, float *dst, int64_t n) {
    const ath_block_iq3_xxs *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ3_XXS, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int s = 0; s < 8; s++) {
            uint32_t signs = b->scale_signs[s];
            float scale = d * (0.5f + (float)(signs >> 28)) * 0.5f;
            const uint8_t *qs = b->qs + 8 * s;
            for (int g = 0; g < 4; g++, signs >>= 7) {
                uint64_t grid = join_grids(ath_iq3_xxs_grid[qs[2 * g]], ath_iq3_xxs_grid[qs[2 * g + 1]]);
                dst = decode_signed(grid, expand_signs(signs), scale, dst);
            }
        }
    }
}

/* Index: 8 bits in qs, the ninth of entry e is bit e of qh. A scale for 32 elements. */
void ath_dequantize_iq3_s(const void *src, float *dst, int64_t n) {
    const ath_block_iq3_s *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ3_S, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++) {
            float scale = d * (float)(1 + 2 * nibble(b->scales, g / 4));
            int high = b->qh[g / 4] >> g % 4 * 2;
            uint64_t grid = join_grids(ath_iq3_s_grid[b->qs[2 * g] | (high & 1) << 8],
                                       ath_iq3_s_grid[b->qs[2 * g + 1] | (high & 2) << 7]);
            dst = decode_signed(grid, b->signs[g], scale, dst);
        }
    }
}

/* Eight codebook values of -1, 0 or 1 (signed bytes), shifted by an eighth. */
static float *decode_ternary(uint64_t grid, int shift_down, float scale, float *dst) {
    float shift = shift_down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++) *dst++ = scale * ((float)(int8_t)(grid >> 8 * j) + shift);
    return dst;
}

/* Each 32 elements have a word in qh: four times three high index bits, three bits of scale, shift. */
void ath_dequantize_iq1_s(const void *src, float *dst, int64_t n) {
    const ath_block_iq1_s *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ1_S, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++) {
            int high = b->qh[g / 4];
            float scale = d * (float)(2 * ((high >> 12) & 7) + 1);
            int index = b->qs[g] | ((high >> g % 4 * 3) & 7) << 8;
            dst = decode_ternary(ath_iq1_grid[index], high >> 15, scale, dst);
        }
    }
}

/* Each group has a nibble in qh: three high index bits, shift. The four words of scales hold sixteen 3-bit
 * scales (16 elements each) and in their top nibbles, lowest first, the f16 scale of the block. */
void ath_dequantize_iq1_m(const void *src, float *dst, int64_t n) {
    const ath_block_iq1_m *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ1_M, b++) {
        int bits = 0;
        for (int k = 0; k < 4; k++) bits |= b->scales[k] >> 12 << 4 * k;
        float d = ath_f16_to_f32((uint16_t)bits);
        for (int g = 0; g < 32; g++) {
            float scale = d * (float)(2 * ((b->scales[g / 8] >> g / 2 % 4 * 3) & 7) + 1);
            int high = nibble(b->qh, g), index = b->qs[g] | (high & 7) << 8;
            dst = decode_ternary(ath_iq1_grid[index], high >> 3, scale, dst);
        }
    }
}

/* Byte j holds elements j (low nibble) and j + 16 (high nibble). */
static void decode_iq4(const uint8_t *qs, float scale, float *dst) {
    for (int j = 0; j < 16; j++) {
        dst[j] = scale * (float)ath_iq4_values[qs[j] & 15];
        dst[j + 16] = scale * (float)ath_iq4_values[qs[j] >> 4];
    }
}

void ath_dequantize_iq4_nl(const void *src, float *dst, int64_t n) {
    const ath_block_iq4_nl *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ4_NL, b++) {
        decode_iq4(b->qs, ath_f16_to_f32(b->d), dst + i);
    }
}

/* Eight sub-blocks; their 6-bit scales have four low bits in scales_l, two high bits in scales_h. */
void ath_dequantize_iq4_xs(const void *src, float *dst, int64_t n) {
    const ath_block_iq4_xs *b = src;
    for (int64_t i = 0; i < n; i += ATH_BLOCK_SIZE_IQ4_XS, b++) {
        float d = ath_f16_to_f32(b->d);
        for (int s = 0; s < 8; s++, dst += 32) {
            int scale = nibble(b->scales_l, s) | ((b->scales_h >> 2 * s) & 3) << 4;
            decode_iq4(b->qs + 16 * s, d * (float)(scale - 32), dst);
        }
    }
}
