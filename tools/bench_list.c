/* athanor bench: flags that hold lists and ranges, and the combinations they make. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { MOST_VALUES = 4096, MOST_CASES = 100000 };

/* ---- numbers */

static int add_number(bench_list *list, int64_t value) {
    if (list->n % 16 == 0) {
        int64_t *more = realloc(list->values, (list->n + 16) * sizeof *more);
        if (!more) return ath_tool_fail("out of memory");
        list->values = more;
    }
    list->values[list->n++] = value;
    return -1;
}

/* A whole number without a sign, at most INT_MAX. */
static bool read_number(const char **text, int64_t *value) {
    const char *at = *text;
    for (*value = 0; *at >= '0' && *at <= '9'; at++)
        if ((*value = 10 * *value + (*at - '0')) > INT_MAX) return false;
    bool some = at > *text;
    *text = at;
    return some;
}

typedef struct range {
    int64_t first, last, by;
    bool multiplies;
} range;

static bool read_range(const char *text, const char *end, range *r) {
    if (!read_number(&text, &r->first)) return false;
    *r = (range){r->first, r->first, 1, false};
    if (text < end && *text == '-') {
        text++;
        if (!read_number(&text, &r->last)) return false;
        if (text < end && (*text == '+' || *text == '*')) {
            r->multiplies = *text++ == '*';
            if (!read_number(&text, &r->by)) return false;
        }
    }
    return text == end && r->first <= r->last && r->by > (r->multiplies ? 1 : 0) && (!r->multiplies || r->first > 0);
}

static int add_range(const char *name, const char *text, size_t size, int64_t low, bench_list *list) {
    range r;
    int shown = (int)(size > 40 ? 40 : size);
    if (!read_range(text, text + size, &r))
        return ath_tool_fail("%s expects numbers and ranges (16, 1-4, 0-1024+256, 512-8192*2), but got \"%.*s\"",
                             name, shown, text);
    if (r.first < low) return ath_tool_fail("%s %.*s: expected %lld or more", name, shown, text, (long long)low);
    for (int64_t value = r.first; value <= r.last; value = r.multiplies ? value * r.by : value + r.by) {
        if (list->n == MOST_VALUES) return ath_tool_fail("%s holds more than %d values", name, MOST_VALUES);
        int code = add_number(list, value);
        if (code >= 0) return code;
    }
    return -1;
}

/* Calls take for every word between commas of all that was given for a flag, or of its default. */
static int for_each_word(const ath_args *args, ath_flag_id id,
                         int (*take)(void *user, const char *name, const char *text, size_t size), void *user) {
    const ath_arg *arg = &args->values[id];
    const char *item = ath_args_item(args, id, 0);
    for (size_t i = 0; item || i == 0; item = ath_args_item(args, id, ++i)) {
        const char *text = item ? item : arg->text ? arg->text : "";
        if (item && !*item) return ath_tool_fail("%s: the value is empty", arg->name);
        for (size_t size; *text; text += size + (text[size] == ',')) {
            size = strcspn(text, ",");
            int code = take(user, arg->name ? arg->name : "", text, size);
            if (code >= 0) return code;
        }
    }
    return -1;
}

typedef struct numbers {
    int64_t low;
    bench_list *list;
} numbers;

static int take_number(void *user, const char *name, const char *text, size_t size) {
    const numbers *n = user;
    return add_range(name, text, size, n->low, n->list);
}

int bench_numbers(const ath_args *args, ath_flag_id id, int64_t low, bench_list *list) {
    *list = (bench_list){0};
    int code = for_each_word(args, id, take_number, &(numbers){low, list});
    if (code < 0 || !list->values) return code;
    free(list->values);
    *list = (bench_list){0};
    return code;
}

/* ---- words */

static int take_word(void *user, const char *name, const char *text, size_t size) {
    char ***words = user;
    size_t n = 0;
    if (!size) return ath_tool_fail("%s: there is nothing between two commas", name);
    while (*words && (*words)[n]) n++;
    if (n == MOST_VALUES) return ath_tool_fail("%s holds more than %d values", name, MOST_VALUES);
    char **more = realloc(*words, (n + 2) * sizeof *more);
    if (!more) return ath_tool_fail("out of memory");
    *words = more;
    more[n] = strndup(text, size);
    more[n + 1] = NULL;
    return more[n] ? -1 : ath_tool_fail("out of memory");
}

int bench_words(const ath_args *args, ath_flag_id id, char ***words) {
    *words = NULL;
    return for_each_word(args, id, take_word, words);
}

void bench_free_words(char **words) {
    for (size_t i = 0; words && words[i]; i++) free(words[i]);
    free(words);
}

/* ---- combinations */

typedef struct axes {
    char **models, **types_k, **types_v;
    bench_list batch, ubatch, threads, depth, prompt, gen;
    bench_list pairs; /* of -pg: prompt, generated, prompt ... */
    bench_case *cases;
    size_t n;
} axes;

/* "-pg P,N", each time one pair. */
static int read_pairs(const ath_args *args, bench_list *pairs) {
    int code = -1;
    const char *item;
    for (size_t i = 0; code < 0 && (item = ath_args_item(args, ATH_FLAG_B_PAIR, i)); i++) {
        const char *text = item;
        int64_t prompt = 0, gen = 0;
        bool good = read_number(&text, &prompt) && *text++ == ',' && read_number(&text, &gen) && !*text;
        if (!good || prompt + gen == 0)
            return ath_tool_fail("-pg expects two numbers, as in -pg 512,128, but got \"%.40s\"", item);
        code = add_number(pairs, prompt);
        if (code < 0) code = add_number(pairs, gen);
    }
    return code;
}

