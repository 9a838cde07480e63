/* Random weights in the file layout of any type, for tests. */
#ifndef ATH_TESTS_KERNELS_WEIGHTS_H
#define ATH_TESTS_KERNELS_WEIGHTS_H

#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "codec/tensor_type.h"

static inline uint32_t test_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = *state;
    return (uint32_t)((x ^ x >> 22) >> 22);
}

/* Between -1 and 1. */
static inline float test_uniform(uint64_t *state) {
    return (float)(test_random(state) >> 8) * 0x1p-23f - 1.0f;
}

/* Between 2^-8 and 2^-4. */
static inline uint16_t test_scale(uint64_t *state) {
    return ath_f32_to_f16(0x1p-8f + (float)(test_random(state) & 0xffff) * (0x1p-4f - 0x1p-8f) / 65536);
}

/* Every byte random, or fill if that is not negative; but the scales get values of usual size. */
static inline void test_block(ath_tensor_type type, int fill, uint8_t *b, uint64_t *state) {
    for (int i = 0; i < ath_tensor_type_get((int)type)->block_bytes; i++)
        b[i] = (uint8_t)(fill < 0 ? (int)(test_random(state) >> 13) : fill);
    uint16_t d = test_scale(state), m = test_scale(state);
    switch (type) {
    case ATH_TYPE_F32: {
        float x = test_uniform(state);
        memcpy(b, &x, 4);
        return;
    }
    case ATH_TYPE_F16: d = ath_f32_to_f16(test_uniform(state)); break;
    case ATH_TYPE_BF16: d = ath_f32_to_bf16(test_uniform(state)); break;
    case ATH_TYPE_Q2_K: memcpy(b + 80, &d, 2), memcpy(b + 82, &m, 2); return;
    case ATH_TYPE_Q3_K: memcpy(b + 108, &d, 2); return;
    case ATH_TYPE_Q4_1:
    case ATH_TYPE_Q5_1:
    case ATH_TYPE_Q4_K:
    case ATH_TYPE_Q5_K: memcpy(b + 2, &m, 2); break;
    case ATH_TYPE_Q6_K: memcpy(b + 208, &d, 2); return;
    case ATH_TYPE_IQ1_M: /* the scale's nibbles are the top ones of four 16-bit words */
        for (int i = 0; i < 4; i++) b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
        return;
    case ATH_TYPE_TQ1_0: memcpy(b + 52, &d, 2); return;
    case ATH_TYPE_TQ2_0: memcpy(b + 64, &d, 2); return;
    case ATH_TYPE_MXFP4: b[0] = (uint8_t)(b[0] % 8 + 118); return;
    case ATH_TYPE_NVFP4:
        for (int i = 0; i < 4; i++) b[i] &= 63;
        return;
    default: break;
    }
    memcpy(b, &d, 2);
}

static inline void test_rows(ath_tensor_type type, int fill, uint8_t *rows, int64_t n_in, int64_t n_rows,
                             uint64_t *state) {
    const ath_tensor_type_info *info = ath_tensor_type_get((int)type);
    for (int64_t i = 0; i < n_in / info->block_size * n_rows; i++)
        test_block(type, fill, rows + i * info->block_bytes, state);
}

#endif
