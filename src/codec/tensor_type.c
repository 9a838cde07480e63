/* The table of weight types, and names of general.file_type values. */
#include "codec/tensor_type.h"

#include "codec/dequant.h"

static const ath_tensor_type_info type_table[ATH_TYPE_COUNT] = {
#define ATH_TENSOR_TYPE(type, size, bytes, decoder) [ATH_TYPE_##type] = {#type, size, bytes, decoder},
#include "codec/tensor_type.def"
#undef ATH_TENSOR_TYPE
};

static const ath_tensor_type_info unknown_type = {NULL, 0, 0, NULL};

const ath_tensor_type_info *ath_tensor_type_get(int id) {
    return id >= 0 && id < ATH_TYPE_COUNT ? &type_table[id] : &unknown_type;
}

size_t ath_tensor_type_row_bytes(int id, int64_t n) {
    const ath_tensor_type_info *type = ath_tensor_type_get(id);
    if (!type->name || n <= 0 || n % type->block_size) return 0;
    uint64_t blocks = (uint64_t)(n / type->block_size);
    if (blocks > SIZE_MAX / (uint32_t)type->block_bytes) return 0;
    return (size_t)blocks * (uint32_t)type->block_bytes;
}

/* What people know these mixes by; gaps are values that were retired. */
static const char *const file_type_names[] = {
    [0] = "all F32",
    [1] = "F16",
    [2] = "Q4_0",
    [3] = "Q4_1",
    [7] = "Q8_0",
    [8] = "Q5_0",
    [9] = "Q5_1",
    [10] = "Q2_K - Medium",
    [11] = "Q3_K - Small",
    [12] = "Q3_K - Medium",
    [13] = "Q3_K - Large",
    [14] = "Q4_K - Small",
    [15] = "Q4_K - Medium",
    [16] = "Q5_K - Small",
    [17] = "Q5_K - Medium",
    [18] = "Q6_K",
    [19] = "IQ2_XXS - 2.0625 bpw",
    [20] = "IQ2_XS - 2.3125 bpw",
    [21] = "Q2_K - Small",
    [22] = "IQ3_XS - 3.3 bpw",
    [23] = "IQ3_XXS - 3.0625 bpw",
    [24] = "IQ1_S - 1.5625 bpw",
    [25] = "IQ4_NL - 4.5 bpw",
    [26] = "IQ3_S - 3.4375 bpw",
    [27] = "IQ3_S mix - 3.66 bpw",
    [28] = "IQ2_S - 2.5 bpw",
    [29] = "IQ2_M - 2.7 bpw",
    [30] = "IQ4_XS - 4.25 bpw",
    [31] = "IQ1_M - 1.75 bpw",
    [32] = "BF16",
    [36] = "TQ1_0 - 1.69 bpw ternary",
    [37] = "TQ2_0 - 2.06 bpw ternary",
    [38] = "MXFP4 MoE",
    [39] = "NVFP4",
    [40] = "Q1_0",
    [41] = "Q2_0",
};

const char *ath_file_type_name(uint32_t file_type) {
    file_type &= ~UINT32_C(1024); /* set by writers that guessed the type from the tensors */
    const char *name = NULL;
    if (file_type < sizeof file_type_names / sizeof file_type_names[0]) name = file_type_names[file_type];
    return name ? name : "unknown";
}
