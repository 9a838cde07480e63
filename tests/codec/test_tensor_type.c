/* codec: the table of weight types, decoders whose blocks are worked out by hand, and encoders on odd input.
 *
 * test_dequant.py compares all decoders and encoders with an oracle; it uses this program as
 *   test_tensor_type --list                     a line per type: id name block_size block_bytes has_decoder
 *   test_tensor_type --dequant TYPE IN OUT      blocks to float32
 *   test_tensor_type --quantize TYPE IN OUT     float32 to blocks */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "codec/quant_legacy.h"
#include "codec/tensor_type.h"

typedef void (*quantizer)(const float *src, void *dst, int64_t n);

static const struct {
    ath_tensor_type type;
    quantizer quantize;
} quantizers[] = {
    {ATH_TYPE_Q8_0, ath_quantize_q8_0},
    {ATH_TYPE_Q5_1, ath_quantize_q5_1},
    {ATH_TYPE_Q5_0, ath_quantize_q5_0},
    {ATH_TYPE_Q4_1, ath_quantize_q4_1},
    {ATH_TYPE_Q4_0, ath_quantize_q4_0},
    {ATH_TYPE_IQ4_NL, ath_quantize_iq4_nl},
};
enum { N_QUANTIZERS = sizeof quantizers / sizeof quantizers[0] };

static void table_knows_its_types(void **state) {
    (void)state;
    const ath_tensor_type_info *type = ath_tensor_type_get(ATH_TYPE_Q4_K);
    assert_string_equal(type->name, "Q4_K");
    assert_int_equal(type->block_size, 256);
    assert_int_equal(type->block_bytes, 144);
    assert_non_null(type->dequantize);
    assert_int_equal(ath_tensor_type_get(ATH_TYPE_Q8_1)->block_bytes, 36);
    assert_null(ath_tensor_type_get(ATH_TYPE_Q8_1)->dequantize);
}

static void other_ids_have_no_name(void **state) {
    (void)state;
    const int ids[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, -1, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        assert_null(ath_tensor_type_get(ids[i])->name);
        assert_null(ath_tensor_type_get(ids[i])->dequantize);
        assert_int_equal(ath_tensor_type_row_bytes(ids[i], 256), 0);
    }
}

static void row_bytes_counts_whole_blocks(void **state) {
    (void)state;
    assert_int_equal(ath_tensor_type_row_bytes(ATH_TYPE_F32, 7), 28);
    assert_int_equal(ath_tensor_type_row_bytes(ATH_TYPE_Q6_K, 512), 420);
    assert_int_equal(ath_tensor_type_row_bytes(ATH_TYPE_Q6_K, 511), 0);
    assert_int_equal(ath_tensor_type_row_bytes(ATH_TYPE_Q6_K, -256), 0);
    assert_int_equal(ath_tensor_type_row_bytes(ATH_TYPE_Q8_0, INT64_C(1) << 40), (UINT64_C(1) << 35) * 34);
    assert_int_equal(ath_tensor_type_row_bytes(ATH_TYPE_F64, INT64_MAX), 0);
}

static void file_types_have_names(void **state) {
    (void)state;
    assert_string_equal(ath_file_type_name(0), "all F32");
    assert_string_equal(ath_file_type_name(15), "Q4_K - Medium");
    assert_string_equal(ath_file_type_name(1024 + 15), "Q4_K - Medium");
    assert_string_equal(ath_file_type_name(41), "Q2_0");
    assert_string_equal(ath_file_type_name(4), "unknown");
    assert_string_equal(ath_file_type_name(42), "unknown");
    assert_string_equal(ath_file_type_name(UINT32_MAX), "unknown");
}

/* Two blocks, laid at an odd address; scales 1.5 (0x3e00) and -2 (0xc000). */
static void q1_0_by_hand(void **state) {
    (void)state;
    uint8_t bytes[1 + 2 * 18] = {0};
    memcpy(bytes + 1, (uint8_t[]){0x00, 0x3e, 0x05, 0x80}, 4); /* elements 0, 2, 15 */
    memcpy(bytes + 19, (uint8_t[]){0x00, 0xc0}, 2);
    bytes[36] = 0x80; /* element 127 of the second block */
    float x[256];
    ath_tensor_type_get(ATH_TYPE_Q1_0)->dequantize(bytes + 1, x, 256);
    for (int i = 0; i < 128; i++) {
        assert_true(x[i] == (i == 0 || i == 2 || i == 15 ? 1.5f : -1.5f));
        assert_true(x[128 + i] == (i == 127 ? -2.0f : 2.0f));
    }
}

