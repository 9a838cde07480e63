/* Weight types of GGUF files: ids, names, block sizes, and the reference decoder of each.
 *
 * One X-macro row per type (tensor_type.def) is the only place where a type's constants stand. The layouts
 * are GGUF's published block formats: fields in blocks.h, the meaning of their bits at each decoder. */
#ifndef ATH_CODEC_TENSOR_TYPE_H
#define ATH_CODEC_TENSOR_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are GGUF's tensor type ids. */
typedef enum ath_tensor_type {
    ATH_TYPE_F32 = 0,
    ATH_TYPE_F16 = 1,
    ATH_TYPE_Q4_0 = 2,
    ATH_TYPE_Q4_1 = 3,
    ATH_TYPE_Q5_0 = 6,
    ATH_TYPE_Q5_1 = 7,
    ATH_TYPE_Q8_0 = 8,
    ATH_TYPE_Q8_1 = 9,
    ATH_TYPE_Q2_K = 10,
    ATH_TYPE_Q3_K = 11,
    ATH_TYPE_Q4_K = 12,
    ATH_TYPE_Q5_K = 13,
    ATH_TYPE_Q6_K = 14,
    ATH_TYPE_Q8_K = 15,
    ATH_TYPE_IQ2_XXS = 16,
    ATH_TYPE_IQ2_XS = 17,
    ATH_TYPE_IQ3_XXS = 18,
    ATH_TYPE_IQ1_S = 19,
    ATH_TYPE_IQ4_NL = 20,
    ATH_TYPE_IQ3_S = 21,
    ATH_TYPE_IQ2_S = 22,
    ATH_TYPE_IQ4_XS = 23,
    ATH_TYPE_I8 = 24,
    ATH_TYPE_I16 = 25,
    ATH_TYPE_I32 = 26,
    ATH_TYPE_I64 = 27,
    ATH_TYPE_F64 = 28,
    ATH_TYPE_IQ1_M = 29,
    ATH_TYPE_BF16 = 30,
    ATH_TYPE_TQ1_0 = 34,
    ATH_TYPE_TQ2_0 = 35,
    ATH_TYPE_MXFP4 = 39,
    ATH_TYPE_NVFP4 = 40,
    ATH_TYPE_Q1_0 = 41,
    ATH_TYPE_Q2_0 = 42,
    ATH_TYPE_COUNT = 43,
} ath_tensor_type;

typedef struct ath_tensor_type_info {
    const char *name;    /* as people write it: "Q4_K"; NULL for ids that are retired or unknown */
    int32_t block_size;  /* elements of a block */
    int32_t block_bytes; /* bytes of a block */
    /* Decodes n elements (a multiple of block_size) of src to float32. NULL for types that are no weights
     * (integers, F64, Q8_1, Q8_K). src needs no alignment. */
    void (*dequantize)(const void *src, float *dst, int64_t n);
} ath_tensor_type_info;

/* Never NULL; .name is NULL for an id that is unknown (any int is allowed). */
const ath_tensor_type_info *ath_tensor_type_get(int id);

/* Bytes of a row of n elements; 0 if the type is unknown or n is not a multiple of its block. */
size_t ath_tensor_type_row_bytes(int id, int64_t n);

/* Name of a general.file_type value ("Q4_K - Medium"), with or without the flag 1024 (guessed from the
 * tensors); "unknown" if it is none. Static storage. */
const char *ath_file_type_name(uint32_t file_type);

#endif
