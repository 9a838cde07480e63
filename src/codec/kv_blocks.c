/* The integers inside the blocks of a page, for kernels that multiply them before their scale: the reference
 * of what kernels/x86 unpacks. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "codec/blocks.h"
#include "codec/iq_grids.h"
#include "codec/kv_page.h"

const ath_block_kind *ath_block_kind_of(ath_kv_type type) {
    static const ath_block_kind kinds[ATH_KV_TURBO4] = {
        [ATH_KV_Q8_0] = ATH_BLOCK_KIND_Q8_0, [ATH_KV_Q5_1] = ATH_BLOCK_KIND_Q5_1,
        [ATH_KV_Q5_0] = ATH_BLOCK_KIND_Q5_0, [ATH_KV_Q4_1] = ATH_BLOCK_KIND_Q4_1,
        [ATH_KV_Q4_0] = ATH_BLOCK_KIND_Q4_0, [ATH_KV_IQ4_NL] = ATH_BLOCK_KIND_IQ4_NL,
    };
    return &kinds[type];
}

const int8_t *ath_block_table(void) {
    return ath_iq4_values;
}

static float f16_at(const uint8_t *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return ath_f16_to_f32(x);
}

void ath_block_values(const ath_kv_layout *layout, const uint8_t *page, size_t token, int block,
                      int8_t *values, float *scale, float *minimum) {
    const ath_block_kind *kind = ath_block_kind_of(layout->type);
    size_t index = token * (size_t)(layout->head_dim / ATH_KV_BLOCK) + (size_t)block;
    const uint8_t *at = page + layout->codes_at + index * (size_t)kind->bytes, *codes = at + kind->codes_at;
    *scale = f16_at(at);
    *minimum = kind->has_minimum ? fmaf((float)kind->offset, *scale, f16_at(at + 2)) : 0.0f;
    if (kind->bits == 8) {
        memcpy(values, codes, ATH_KV_BLOCK);
        return;
    }
    for (int i = 0; i < ATH_KV_BLOCK; i++) {
        int code = codes[i % 16] >> i / 16 * 4 & 15;
        if (kind->bits == 5) code |= (at[kind->high_at + i / 8] >> i % 8 & 1) << 4;
        values[i] = (int8_t)(kind->has_table ? ath_iq4_values[code] : code - kind->offset);
    }
}
