/* Sessions: whatever else happens, a sequence's logits are, bit for bit, those of the same tokens evaluated alone.
 * Beside other sequences, after forks, cuts and rollbacks, in shared engines, and after passes that failed. */
#include "engine/session_fixture.h"

static const test_case cases[] = {
    {"llama/model-q8_0.gguf", "turbo3_tcq"}, {"gemma3/model.gguf", "turbo4"},  {"llama3-rope/model.gguf", "f16"},
    {"qwen2/model.gguf", "turbo2"},      {"mixtral/model.gguf", "q4_0"},   {"qwen3/model-f16.gguf", "q8_0"},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static int fill(void **state) {
    (void)state;
    fill_texts();
    return 0;
}

/* ---- side by side */

enum { DECODED = 12 };
static const size_t prompt_length[N_TEXTS] = {389, 100, 513, 250}; /* the first one closes a page while it decodes */

static void logits_alone(float out[DECODED][N_VOCAB], ath_engine *engine, const char *type) {
    ath_session *s = open_session(engine, type, 1024, 1);
    append(s, 0, text[0], prompt_length[0]);
    for (size_t i = 0; i < DECODED; i++) {
        append(s, 0, text[0] + prompt_length[0] + i, 1);
        save_logits(out[i], s, 0);
    }
    ath_session_close(&s);
}

/* One pass with the next token of sequence 0, between the others. */
static void decode_together(ath_session *s, size_t i, const int order[N_TEXTS]) {
    ath_batch_part parts[N_TEXTS];
    for (int p = 0; p < N_TEXTS; p++)
        parts[p] = (ath_batch_part){order[p], text[order[p]] + prompt_length[order[p]] + i, 1};
    ath_batch batch = {.parts = parts, .n_parts = N_TEXTS};
    MUST(ath_session_eval(s, &batch, err));
}

static void beside_decoding_sequences(const test_case *c) {
    static const int orders[2][N_TEXTS] = {{0, 1, 2, 3}, {2, 3, 0, 1}};
    static float alone[DECODED][N_VOCAB];
    ath_engine *engine = open_engine(c->model);
    logits_alone(alone, engine, c->type);
    for (int o = 0; o < 2; o++) {
        ath_session *s = open_session(engine, c->type, 1024, N_TEXTS);
        for (int seq = N_TEXTS - 1; seq >= 0; seq--) append(s, seq, text[seq], prompt_length[seq]);
        for (size_t i = 0; i < DECODED; i++) {
            decode_together(s, i, orders[o]);
            assert_same_logits(ath_session_logits(s, 0), alone[i], c->model, (int64_t)i);
        }
        ath_session_close(&s);
    }
    ath_engine_close(&engine);
}

static void test_beside_decoding_sequences(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) beside_decoding_sequences(&cases[i]);
}

/* A decoding row in the same pass as 512 rows of another prompt, which gets its own logits too. */
static void beside_prefill(const test_case *c) {
    static float decoded[N_VOCAB], prefilled[N_VOCAB];
    ath_engine *engine = open_engine(c->model);
    cold_logits(decoded, engine, c->type, text[0], 389, 390);
    cold_logits(prefilled, engine, c->type, text[1], 512, 512);
    for (int first = 0; first < 2; first++) {
        ath_session *s = open_session(engine, c->type, 1024, 2);
        append(s, 0, text[0], 389);
        ath_batch_part parts[2];
        parts[first] = (ath_batch_part){0, text[0] + 389, 1};
        parts[1 - first] = (ath_batch_part){1, text[1], 512};
        MUST(ath_session_eval(s, &(ath_batch){.parts = parts, .n_parts = 2}, err));
        assert_same_logits(ath_session_logits(s, 0), decoded, c->model, 389);
        assert_same_logits(ath_session_logits(s, 1), prefilled, c->model, 511);
        ath_session_close(&s);
    }
    ath_engine_close(&engine);
}

static void test_beside_prefill(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) beside_prefill(&cases[i]);
}

