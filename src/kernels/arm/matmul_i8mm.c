/* Matrix products of quantised types and four columns or more with SMMLA: 2 rows times 2 columns of 8 inputs,
 * twice the products of SDOT. Two groups are woven into registers of 2 rows; with fewer columns that costs as
 * much as it saves, so those stay with SDOT. */
enum { MOST = 4, CELLS = 8 };

#include "kernels/matmul_arm.h"

/* Rows (or columns) 0, 1 and 2, 3 of two groups. */
ATH_INLINE int8x16_t first_pair(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
ATH_INLINE int8x16_t second_pair(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}

ATH_INLINE void dot_groups(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *act,
                           int8x16_t table, int g0, int g1, int32x4_t (*idot)[VECTORS]) {
    int32x4_t sum[2][VECTORS]
                 [2]; /* [columns 0, 1 or 2, 3][rows][rows 0, 1 or 2, 3]: row, row; column first */
    const int8_t *x = (const int8_t *)act + 4 * p.c0;
    for (int v = 0; v < p.m; v++)
        for (int i = 0; i < 4; i++) sum[i / 2][v][i % 2] = vdupq_n_s32(0);
    ATH_UNROLL
    for (int g = g0; g < g1; g += 2) {
        int8x16_t a = vld1q_s8(x + 4 * g * p.width), b = vld1q_s8(x + 4 * (g + 1) * p.width);
        int8x16_t columns[2] = {first_pair(a, b), second_pair(a, b)};
        ATH_UNROLL
        for (int v = 0; v < p.m; v++) {
            a = unpack_group(f, codes + 16 * v, g, table);
            b = unpack_group(f, codes + 16 * v, g + 1, table);
            int8x16_t rows[2] = {first_pair(a, b), second_pair(a, b)};
            ATH_UNROLL
            for (int i = 0; i < 4; i++)
                sum[i / 2][v][i % 2] = vmmlaq_s32(sum[i / 2][v][i % 2], rows[i % 2], columns[i / 2]);
        }
    }
    ATH_UNROLL
    for (int v = 0; v < p.m; v++) {
        ATH_UNROLL
        for (int i = 0; i < 2; i++) {
            idot[2 * i][v] = vaddq_s32(idot[2 * i][v], vuzp1q_s32(sum[i][v][0], sum[i][v][1]));
            idot[2 * i + 1][v] = vaddq_s32(idot[2 * i + 1][v], vuzp2q_s32(sum[i][v][0], sum[i][v][1]));
        }
    }
}

void ath_matmul_kernels_i8mm(ath_matmul_kernels *k) {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    k->tile[ATH_PANEL_##type][2] = type##_w4;                                                                \
    k->tile[ATH_PANEL_##type][3] = type##_w8;
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    k->isa = "i8mm";
}
