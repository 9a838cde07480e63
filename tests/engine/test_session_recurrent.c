/* Models with recurrent layers: logits are, bit for bit, those of a straight run, in batches, after rollbacks, forks and
 * cuts; and sequences that were saved as bytes go on as if they had not been, in every kind of model.
 *
 * Golden models; `test_session_recurrent FILE` takes another one (tests/models/test_hybrids.py). */
#include "engine/session_fixture.h"

static const test_case hybrids[] = {
    {"qwen35/model.gguf", "turbo3"}, {"qwen3next/model.gguf", "f32"}, {"qwen35moe/model.gguf", "q8_0"}};
enum { N_HYBRIDS = sizeof hybrids / sizeof *hybrids };

static int fill(void **state) {
    (void)state;
    fill_texts();
    return 0;
}

/* Three sequences of different length in passes of 7, 1, 11 and 64 rows, in changing order. */
static void in_one_batch(const test_case *c) {
    static const size_t length[] = {300, 90, 171}, steps[] = {7, 1, 11, 64};
    static float alone[3][N_VOCAB];
    ath_engine *engine = open_engine(c->model);
    ath_session *s = open_session(engine, "f32", 512, 3);
    for (int i = 0; i < 3; i++) cold_logits(alone[i], engine, "f32", text[i], length[i], length[i]);
    size_t done[3] = {0, 0, 0};
    for (int pass = 0; done[0] < length[0] || done[1] < length[1] || done[2] < length[2]; pass++) {
        ath_batch_part parts[3];
        int n = 0;
        for (int i = 0; i < 3; i++) {
            int seq = (i + pass) % 3;
            size_t left = length[seq] - done[seq], want = steps[(pass + seq) % 4];
            if (left == 0) continue;
            parts[n++] = (ath_batch_part){seq, text[seq] + done[seq], left < want ? left : want};
            done[seq] += parts[n - 1].n;
        }
        MUST(ath_session_eval(s, &(ath_batch){.parts = parts, .n_parts = n}, err));
    }
    for (int i = 0; i < 3; i++) assert_same_logits(ath_session_logits(s, i), alone[i], c->model, i);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static void test_in_one_batch(void **state) {
    (void)state;
    for (int i = 0; i < N_HYBRIDS; i++) in_one_batch(&hybrids[i]);
}

/* ---- rollback */
enum { N_TEXT = 420, N_PREFILL = 300 };

/* Tokens [from, to) of text 0 as the straight run had them: a pass of rows, then row by row. */
static void go_on(ath_session *s, int64_t from, int64_t to) {
    if (from < N_PREFILL) {
        append(s, 0, text[0] + from, (size_t)(N_PREFILL - from));
        from = N_PREFILL;
    }
    decode(s, 0, text[0], (size_t)from, (size_t)to);
}

static void rollback(const test_case *c) {
    static float straight[N_TEXT + 1][N_VOCAB];
    ath_engine *engine = open_engine(c->model);
    ath_session *s = open_session(engine, c->type, 1024, 1);
    append(s, 0, text[0], N_PREFILL);
    for (int64_t n = N_PREFILL; n < N_TEXT; n++) {
        append(s, 0, text[0] + n, 1);
        save_logits(straight[n + 1], s, 0);
    }
    for (int64_t back = 1; back <= 128; back += back == 1 ? 35 : 46) {
        int64_t n = N_TEXT - back, landed = ath_session_truncate(s, 0, n);
        assert_int_equal(landed, n / 128 * 128);
        append(s, 0, text[1], 5); /* other tokens first */
        assert_int_equal(ath_session_truncate(s, 0, landed), landed);
        go_on(s, landed, N_TEXT);
        assert_same_logits(ath_session_logits(s, 0), straight[N_TEXT], c->model, n);
    }
    /* further back: from an entry point (every 4 pages there is none yet), that is from the start */
    assert_int_equal(ath_session_truncate(s, 0, 200), 0);
    go_on(s, 0, N_PREFILL + 2);
    assert_same_logits(ath_session_logits(s, 0), straight[N_PREFILL + 2], c->model, 0);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static void test_rollback(void **state) {
    (void)state;
    for (int i = 0; i < N_HYBRIDS; i++) rollback(&hybrids[i]);
}

static void test_forks(void **state) {
    (void)state;
    static float cold[N_VOCAB];
    static ath_token mixed[800];
    ath_engine *engine = open_engine("qwen35/model.gguf");
    ath_session *s = open_session(engine, "turbo3", 1024, 3);
    append(s, 0, text[0], 900);
    assert_int_equal(ath_session_fork(s, 1, 0, 700), 512); /* an entry point */
    assert_int_equal(ath_session_fork(s, 2, 0, 900), 900); /* the end */
    memcpy(mixed, text[0], 512 * sizeof *mixed);
    memcpy(mixed + 512, text[2], 288 * sizeof *mixed);
    append(s, 1, mixed + 512, 288);
    cold_logits(cold, engine, "turbo3", mixed, 800, 800);
    assert_same_logits(ath_session_logits(s, 1), cold, "fork", 800);
    append(s, 0, text[1], 20);
    ath_session_clear(s, 0);
    append(s, 2, text[0] + 900, 10);
    cold_logits(cold, engine, "turbo3", text[0], 910, 910);
    assert_same_logits(ath_session_logits(s, 2), cold, "fork of the end", 910);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

/* ---- saved sequences */
static void *save(const ath_session *s, int seq, size_t *size) {
    *size = ath_session_state_size(s, seq);
    void *bytes = malloc(*size);
    MUST(ath_session_state_save(s, seq, bytes, *size, err));
    return bytes;
}

/* Loaded into another sequence, and into another session on an engine of its own. */
static void goes_on(const test_case *c) {
    enum { SAVED = 610, END = 760 };
    static float straight[2][N_VOCAB];
    ath_engine *engine = open_engine(c->model), *other = open_engine(c->model);
    ath_session *s = open_session(engine, c->type, 1024, 2);
    append(s, 0, text[0], SAVED);
    size_t size;
    void *bytes = save(s, 0, &size);
    append(s, 0, text[0] + SAVED, 1);
    save_logits(straight[0], s, 0);
    append(s, 0, text[0] + SAVED + 1, END - SAVED - 1);
    save_logits(straight[1], s, 0);
    append(s, 1, text[2], 100); /* makes room */
    ath_session *sessions[] = {s, open_session(other, c->type, 2048, 2)};
    for (int i = 0; i < 2; i++) {
        MUST(ath_session_state_load(sessions[i], 1, bytes, size, err));
        assert_int_equal(ath_session_length(sessions[i], 1), SAVED);
        assert_null(ath_session_logits(sessions[i], 1));
        append(sessions[i], 1, text[0] + SAVED, 1);
        assert_same_logits(ath_session_logits(sessions[i], 1), straight[0], c->model, SAVED);
        append(sessions[i], 1, text[0] + SAVED + 1, END - SAVED - 1);
        assert_same_logits(ath_session_logits(sessions[i], 1), straight[1], c->model, END);
        for (int64_t n = 0; n < END; n += 40)
            assert_int_equal(ath_session_entry_before(sessions[i], 1, n), ath_session_entry_before(s, 0, n));
    }
    free(bytes);
    for (int i = 0; i < 2; i++) ath_session_close(&sessions[i]);
    ath_engine_close(&engine);
    ath_engine_close(&other);
}

static void test_saved_sequences_go_on(void **state) {
    (void)state;
    goes_on(&hybrids[0]);
    goes_on(&hybrids[2]);
    goes_on(&(test_case){"llama/model-q8_0.gguf", "turbo3"});
    goes_on(&(test_case){"gemma3/model.gguf", "turbo4"});
}

static void test_saved_sequences_are_refused(void **state) {
    (void)state;
    ath_engine *engine = open_engine("qwen35/model.gguf"), *other = open_engine("qwen3/model.gguf");
    ath_session *s = open_session(engine, "turbo3", 1024, 1);
    append(s, 0, text[0], 300);
    size_t size;
    uint8_t *bytes = save(s, 0, &size);
    MUST_FAIL(ath_session_state_save(s, 0, bytes, size - 1, err), ATH_ERR_ARGUMENT, "room for");
    MUST_FAIL(ath_session_state_save(s, 1, bytes, size, err), ATH_ERR_ARGUMENT, "sequence 1");
    MUST_FAIL(ath_session_state_load(s, -1, bytes, size, err), ATH_ERR_ARGUMENT, "sequence -1");
    assert_int_equal(ath_session_state_size(s, 7), 0);
    assert_int_equal(ath_session_length(s, 0), 300);
    MUST_FAIL(ath_session_state_load(s, 0, bytes, 3, err), ATH_ERR_FORMAT, "cut off");
    assert_int_equal(ath_session_length(s, 0), 0);
    MUST_FAIL(ath_session_state_load(s, 0, bytes, size - 64, err), ATH_ERR_FORMAT, "cut off");
    bytes[size / 2] ^= 1;
    MUST_FAIL(ath_session_state_load(s, 0, bytes, size, err), ATH_ERR_FORMAT, "damaged");
    bytes[size / 2] ^= 1;
    ath_session *f16 = open_session(engine, "f16", 1024, 1), *foreign = open_session(other, "turbo3", 1024, 1);
    MUST_FAIL(ath_session_state_load(f16, 0, bytes, size, err), ATH_ERR_FORMAT, "cache types");
    MUST_FAIL(ath_session_state_load(foreign, 0, bytes, size, err), ATH_ERR_FORMAT, "another model");
    ath_session *small = open_session(engine, "turbo3", 256, 1);
    MUST_FAIL(ath_session_state_load(small, 0, bytes, size, err), ATH_ERR_CONTEXT, "300");
    MUST(ath_session_state_load(s, 0, bytes, size, err));
    append(s, 0, text[0] + 300, 1);
    bytes[0] ^= 1;
    MUST_FAIL(ath_session_state_load(s, 0, bytes, size, err), ATH_ERR_FORMAT, "no saved sequence");
    free(bytes);
    ath_session_close(&s);
    ath_session_close(&f16);
    ath_session_close(&small);
    ath_session_close(&foreign);
    ath_engine_close(&engine);
    ath_engine_close(&other);
}

static void test_given_model(void **state) {
    static const char *const types[] = {"f32", "turbo3"};
    for (int i = 0; i < 2; i++) {
        test_case c = {*state, types[i]};
        in_one_batch(&c);
        rollback(&c);
        goes_on(&c);
    }
}

int main(int argc, char **argv) {
    if (argc == 2) {
        const struct CMUnitTest given[] = {cmocka_unit_test_prestate(test_given_model, argv[1])};
        return cmocka_run_group_tests_name("session_recurrent", given, fill, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_one_batch),          cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_forks),                 cmocka_unit_test(test_saved_sequences_go_on),
        cmocka_unit_test(test_saved_sequences_are_refused),
    };
    return cmocka_run_group_tests_name("session_recurrent", tests, fill, NULL);
}