/* Sequences of one session may take turns in any order. */
static void test_order_of_turns(void **state) {
    (void)state;
    static float alone[2][N_VOCAB];
    ath_engine *engine = open_engine("llama/model.gguf");
    for (int i = 0; i < 2; i++) cold_logits(alone[i], engine, "turbo3", text[i], 600, 600);
    for (int first = 0; first < 2; first++) {
        ath_session *s = open_session(engine, "turbo3", 1024, 2);
        append(s, first, text[first], 300);
        append(s, 1 - first, text[1 - first], 600);
        append(s, first, text[first] + 300, 300);
        for (int i = 0; i < 2; i++) assert_same_logits(ath_session_logits(s, i), alone[i], "turns", i);
        ath_session_close(&s);
    }
    ath_engine_close(&engine);
}

static void test_several_sessions_on_one_engine(void **state) {
    (void)state;
    static float alone[2][N_VOCAB];
    const char *types[2] = {"turbo3", "f16"};
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_session *s[2];
    for (int i = 0; i < 2; i++) {
        cold_logits(alone[i], engine, types[i], text[i], 400, 420);
        s[i] = open_session(engine, types[i], 512, 1);
    }
    for (int i = 0; i < 2; i++) append(s[i], 0, text[i], 400);
    for (size_t t = 400; t < 420; t++)
        for (int i = 0; i < 2; i++) append(s[i], 0, text[i] + t, 1);
    for (int i = 0; i < 2; i++) {
        assert_same_logits(ath_session_logits(s[i], 0), alone[i], types[i], 419);
        ath_session_close(&s[i]);
        assert_null(s[i]);
    }
    ath_engine_close(&engine);
    assert_null(engine);
}

/* ---- entry points */

/* Plain types (f16 and wider) can be entered anywhere. */
static void fork_at_entry_point(const test_case *c) {
    static ath_token mixed[1100];
    bool plain = strcmp(c->type, "f16") == 0;
    ath_engine *engine = open_engine(c->model);
    ath_session *s = open_session(engine, c->type, TEXT_TOKENS, 3);
    append(s, 0, text[0], 1500);
    assert_int_equal(ath_session_entry_before(s, 0, 1023), plain ? 1023 : 512); /* every 4 pages */
    size_t from = plain ? 1050 : 1024;
    assert_int_equal(ath_session_fork(s, 1, 0, 1050), from);
    assert_int_equal(ath_session_length(s, 1), from);
    assert_null(ath_session_logits(s, 1));
    memcpy(mixed, text[0], from * sizeof *mixed);
    memcpy(mixed + from, text[2], (1100 - from) * sizeof *mixed);
    append(s, 1, mixed + from, 1074 - from);
    decode(s, 1, mixed, 1074, 1080);
    ath_session *cold = open_session(engine, c->type, TEXT_TOKENS, 1);
    append(cold, 0, mixed, 1074);
    decode(cold, 0, mixed, 1074, 1080);
    assert_same_logits(ath_session_logits(s, 1), ath_session_logits(cold, 0), c->model, 1080);
    ath_session_clear(s, 0); /* the pages of the other one stay */
    append(s, 0, text[3], 600);
    decode(s, 1, mixed, 1080, 1085);
    decode(cold, 0, mixed, 1080, 1085);
    assert_same_logits(ath_session_logits(s, 1), ath_session_logits(cold, 0), c->model, 1085);
    ath_session_close(&cold);
    assert_int_equal(ath_session_fork(s, 2, 1, 100), plain ? 100 : 0); /* no entry point there: from the start */
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static void test_fork_at_entry_point(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) fork_at_entry_point(&cases[i]);
}