/* -m, and what -hf or -mu fetched. */
static int read_models(const ath_args *args, char ***models) {
    int code = bench_words(args, ATH_FLAG_B_MODEL, models);
    const char *fetched = ATH_ARG_TEXT(args, MODEL);
    if (code < 0 && !*models && fetched) code = take_word(models, "-hf", fetched, strlen(fetched));
    return code < 0 && !*models ? ath_tool_fail("no model file was named (-m MODEL.gguf)") : code;
}

static int read_axes(const ath_args *args, axes *a) {
    int code = read_models(args, &a->models);
    if (code < 0) code = bench_words(args, ATH_FLAG_B_CACHE_K, &a->types_k);
    if (code < 0) code = bench_words(args, ATH_FLAG_B_CACHE_V, &a->types_v);
    if (code < 0) code = bench_numbers(args, ATH_FLAG_B_BATCH, 1, &a->batch);
    if (code < 0) code = bench_numbers(args, ATH_FLAG_B_UBATCH, 1, &a->ubatch);
    if (code < 0) code = bench_numbers(args, ATH_FLAG_B_THREADS, 1, &a->threads);
    if (code < 0) code = bench_numbers(args, ATH_FLAG_B_DEPTH, 0, &a->depth);
    if (code < 0) code = bench_numbers(args, ATH_FLAG_B_PROMPT, 0, &a->prompt);
    if (code < 0) code = bench_numbers(args, ATH_FLAG_B_GEN, 0, &a->gen);
    if (code < 0) code = read_pairs(args, &a->pairs);
    if (code < 0 && !a->threads.n) code = add_number(&a->threads, 0);
    return code;
}

static int add_case(axes *a, bench_case c, int64_t n_prompt, int64_t n_gen) {
    c.n_prompt = n_prompt;
    c.n_gen = n_gen;
    if (n_prompt + n_gen == 0) return -1;
    if (a->n == MOST_CASES) return ath_tool_fail("more than %d combinations: shorten the lists", MOST_CASES);
    if (a->n % 64 == 0) {
        bench_case *more = realloc(a->cases, (a->n + 64) * sizeof *more);
        if (!more) return ath_tool_fail("out of memory");
        a->cases = more;
    }
    a->cases[a->n++] = c;
    return -1;
}

/* The tests of one setting: prompts, then generation, then both. */
static int add_tests(axes *a, bench_case c) {
    int code = -1;
    for (size_t i = 0; i < a->prompt.n && code < 0; i++) code = add_case(a, c, a->prompt.values[i], 0);
    for (size_t i = 0; i < a->gen.n && code < 0; i++) code = add_case(a, c, 0, a->gen.values[i]);
    for (size_t i = 0; i < a->pairs.n && code < 0; i += 2)
        code = add_case(a, c, a->pairs.values[i], a->pairs.values[i + 1]);
    return code;
}

/* Each setting is a digit of a number whose last digit runs fastest. */
static int combine(axes *a) {
    size_t n_models = 0, n_k = 0, n_v = 0;
    while (a->models[n_models]) n_models++;
    while (a->types_k[n_k]) n_k++;
    while (a->types_v[n_v]) n_v++;
    size_t sizes[] = {n_models, a->batch.n, a->ubatch.n, n_k, n_v, a->threads.n, a->depth.n}, digit[7] = {0};
    for (bool more = true; more;) {
        bench_case c = {.model = a->models[digit[0]],
                        .n_batch = (int)a->batch.values[digit[1]],
                        .n_ubatch = (int)a->ubatch.values[digit[2]],
                        .type_k = a->types_k[digit[3]],
                        .type_v = a->types_v[digit[4]],
                        .n_threads = (int)a->threads.values[digit[5]],
                        .n_depth = a->depth.values[digit[6]]};
        int code = add_tests(a, c);
        if (code >= 0) return code;
        int at = 6;
        while (at >= 0 && ++digit[at] == sizes[at]) digit[at--] = 0;
        more = at >= 0;
    }
    return a->n ? -1 : ath_tool_fail("nothing to measure: -p, -n and -pg are all 0");
}

int bench_make_cases(const ath_args *args, bench_case **cases, size_t *n, char **strings[BENCH_WORD_LISTS]) {
    axes a = {0};
    int code = read_axes(args, &a);
    if (code < 0) code = combine(&a);
    bench_list *lists[] = {&a.batch, &a.ubatch, &a.threads, &a.depth, &a.prompt, &a.gen, &a.pairs};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]->values);
    *cases = a.cases;
    *n = a.n;
    strings[0] = a.models;
    strings[1] = a.types_k;
    strings[2] = a.types_v;
    return code;
}

bool bench_same_settings(const bench_case *a, const bench_case *b) {
    return strcmp(a->model, b->model) == 0 && strcmp(a->type_k, b->type_k) == 0 &&
           strcmp(a->type_v, b->type_v) == 0 && a->n_batch == b->n_batch && a->n_ubatch == b->n_ubatch &&
           a->n_threads == b->n_threads;
}

int64_t bench_shared_context(const bench_case *cases, size_t n, size_t at) {
    int64_t most = 0;
    for (size_t i = at; i < n && bench_same_settings(&cases[i], &cases[at]); i++) {
        int64_t tokens = cases[i].n_prompt + cases[i].n_gen + cases[i].n_depth;
        if (tokens > most) most = tokens;
    }
    return most;
}
