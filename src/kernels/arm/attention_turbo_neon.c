/* Attention on turbo pages for every 64-bit ARM. */
#include <arm_neon.h>

#include "kernels/unroll.h"

/* Two products fit into 16 bits, as x is more than -128. */
ATH_INLINE int32x4_t dot_4(int32x4_t sum, int8x16_t x, int8x16_t y) {
    int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

#include "kernels/attention_turbo_arm.h"

/* x to integers of 16 bits. */
static void quantise_part(const float *x, int n, int8_t *high, int8_t *low, float *step, int32_t *sum) {
    float32x4_t amax = vdupq_n_f32(0), most = vdupq_n_f32((float)ATH_QUERY_STEPS);
    for (int i = 0; i < n; i += 4) amax = vmaxnmq_f32(amax, vabsq_f32(vld1q_f32(x + i)));
    float top = vmaxvq_f32(amax), inverse = top > 0.0f ? (float)ATH_QUERY_STEPS / top : 0.0f;
    int32x4_t total = vdupq_n_s32(0);
    for (int i = 0; i < n; i += 8) {
        int32x4_t integer[2];
        for (int j = 0; j < 2; j++) {
            float32x4_t y = vminnmq_f32(vmulq_n_f32(vld1q_f32(x + i + 4 * j), inverse), most);
            integer[j] = vcvtnq_s32_f32(vmaxnmq_f32(y, vnegq_f32(most)));
            total = vaddq_s32(total, integer[j]);
        }
        int16x8_t eight = vcombine_s16(vmovn_s32(integer[0]), vmovn_s32(integer[1]));
        vst1_s8(high + i, vmovn_s16(vrshrq_n_s16(eight, 8)));
        vst1_s8(low + i, vmovn_s16(eight));
    }
    *step = top * (1.0f / (float)ATH_QUERY_STEPS);
    *sum = vaddvq_s32(total);
}

static void turbo_query(const ath_kv_layout *layout, const uint8_t *page, const float *q, int n,
                        ath_turbo_query *out) {
    const float *signs = ath_rotation_signs();
    int head_dim = layout->head_dim;
    float x[ATH_MAX_HEAD_DIM], factor[ATH_MAX_HEAD_DIM];
    for (int c = 0; c < head_dim; c++) factor[c] = ath_eq_scale(page[layout->eq_at + (size_t)c]) * signs[c];
    for (int h = 0; h < n; h++, q += head_dim, out++) {
        float32x4_t bias[4];
        for (int i = 0; i < 4; i++) bias[i] = vdupq_n_f32(0);
        for (int c = 0; c < head_dim; c += 4) {
            float32x4_t v = vld1q_f32(q + c), mean = ath_load_f16_neon(page + layout->mean_at + 2 * c);
            bias[c / 4 % 4] = vfmaq_f32(bias[c / 4 % 4], v, mean);
            vst1q_f32(x + c, vmulq_f32(v, vld1q_f32(factor + c)));
        }
        out->bias = ath_sum_lanes_neon(bias);
        for (int p = 0; p < layout->n_parts; p++) {
            int start = layout->part_start[p], dim = layout->part_dim[p];
            ath_hadamard_neon(x + start, dim);
            ath_multiply_neon(x + start, NULL, ath_rotation_scale(dim), dim);
            quantise_part(x + start, dim, out->high + start, out->low + start, &out->step[p], &out->sum[p]);
        }
    }
}

static void unrotate(const ath_kv_layout *layout, float *x) {
    for (int p = 0; p < layout->n_parts; p++) {
        int start = layout->part_start[p], dim = layout->part_dim[p];
        ath_hadamard_neon(x + start, dim);
        ath_multiply_neon(x + start, ath_rotation_signs() + start, ath_rotation_scale(dim), dim);
    }
}

void ath_attn_turbo_init_neon(ath_attn_kernels *k) {
    k->turbo_query = turbo_query;
    k->turbo_scores = turbo_scores;
    k->turbo_accumulate = turbo_accumulate;
    k->unrotate = unrotate;
}