static void test_marked_entry_point(void **state) {
    (void)state;
    static float cold[N_VOCAB];
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_session *s = open_session(engine, "turbo3", TEXT_TOKENS, 2);
    append(s, 0, text[0], 750);
    MUST(ath_session_mark_entry(s, 0, err));
    append(s, 0, text[0] + 750, 400);
    assert_int_equal(ath_session_entry_before(s, 0, 750), 640);
    assert_int_equal(ath_session_fork(s, 1, 0, 750), 640);
    append(s, 1, text[0] + 640, 160);
    cold_logits(cold, engine, "turbo3", text[0], 800, 800);
    assert_same_logits(ath_session_logits(s, 1), cold, "marked entry", 800);
    MUST_FAIL(ath_session_mark_entry(s, 2, err), ATH_ERR_ARGUMENT, "sequence 2");
    ath_session_close(&s);
    ath_engine_close(&engine);
}

/* ---- cuts */

typedef struct row_log { /* logits of the last rows of text 0 */
    int64_t pos;         /* of the next row */
    float (*rows)[N_VOCAB];
    int64_t first;
    bool compare;
} row_log;

static void log_row(void *user, int part, size_t row, const float *logits) {
    row_log *log = user;
    (void)part;
    (void)row;
    if (log->pos >= log->first) {
        float *kept = log->rows[log->pos - log->first];
        if (log->compare)
            assert_same_logits(logits, kept, "after a rollback", log->pos);
        else
            memcpy(kept, logits, N_VOCAB * sizeof *logits);
    }
    log->pos++;
}

static void eval_rows(ath_session *s, row_log *log, size_t from, size_t to) {
    ath_batch_part part = {0, text[0] + from, to - from};
    log->pos = (int64_t)from;
    MUST(ath_session_eval(s, &(ath_batch){.parts = &part, .n_parts = 1, .on_logits = log_row, .user = log}, err));
    assert_int_equal(log->pos, to);
}

/* Any rollback of up to 128 tokens is exact, whatever lay there in between; far from the entry point at 512. */
static void rollback(const test_case *c, int step) {
    enum { N = 778 };
    static float rows[129][N_VOCAB];
    row_log log = {.rows = rows, .first = N - 129};
    ath_engine *engine = open_engine(c->model);
    ath_session *s = open_session(engine, c->type, 1024, 1);
    eval_rows(s, &log, 0, N);
    log.compare = true;
    for (int back = 128; back > 0; back = back > step ? back - step : back > 1) {
        /* Other tokens take the place first; then the right ones, in a pass of two rows or more, as in the first run. */
        assert_int_equal(ath_session_truncate(s, 0, N - back), N - back);
        append(s, 0, text[1], (size_t)back);
        int64_t to = back < 2 ? N - 2 : N - back;
        assert_int_equal(ath_session_truncate(s, 0, to), to);
        assert_null(ath_session_logits(s, 0));
        eval_rows(s, &log, (size_t)to, N);
    }
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static void test_rollback(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) rollback(&cases[i], i == 0 ? 1 : i == 1 ? 5 : 37);
}

/* Further back than that: to the nearest entry point, and what is said beforehand is what happens. */
static void test_long_cut(void **state) {
    (void)state;
    static float cold[N_VOCAB];
    for (int i = 0; i < 2; i++) {
        const test_case *c = &cases[i];
        ath_engine *engine = open_engine(c->model);
        ath_session *s = open_session(engine, c->type, TEXT_TOKENS, 1);
        append(s, 0, text[0], 1500);
        assert_int_equal(ath_session_truncate(s, 0, 1400), 1400);
        int64_t landing = ath_session_entry_before(s, 0, 1200);
        assert_int_equal(landing, 1024);
        assert_int_equal(ath_session_truncate(s, 0, 1200), landing);
        append(s, 0, text[0] + landing, 1250 - (size_t)landing);
        cold_logits(cold, engine, c->type, text[0], 1250, 1250);
        assert_same_logits(ath_session_logits(s, 0), cold, c->model, 1250);
        assert_int_equal(ath_session_truncate(s, 0, 5000), 1250); /* no cut */
        assert_non_null(ath_session_logits(s, 0));
        assert_int_equal(ath_session_truncate(s, 0, 0), 0);
        ath_session_close(&s);
        ath_engine_close(&engine);
    }
}