/* Byte 0xe4 holds codes 0, 1, 2, 3; a zero byte holds four zeros. */
static void q2_0_by_hand(void **state) {
    (void)state;
    uint8_t bytes[1 + 2 * 18] = {0};
    memcpy(bytes + 1, (uint8_t[]){0x00, 0x3e, 0xe4}, 3);
    memcpy(bytes + 19, (uint8_t[]){0x00, 0xc0}, 2);
    bytes[36] = 0xe4;
    const float codes[4] = {-1, 0, 1, 2};
    float x[128];
    ath_tensor_type_get(ATH_TYPE_Q2_0)->dequantize(bytes + 1, x, 128);
    for (int i = 0; i < 64; i++) {
        assert_true(x[i] == 1.5f * (i < 4 ? codes[i] : -1));
        assert_true(x[64 + i] == -2.0f * (i >= 60 ? codes[i - 60] : -1));
    }
}

/* Infinite, NaN and denormal input: under the sanitizers no encoder may do anything undefined, and a block
 * without information comes back as zeros. */
static void encoders_survive_any_input(void **state) {
    (void)state;
    const float odd[] = {INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 1e-44f, -1e-44f, 0, 1};
    enum { N_ODD = sizeof odd / sizeof odd[0] };
    for (int k = 0; k < N_QUANTIZERS; k++) {
        float src[32], back[32];
        uint8_t block[64];
        const ath_tensor_type_info *type = ath_tensor_type_get(quantizers[k].type);
        for (int a = 0; a < N_ODD; a++) {
            for (int b = 0; b < N_ODD; b++) {
                for (int j = 0; j < 32; j++) src[j] = j == 5 ? odd[a] : odd[b];
                quantizers[k].quantize(src, block + 1, 32);
                type->dequantize(block + 1, back, 32);
            }
        }
        memset(src, 0, sizeof src);
        quantizers[k].quantize(src, block + 1, 32);
        type->dequantize(block + 1, back, 32);
        for (int j = 0; j < 32; j++) assert_true(back[j] == 0);
    }
}

/* The program that test_dequant.py drives. */

static int list_types(void) {
    for (int id = 0; id < ATH_TYPE_COUNT; id++) {
        const ath_tensor_type_info *type = ath_tensor_type_get(id);
        if (!type->name) continue;
        printf("%d %s %d %d %d\n", id, type->name, type->block_size, type->block_bytes,
               type->dequantize != NULL);
    }
    return 0;
}

static void *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) exit(2);
    *size = (size_t)ftell(f);
    rewind(f);
    void *data = malloc(*size);
    if (!data || fread(data, 1, *size, f) != *size) exit(2);
    fclose(f);
    return data;
}

static void write_file(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) exit(2);
}

static int find_type(const char *name) {
    for (int id = 0; id < ATH_TYPE_COUNT; id++) {
        const char *known = ath_tensor_type_get(id)->name;
        if (known && !strcmp(known, name)) return id;
    }
    exit(2);
}

static int dequantize_file(const char *name, const char *in, const char *out) {
    const ath_tensor_type_info *type = ath_tensor_type_get(find_type(name));
    size_t size;
    void *blocks = read_file(in, &size);
    int64_t n = (int64_t)(size / (size_t)type->block_bytes) * type->block_size;
    float *values = malloc((size_t)n * sizeof *values);
    if (!values || !type->dequantize) return 2;
    type->dequantize(blocks, values, n);
    write_file(out, values, (size_t)n * sizeof *values);
    free(values);
    free(blocks);
    return 0;
}

static int quantize_file(const char *name, const char *in, const char *out) {
    int id = find_type(name), k = 0;
    while (k < N_QUANTIZERS && (int)quantizers[k].type != id) k++;
    if (k == N_QUANTIZERS) return 2;
    size_t size;
    float *values = read_file(in, &size);
    int64_t n = (int64_t)(size / sizeof *values);
    size_t bytes = ath_tensor_type_row_bytes(id, n);
    void *blocks = malloc(bytes);
    if (!blocks) return 2;
    quantizers[k].quantize(values, blocks, n);
    write_file(out, blocks, bytes);
    free(blocks);
    free(values);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--list")) return list_types();
    if (argc == 5 && !strcmp(argv[1], "--dequant")) return dequantize_file(argv[2], argv[3], argv[4]);
    if (argc == 5 && !strcmp(argv[1], "--quantize")) return quantize_file(argv[2], argv[3], argv[4]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_knows_its_types),         cmocka_unit_test(other_ids_have_no_name),
        cmocka_unit_test(row_bytes_counts_whole_blocks), cmocka_unit_test(file_types_have_names),
        cmocka_unit_test(q1_0_by_hand),                  cmocka_unit_test(q2_0_by_hand),
        cmocka_unit_test(encoders_survive_any_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
