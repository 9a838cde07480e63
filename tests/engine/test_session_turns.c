/* Speculation and conversations: text is appended, answered token by token, rolled back, edited in the middle, and goes on.
 * After all that the logits are, bit for bit, those of a straight run over the same tokens. "The same" includes how a
 * token was evaluated, alone or among others, as the two paths round turbo pages differently. */
#include "engine/session_fixture.h"

enum { MAX_LENGTH = 1000, N_OPS = 45 }; /* below N_UBATCH: an append is one pass */

static const test_case cases[] = {
    {"llama/model.gguf", "turbo3_tcq"},
    {"gemma3/model.gguf", "turbo4"},
    {"llama/model-q8_0.gguf", "q8_0"},
    {"llama/model.gguf", "turbo2:plain"},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

typedef struct talk {
    ath_engine *engine;
    const test_case *c;
    ath_session *s;
    ath_token tokens[MAX_LENGTH + 1];
    bool alone[MAX_LENGTH + 1]; /* this token was evaluated by itself */
    size_t n;
    size_t back; /* tokens taken back since as many came */
    uint64_t random;
} talk;

static size_t draw(talk *t, size_t low, size_t high) {
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return low + (size_t)(t->random >> 33) % (high - low + 1);
}

/* Tokens [from, to) again, each as it was first evaluated. One that was among others and is the only one left brings a
 * companion, which is taken back. */
static void replay(const talk *t, ath_session *s, size_t from, size_t to) {
    while (from < to) {
        size_t end = from + 1;
        while (end < to && !t->alone[from] && !t->alone[end]) end++;
        if (end == from + 1 && !t->alone[from]) {
            ath_token pair[2] = {t->tokens[from], 3};
            append(s, 0, pair, 2);
            assert_int_equal(ath_session_truncate(s, 0, (int64_t)end), end);
        } else
            append(s, 0, t->tokens + from, end - from);
        from = end;
    }
}

static void check_against_straight_run(const talk *t) {
    ath_session *cold = open_session(t->engine, t->c->type, 1024, 1);
    replay(t, cold, 0, t->n);
    assert_same_logits(ath_session_logits(t->s, 0), ath_session_logits(cold, 0), t->c->type, (int64_t)t->n);
    ath_session_close(&cold);
}

static void say(talk *t, size_t n, bool alone) {
    if (n > MAX_LENGTH - t->n) n = MAX_LENGTH - t->n;
    if (n < 2 && !alone) return;
    for (size_t i = 0; i < n; i++) {
        t->tokens[t->n + i] = (ath_token)draw(t, 3, N_VOCAB - 1);
        t->alone[t->n + i] = alone;
    }
    replay(t, t->s, t->n, t->n + n);
    t->n += n;
    t->back = t->back > n ? t->back - n : 0;
    check_against_straight_run(t);
}

/* Up to 128 tokens back nothing is evaluated again: in all, until as many have come again. */
static void roll_back(talk *t, size_t n) {
    if (n > 128 - t->back) n = 128 - t->back;
    t->back += n;
    t->n -= n;
    assert_int_equal(ath_session_truncate(t->s, 0, (int64_t)t->n), t->n);
}

/* The text goes on differently from any point: back to where it can be entered, and what is missing comes again. */
static void edit(talk *t, size_t at) {
    int64_t entry = ath_session_entry_before(t->s, 0, (int64_t)at), landed = ath_session_truncate(t->s, 0, (int64_t)at);
    assert_true(landed <= (int64_t)at && landed >= entry);
    assert_int_equal(ath_session_length(t->s, 0), landed);
    replay(t, t->s, (size_t)landed, at);
    t->n = at;
    t->back = 128;
}

static void converse(const test_case *c, uint64_t seed) {
    static talk t;
    t = (talk){.engine = open_engine(c->model), .c = c, .random = seed};
    t.s = open_session(t.engine, c->type, 1024, 1);
    say(&t, 620, false);
    for (int i = 0; i < N_OPS; i++) {
        switch (draw(&t, 0, 5)) {
        case 0: say(&t, draw(&t, 2, 150), false); break;
        case 1: say(&t, draw(&t, 1, 6), true); break;
        case 2: roll_back(&t, draw(&t, 1, 128)); break;
        case 3: edit(&t, draw(&t, t.n / 2, t.n)); break;
        case 4: MUST(ath_session_mark_entry(t.s, 0, err)); break;
        default: roll_back(&t, t.n > 700 ? 128 : 1);
        }
        if (t.n < 600) say(&t, 620 - t.n, false);
    }
    say(&t, 3, true);
    ath_session_stats stats;
    ath_session_get_stats(t.s, &stats);
    assert_true(stats.k_rows_compressed > 0 && stats.v_rows_compressed > 0);
    ath_session_close(&t.s);
    ath_engine_close(&t.engine);
}

static void test_conversations(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) converse(&cases[i], 11 + (uint64_t)i);
}

static int fill(void **state) {
    (void)state;
    fill_texts();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations),
    };
    return cmocka_run_group_tests_name("session turns", tests, fill, NULL);
}
