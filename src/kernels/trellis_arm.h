/* The trellis encoder for ARM: 8 tokens at once, one per 16-bit lane. */
#ifndef ATH_KERNELS_TRELLIS_ARM_H
#define ATH_KERNELS_TRELLIS_ARM_H

#include "codec/kv_page.h"

enum { ATH_TRELLIS_LANES_NEON = 8 };

/* As the strips of trellis_x86.h. */
void ath_trellis_strip_neon(const ath_turbo_code *code, const int16_t (*x)[ATH_TRELLIS_LANES_NEON], int n,
                            uint16_t (*words)[ATH_TRELLIS_LANES_NEON], int32_t *squares);

#endif
