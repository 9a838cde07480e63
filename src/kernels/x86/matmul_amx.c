/* Matrix products of quantised types with AMX: one instruction multiplies a block's 32 inputs of 16 columns
 * with the panel's 16 rows. The sums go through memory into vector registers, where the scaling is that of
 * AVX-512. What limits is neither products nor scaling but getting the two tiles into registers, half of a
 * block's time. Values are expanded with their zero point taken out, so sums start at zero. See matmul.h for
 * the formula. */
enum { LOOK_AHEAD = 1 };

#include "kernels/matmul_avx512.h"

/* Tile registers: sums of two halves, then activations and weights of 32 inputs, and of 16. The instructions
 * want numbers. */
#define SUMS         0
#define SUMS_2       1
#define ACT          2
#define WEIGHTS      3
#define ACT_HALF     4
#define WEIGHTS_HALF 5

ATH_INLINE void dot_block(const ath_panel_info f, const int width, const uint8_t *codes, const bool expanded,
                          const uint8_t *act, __m512i table, block_sums idot) {
    (void)width, (void)expanded, (void)table;
    if (f.sub < 2) {
        _tile_zero(SUMS);
        _tile_loadd(ACT, act, 32);
        _tile_loadd(WEIGHTS, codes, 64);
        _tile_dpbssd(SUMS, ACT, WEIGHTS);
        _tile_stored(SUMS, idot[0], 64);
        return;
    }
    _tile_zero(SUMS);
    _tile_loadd(ACT_HALF, act, 32);
    _tile_loadd(WEIGHTS_HALF, codes, 64);
    _tile_dpbssd(SUMS, ACT_HALF, WEIGHTS_HALF);
    _tile_stored(SUMS, idot[0], 64);
    _tile_zero(SUMS_2);
    _tile_loadd(ACT_HALF, act + 16, 32);
    _tile_loadd(WEIGHTS_HALF, codes + BLOCK_CODES / 2, 64);
    _tile_dpbssd(SUMS_2, ACT_HALF, WEIGHTS_HALF);
    _tile_stored(SUMS_2, idot[1], 64);
}

/* The shapes of the tile registers, which belong to a thread. Static: gcc 12 takes only the first bytes of
 * what it loads for used, and leaves out the others of a local variable. */
static void enter(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {
        .palette = 1,
        .row_bytes =
            {[SUMS] = 64, [SUMS_2] = 64, [ACT] = 32, [WEIGHTS] = 64, [ACT_HALF] = 16, [WEIGHTS_HALF] = 64},
        .rows = {[SUMS] = 16, [SUMS_2] = 16, [ACT] = 16, [WEIGHTS] = 8, [ACT_HALF] = 16, [WEIGHTS_HALF] = 4}};
    _tile_loadconfig(&config);
}

static void leave(void) {
    _tile_release();
}

#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    static void type##_wide(const ath_matmul_tile *t) {                                                      \
        tile_quantised(info_##type, ATH_TILE_MAX, true, t);                                                  \
    }                                                                                                        \
    static void type##_expand(const uint8_t *panel, int64_t n_in, uint8_t *codes) {                          \
        expand_panel(info_##type, zero, panel, n_in, codes);                                                 \
    }
#include "kernels/matmul_formats.def"
#undef ATH_PANEL

void ath_matmul_kernels_amx(ath_matmul_kernels *k) {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    k->wide[ATH_PANEL_##type] = type##_wide;                                                                 \
    k->expand[ATH_PANEL_##type] = type##_expand;
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    k->enter = enter;
    k->leave = leave;
    k->columns[1] = ATH_TILE_MAX;
    k->isa = "amx";
}
