/* Matrix products of quantised types with SDOT: 4 inputs of 4 rows at once, times those of a column that a
 * lane of a register of activations holds. */
enum { MOST = 4, CELLS = 8 };

#include "kernels/matmul_arm.h"

ATH_INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane) {
    switch (lane) { /* the instruction wants a constant, as it is after inlining */
    case 0: return vdotq_laneq_s32(sum, w, x, 0);
    case 1: return vdotq_laneq_s32(sum, w, x, 1);
    case 2: return vdotq_laneq_s32(sum, w, x, 2);
    default: return vdotq_laneq_s32(sum, w, x, 3);
    }
}

ATH_INLINE void dot_groups(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *act,
                           int8x16_t table, int g0, int g1, int32x4_t (*idot)[VECTORS]) {
    ATH_UNROLL
    for (int g = g0; g < g1; g++) {
        const int first = g * p.width; /* lane of column c0, which is a multiple of 4 */
        int8x16_t x = vld1q_s8((const int8_t *)act + 4 * p.c0 + 16 * (first / 4));
        ATH_UNROLL
        for (int v = 0; v < p.m; v++) {
            int8x16_t w = unpack_group(f, codes + 16 * v, g, table);
            ATH_UNROLL
            for (int c = 0; c < p.n; c++) idot[c][v] = dot_lane(idot[c][v], w, x, first % 4 + c);
        }
    }
}

void ath_matmul_kernels_dotprod(ath_matmul_kernels *k) {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    k->tile[ATH_PANEL_##type][0] = type##_w1;                                                                \
    k->tile[ATH_PANEL_##type][1] = type##_w2;                                                                \
    k->tile[ATH_PANEL_##type][2] = type##_w4;                                                                \
    k->tile[ATH_PANEL_##type][3] = type##_w8;
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    k->isa = "dotprod";
}
