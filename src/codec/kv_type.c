/* Cache types: names, and the byte layout of their pages (kv_page.h). */
#include <stdio.h>
#include <string.h>

#include "codec/kv_page.h"
#include "codec/tensor_type.h"

static const char *const type_names[ATH_KV_TYPE_COUNT] = {
    [ATH_KV_F32] = "f32",
    [ATH_KV_F16] = "f16",
    [ATH_KV_BF16] = "bf16",
    [ATH_KV_Q8_0] = "q8_0",
    [ATH_KV_Q5_1] = "q5_1",
    [ATH_KV_Q5_0] = "q5_0",
    [ATH_KV_Q4_1] = "q4_1",
    [ATH_KV_Q4_0] = "q4_0",
    [ATH_KV_IQ4_NL] = "iq4_nl",
    [ATH_KV_TURBO4] = "turbo4",
    [ATH_KV_TURBO3] = "turbo3",
    [ATH_KV_TURBO2] = "turbo2",
    [ATH_KV_TURBO4_TCQ] = "turbo4_tcq",
    [ATH_KV_TURBO3_TCQ] = "turbo3_tcq",
    [ATH_KV_TURBO2_TCQ] = "turbo2_tcq",
    [ATH_KV_TURBO4_PLAIN] = "turbo4:plain",
    [ATH_KV_TURBO3_PLAIN] = "turbo3:plain",
    [ATH_KV_TURBO2_PLAIN] = "turbo2:plain",
};

const char *ath_kv_type_name(ath_kv_type type) {
    return type_names[type];
}

int ath_kv_tensor_type(ath_kv_type type) {
    static const int ids[ATH_KV_TURBO4] = {
        [ATH_KV_F32] = ATH_TYPE_F32,   [ATH_KV_F16] = ATH_TYPE_F16,   [ATH_KV_BF16] = ATH_TYPE_BF16,
        [ATH_KV_Q8_0] = ATH_TYPE_Q8_0, [ATH_KV_Q5_1] = ATH_TYPE_Q5_1, [ATH_KV_Q5_0] = ATH_TYPE_Q5_0,
        [ATH_KV_Q4_1] = ATH_TYPE_Q4_1, [ATH_KV_Q4_0] = ATH_TYPE_Q4_0, [ATH_KV_IQ4_NL] = ATH_TYPE_IQ4_NL,
    };
    return ath_kv_type_has_code(type) ? -1 : ids[type];
}

/* Channels that a head must be a multiple of to be stored in this type. */
static int channel_step(ath_kv_type type) {
    return ath_kv_type_is_raw(type) ? 1 : ath_kv_type_has_code(type) ? 16 : 32;
}

/* Names of the types that can hold this head_dim, with commas between. */
static void list_types(char *text, size_t size, int head_dim) {
    size_t used = 0;
    text[0] = 0;
    for (int t = 0; t < ATH_KV_TYPE_COUNT && used < size; t++) {
        if (head_dim % channel_step((ath_kv_type)t)) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", type_names[t]);
    }
}

ath_status ath_kv_type_parse(ath_kv_type *out, const char *name, ath_error *err) {
    for (int t = 0; t < ATH_KV_TYPE_COUNT; t++) {
        if (strcmp(name, type_names[t])) continue;
        *out = (ath_kv_type)t;
        return ATH_OK;
    }
    char types[256];
    list_types(types, sizeof types, 0);
    return ATH_FAIL(err, ATH_ERR_ARGUMENT, "there is no cache type '%.64s'; the types are %s", name, types);
}

/* Powers of two of at most 128, the largest that fits first. */
static void split_parts(ath_kv_layout *layout) {
    int start = 0, size = 128;
    while (start < layout->head_dim) {
        while (size > layout->head_dim - start) size /= 2;
        layout->part_start[layout->n_parts] = start;
        layout->part_dim[layout->n_parts++] = size;
        start += size;
    }
}

ath_status ath_kv_layout_init(ath_kv_layout *layout, ath_kv_type type, int head_dim, bool is_key,
                              ath_error *err) {
    if ((int)type < 0 || type >= ATH_KV_TYPE_COUNT)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "no cache type has the number %d", (int)type);
    if (head_dim < 1 || head_dim > ATH_MAX_HEAD_DIM) {
        return ATH_FAIL(err, ATH_ERR_UNSUPPORTED,
                        "head_dim %d can't be stored in any cache type: 1 to %d can", head_dim,
                        ATH_MAX_HEAD_DIM);
    }
    if (head_dim % channel_step(type)) {
        char types[256];
        list_types(types, sizeof types, head_dim);
        return ATH_FAIL(err, ATH_ERR_UNSUPPORTED,
                        "head_dim %d can't be stored as %s (needs a multiple of %d), but as %s", head_dim,
                        type_names[type], channel_step(type), types);
    }
    *layout = (ath_kv_layout){.type = type, .is_key = is_key, .head_dim = head_dim};
    split_parts(layout);
    size_t channels = (size_t)head_dim, end;
    if (ath_kv_type_has_code(type)) {
        end = channels * ATH_PAGE_TOKENS * (size_t)ath_kv_turbo_bits(type) / 8;
    } else {
        end = ath_tensor_type_row_bytes(ath_kv_tensor_type(type), head_dim) * ATH_PAGE_TOKENS;
    }
    layout->norms_at = end;
    if (ath_kv_type_has_code(type)) end += (size_t)layout->n_parts * ATH_PAGE_TOKENS * sizeof(uint16_t);
    bool has_key_sections = is_key && ath_kv_type_has_page_data(type);
    layout->mean_at = end;
    if (has_key_sections) end += channels * sizeof(uint16_t);
    layout->eq_at = end;
    if (has_key_sections) end += channels;
    layout->bytes = end;
    return ATH_OK;
}
