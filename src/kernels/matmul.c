/* Panel formats and the choice of matrix product kernels. */
#include "kernels/matmul.h"

#include "codec/iq_grids.h"
#include "kernels/cpu_flags.h"

const ath_panel_info ath_panel_infos[ATH_PANEL_QUANTISED] = {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    [ATH_PANEL_##type] = {ATH_TYPE_##type, bits, zero, ATH_TABLE_##table, blocks, min, sub},
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
};

/* Twice the E2M1 values; MXFP4's scale is halved to match. */
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

const int8_t *const ath_panel_tables[3] = {NULL, ath_iq4_values, e2m1_doubled};

ath_panel_format ath_panel_format_of(ath_tensor_type type) {
    switch (type) {
    case ATH_TYPE_F32: return ATH_PANEL_F32;
    case ATH_TYPE_F16: return ATH_PANEL_F16;
    case ATH_TYPE_BF16: return ATH_PANEL_BF16;
#define ATH_PANEL(name, bits, zero, table, blocks, min, sub)                                                 \
    case ATH_TYPE_##name:                                                                                    \
        return ATH_PANEL_##name;
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    default: return ATH_PANEL_NONE;
    }
}

static size_t round_up(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

size_t ath_panel_bytes(ath_panel_format format, int64_t n_in) {
    if (format >= ATH_PANEL_QUANTISED)
        return round_up((size_t)n_in * ATH_PANEL_ROWS * (format == ATH_PANEL_F32 ? 4 : 2));
    const ath_panel_info *f = &ath_panel_infos[format];
    size_t block = (size_t)(ath_panel_code_bytes(f->bits) + ath_panel_sub_bytes(f->min, f->sub));
    size_t head = (size_t)ath_panel_head_bytes(f->type, f->min);
    return round_up((size_t)(n_in / 32) * block + (size_t)(n_in / 32 / f->blocks) * head);
}

void ath_matmul_kernels_init(ath_matmul_kernels *k, uint32_t flags) {
    ath_matmul_kernels_c(k);
#if defined(__x86_64__)
    if (flags & ATH_CPU_AVX2) ath_matmul_kernels_avx2(k);
    if ((flags & ATH_CPU_AVX512_ALL) == ATH_CPU_AVX512_ALL) ath_matmul_kernels_avx512(k);
    if (flags & ATH_CPU_AMX) ath_matmul_kernels_amx(k);
#elif defined(__aarch64__)
    if (flags & ATH_CPU_NEON) ath_matmul_kernels_neon(k);
    if (flags & ATH_CPU_DOTPROD) ath_matmul_kernels_dotprod(k);
    if (flags & ATH_CPU_I8MM) ath_matmul_kernels_i8mm(k);
#else
    (void)flags;
#endif
}