/* A context shift keeps the first tokens, drops some, and evaluates the rest again from the nearest entry point. */
static void test_context_shift(void **state) {
    (void)state;
    enum { FULL = 1280, KEPT = 600, DROPPED = 300 };
    static float fresh[N_VOCAB];
    static ath_token shifted[FULL];
    memcpy(shifted, text[0], KEPT * sizeof *shifted);
    memcpy(shifted + KEPT, text[0] + KEPT + DROPPED, (FULL - KEPT - DROPPED) * sizeof *shifted);
    for (int i = 0; i < 2; i++) {
        const test_case *c = &cases[i];
        ath_engine *engine = open_engine(c->model);
        ath_session *s = open_session(engine, c->type, FULL, 1);
        append(s, 0, text[0], 1000);
        decode(s, 0, text[0], 1000, FULL);
        MUST_FAIL(ath_session_append(s, 0, text[0], 1, err), ATH_ERR_CONTEXT, "context");
        int64_t from = ath_session_truncate(s, 0, KEPT);
        assert_int_equal(from, 512);
        append(s, 0, shifted + from, FULL - DROPPED - (size_t)from);
        cold_logits(fresh, engine, c->type, shifted, FULL - DROPPED, FULL - DROPPED);
        assert_same_logits(ath_session_logits(s, 0), fresh, c->model, FULL - DROPPED);
        ath_session_close(&s);
        ath_engine_close(&engine);
    }
}

static void test_clear(void **state) {
    (void)state;
    static float first[N_VOCAB];
    ath_engine *engine = open_engine("gemma3/model.gguf");
    cold_logits(first, engine, "turbo3", text[0], 700, 700);
    ath_session *s = open_session(engine, "turbo3", TEXT_TOKENS, 1);
    append(s, 0, text[1], 900);
    ath_session_clear(s, 0);
    assert_int_equal(ath_session_length(s, 0), 0);
    assert_null(ath_session_logits(s, 0));
    append(s, 0, text[0], 700);
    assert_same_logits(ath_session_logits(s, 0), first, "cleared", 700);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

/* ---- logits of all rows */

typedef struct seen_rows {
    int part;
    size_t row, n;
    float last[N_VOCAB];
} seen_rows;

static void see_row(void *user, int part, size_t row, const float *logits) {
    seen_rows *seen = user;
    if (part != seen->part) {
        assert_int_equal(part, seen->part + 1);
        seen->part = part;
        seen->row = 0;
    }
    assert_int_equal(row, seen->row);
    seen->row++;
    seen->n++;
    memcpy(seen->last, logits, sizeof seen->last);
}

static void test_logits_of_all_rows(void **state) {
    (void)state;
    static seen_rows seen;
    static float alone[2][N_VOCAB];
    ath_engine *engine = open_engine("llama/model-q8_0.gguf");
    for (int i = 0; i < 2; i++) cold_logits(alone[i], engine, "f16", text[i], i ? 33 : 40, i ? 33 : 40);
    ath_session *s = open_session(engine, "f16", 256, 2);
    ath_batch_part parts[2] = {{0, text[0], 40}, {1, text[1], 33}};
    MUST(ath_session_eval(s, &(ath_batch){.parts = parts, .n_parts = 2, .on_logits = see_row, .user = &seen}, err));
    assert_int_equal(seen.n, 73);
    assert_same_logits(seen.last, alone[1], "last row seen", 32);
    for (int i = 0; i < 2; i++) assert_same_logits(ath_session_logits(s, i), alone[i], "kept rows", i);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_decoding_sequences),
        cmocka_unit_test(test_beside_prefill),
        cmocka_unit_test(test_order_of_turns),
        cmocka_unit_test(test_several_sessions_on_one_engine),
        cmocka_unit_test(test_fork_at_entry_point),
        cmocka_unit_test(test_marked_entry_point),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_long_cut),
        cmocka_unit_test(test_context_shift),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_logits_of_all_rows),
    };
    return cmocka_run_group_tests_name("session", tests, fill, NULL);
}
