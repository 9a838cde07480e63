/* Fuzz entry of the GGUF reader: opens the bytes and touches everything that an opened file promises.
 *
 * clang -fsanitize=fuzzer,address,undefined with the sources of src/gguf, src/codec and src/base makes the
 * fuzzer; test_gguf_hostile.c includes this file and runs seeded mutations through it on every test run. */
#include "gguf/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t fuzz_gguf_sink;

static void touch(const void *data, size_t size) {
    const uint8_t *bytes = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++) sum += bytes[i];
    fuzz_gguf_sink = fuzz_gguf_sink + sum;
}

static void touch_kv(const ath_gguf *g, const ath_gguf_kv *kv) {
    touch(kv->key.data, kv->key.size);
    bool strings = kv->item_type == ATH_GGUF_STRING;
    for (uint64_t i = 0; strings && kv->strings && i < kv->count; i++)
        touch(kv->strings[i].data, kv->strings[i].size);
    for (uint64_t i = 0; !strings && i < kv->count; i++) {
        fuzz_gguf_sink = fuzz_gguf_sink + (uint64_t)ath_gguf_item_i64(kv, i) + (ath_gguf_item_f64(kv, i) > 0);
    }
    int size = kv->key.size < 64 ? (int)kv->key.size : 64;
    uint32_t integers[4];
    float number;
    bool flag;
    ath_str string;
    ath_error err;
    ath_gguf_get_u32(g, integers, 1, &err, "%.*s", size, kv->key.data);
    ath_gguf_get_u32_array(g, integers, 4, 1, &err, "%.*s", size, kv->key.data);
    ath_gguf_get_f32(g, &number, 1, &err, "%.*s", size, kv->key.data);
    ath_gguf_get_bool(g, &flag, true, &err, "%.*s", size, kv->key.data);
    if (ath_gguf_get_str(g, &string, &err, "%.*s", size, kv->key.data) == ATH_OK)
        touch(string.data, string.size);
}

/* True if the bytes were accepted. */
static bool fuzz_gguf_one(const uint8_t *data, size_t size) {
    ath_gguf *g;
    ath_error err;
    if (ath_gguf_open_memory(&g, data, size, "fuzz", &err) != ATH_OK) return false;
    for (int64_t i = 0; i < ath_gguf_n_kv(g); i++) touch_kv(g, ath_gguf_kv_at(g, i));
    for (int64_t i = 0; i < ath_gguf_n_tensors(g); i++) {
        const ath_gguf_tensor *t = ath_gguf_tensor_at(g, i);
        touch(t->name.data, t->name.size);
        touch(t->data, t->size);
        ath_gguf_release_tensor(g, t);
    }
    ath_gguf_close(g);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_gguf_one(data, size);
    return 0;
}
