/* llama-perplexity --hellaswag, --winogrande, --multiple-choice: which of several texts does the model find
 * likeliest? The texts of a task share their beginning, which is evaluated once. The files are those of the
 * public data sets as people keep them for llama.cpp; docs/quality.md says what each looks like. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perplexity.h"

enum { MAX_ANSWERS = 16, MIN_TRAILING = 3 };

typedef struct task {
    char *text[MAX_ANSWERS];        /* malloc'd */
    size_t choice_end[MAX_ANSWERS]; /* Winogrande: bytes of the text up to the end of the choice; else 0 */
    int n, right;
} task;

typedef struct task_set {
    perplexity *p;
    const char *name;
    task *tasks;
    size_t n, cap, wanted; /* wanted: tasks to run */
    bool winogrande;
    ath_token *tokens[MAX_ANSWERS]; /* of the present task */
    size_t n_tokens[MAX_ANSWERS];
    const ath_token *scored; /* while a text is evaluated */
    size_t last;             /* rows up to here count */
    double sum;
    size_t n_right;
    double chance; /* summed */
    ath_progress progress;
} task_set;

static int no_memory(void) {
    return ath_tool_fail("out of memory");
}

/* Room for one more task, NULL if there is none. */
static task *new_task(task_set *set) {
    if (set->n == set->cap) {
        size_t cap = set->cap ? 2 * set->cap : 1024;
        task *more = realloc(set->tasks, cap * sizeof *more);
        if (!more) return NULL;
        set->tasks = more;
        set->cap = cap;
    }
    set->tasks[set->n] = (task){0};
    return &set->tasks[set->n++];
}

/* first + second + third, malloc'd. */
static char *join(const char *first, size_t n1, const char *second, size_t n2, const char *third, size_t n3) {
    char *text = malloc(n1 + n2 + n3 + 1);
    if (!text) return NULL;
    memcpy(text, first, n1);
    memcpy(text + n1, second, n2);
    memcpy(text + n1 + n2, third, n3);
    text[n1 + n2 + n3] = 0;
    return text;
}

/* The next line of the text without its end; false past the last. */
static bool next_line(char **at, char **line, size_t *size) {
    if (!**at) return false;
    *line = *at;
    *size = strcspn(*at, "\n");
    *at += *size;
    if (**at) ++*at;
    if (*size && (*line)[*size - 1] == '\r') --*size;
    return true;
}

/* ---- files */

/* Lines end where C strings do: a file with a NUL byte would lose what is behind it. */
static int check_text(const char *text, size_t size) {
    const char *end = memchr(text, 0, size);
    if (!end) return -1;
    return ath_tool_fail("the file of tasks has a NUL byte at offset %zu: it must be text",
                         (size_t)(end - text));
}

/* Six lines a task: the beginning, the number of the right ending (0 to 3), four endings. */
static int parse_hellaswag(task_set *set, char *text, size_t text_size) {
    char *line, *start;
    size_t size, start_size;
    if (check_text(text, text_size) >= 0) return 1;
    while (next_line(&text, &start, &start_size)) {
        if (!start_size && !*text) break;
        if (!next_line(&text, &line, &size) || size != 1 || line[0] < '0' || line[0] > '3')
            return ath_tool_fail("HellaSwag task %zu: its second line is no number from 0 to 3", set->n + 1);
        task *t = new_task(set);
        if (!t) return no_memory();
        t->right = line[0] - '0';
        for (t->n = 0; t->n < 4; t->n++) {
            if (!next_line(&text, &line, &size))
                return ath_tool_fail("HellaSwag task %zu is cut short", set->n);
            t->text[t->n] = join(start, start_size, " ", 1, line, size);
            if (!t->text[t->n]) return no_memory();
        }
    }
    return -1;
}

/* One field of a CSV line, quotes removed in place; "" in quotes is one. Moves *at behind the comma. */
static bool next_field(char **at, char *end, char **field, size_t *size) {
    if (*at > end) return false;
    char *in = *at, *out = *at;
    bool quoted = in < end && *in == '"';
    *field = out;
    if (quoted) in++;
    for (; in < end && (quoted || *in != ','); in++) {
        if (quoted && *in == '"') {
            if (in + 1 < end && in[1] == '"')
                in++;
            else {
                quoted = false;
                continue;
            }
        }
        *out++ = *in;
    }
    *size = (size_t)(out - *field);
    *at = in + 1;
    return true;
}

/* Lines: number, sentence with "_" for the choice, choice 1, choice 2, 1 or 2. */
static int parse_winogrande(task_set *set, char *text, size_t text_size) {
    char *line, *field[5];
    size_t size, sizes[5];
    if (check_text(text, text_size) >= 0) return 1;
    while (next_line(&text, &line, &size)) {
        char *at = line, *end = line + size;
        int n = 0;
        while (n < 5 && next_field(&at, end, &field[n], &sizes[n])) n++;
        char *gap = n == 5 ? memchr(field[1], '_', sizes[1]) : NULL;
        bool ok = gap && sizes[4] == 1 && (field[4][0] == '1' || field[4][0] == '2');
        if (!ok && !size) continue;
        if (!ok)
            return ath_tool_fail("Winogrande: line %zu is not NUMBER,SENTENCE WITH _,CHOICE,CHOICE,1 OR 2",
                                 set->n + 1);
        task *t = new_task(set);
        if (!t) return no_memory();
        t->right = field[4][0] - '1';
        size_t before = (size_t)(gap - field[1]);
        for (t->n = 0; t->n < 2; t->n++) {
            t->text[t->n] =
                join(field[1], before, field[2 + t->n], sizes[2 + t->n], gap + 1, sizes[1] - before - 1);
            t->choice_end[t->n] = before + sizes[2 + t->n];
            if (!t->text[t->n]) return no_memory();
        }
    }
    return -1;
}

typedef struct bytes {
    const char *at;
    size_t left;
} bytes;

static bool take(bytes *b, void *out, size_t n) {
    if (b->left < n) return false;
    if (out) memcpy(out, b->at, n);
    b->at += n;
    b->left -= n;
    return true;
}

static bool take_string(bytes *b, const char **text, size_t *size) {
    uint32_t n;
    if (!take(b, &n, sizeof n) || n > b->left) return false;
    *text = b->at;
    *size = n;
    return take(b, NULL, n);
}

/* Count, strings, one i32 per string: 1 for the right ones. With t: its texts; the first right one counts. */
static int take_answers(bytes *b, task *t, const char *question, size_t question_size) {
    uint32_t n;
    if (!take(b, &n, sizeof n)) return ath_tool_fail("the file of tasks is cut short");
    if (t && (n < 2 || n > MAX_ANSWERS))
        return ath_tool_fail("a task with %u answers: 2 to %d can be", n, MAX_ANSWERS);
    for (uint32_t i = 0; i < n; i++) {
        const char *text;
        size_t size;
        if (!take_string(b, &text, &size)) return ath_tool_fail("the file of tasks is cut short");
        if (!t) continue;
        t->text[t->n] = join(question, question_size, " ", 1, text, size);
        if (!t->text[t->n++]) return no_memory();
    }
    if (t) t->right = -1;
    for (uint32_t i = 0; i < n; i++) {
        int32_t label;
        if (!take(b, &label, sizeof label)) return ath_tool_fail("the file of tasks is cut short");
        if (t && label == 1 && t->right < 0) t->right = (int)i;
    }
    return !t || t->right >= 0 ? -1 : ath_tool_fail("a task without a right answer");
}

/* u32 n, u32 offset of each task, tasks one after another: question, answers with one right, answers with
 * several (which are not used). Strings have a u32 for their size. */
static int parse_multiple_choice(task_set *set, char *text, size_t text_size) {
    bytes b = {text, text_size};
    uint32_t n;
    if (!take(&b, &n, sizeof n) || !take(&b, NULL, (size_t)n * sizeof n))
        return ath_tool_fail("the file of tasks is cut short");
    for (uint32_t i = 0; i < n; i++) {
        const char *question;
        size_t size;
        task *t = new_task(set);
        if (!t) return no_memory();
        if (!take_string(&b, &question, &size)) return ath_tool_fail("the file of tasks is cut short");
        int code = take_answers(&b, t, question, size);
        if (code < 0) code = take_answers(&b, NULL, NULL, 0);
        if (code >= 0) return code;
    }
    return -1;
}

/* ---- scores */

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Tokens that all texts of the task begin with; at least one is left of each. */
static size_t common_tokens(const task_set *set, int n) {
    size_t common = set->n_tokens[0] - 1;
    for (int i = 1; i < n; i++) {
        size_t same = 0, most = least(common, set->n_tokens[i] - 1);
        while (same < most && set->tokens[i][same] == set->tokens[0][same]) same++;
        common = same;
    }
    return common;
}

static void add_row(void *user, size_t i, const float *logits) {
    task_set *set = user;
    if (i < set->last)
        set->sum += (double)logits[set->scored[i + 1]] - ath_log_sum_exp(logits, set->p->n_vocab, NULL);
}

/* Mean log-probability of the tokens [from, end) of text i, whose first `common` are the cache's already or
 * shared. */
static int score_text(task_set *set, int i, size_t from, size_t end, double *score) {
    perplexity *p = set->p;
    ath_error err;
    set->sum = 0;
    set->scored = set->tokens[i];
    set->last = end - 1;
    ath_session_clear(p->session, 0);
    ath_status status =
        ath_tool_evaluate(p->session, set->tokens[i], end - 1, p->n_ubatch, from - 1, add_row, set, &err);
    if (status == ATH_ERR_CANCELLED) return ATH_EXIT_INTERRUPTED;
    if (status != ATH_OK) return ath_tool_fail("%s", err.message);
    *score = set->sum / (double)(end - from);
    return -1;
}

/* Where scoring starts and ends in each text. Winogrande scores what follows the choice, without the last
 * token, if enough follows; the others all that is not common. */
static int scored_range(const task_set *set, const task *t, size_t from[], size_t end[]) {
    size_t common = common_tokens(set, t->n);
    bool skip_choice = set->winogrande;
    for (int i = 0; i < t->n; i++)
        if (set->n_tokens[i] <= common + MIN_TRAILING) skip_choice = false;
    for (int i = 0; i < t->n; i++) {
        from[i] = common ? common : 1;
        end[i] = set->n_tokens[i];
        if (skip_choice) {
            ath_token *base = ath_tool_tokens(set->p->engine, t->text[i], t->choice_end[i], &from[i]);
            if (!base) return 1;
            free(base);
            from[i] = least(from[i] ? from[i] : 1, set->n_tokens[i] - 1);
        }
        if (set->winogrande && end[i] - from[i] > 1) end[i]--;
    }
    return -1;
}

static int tokenize_task(task_set *set, const task *t) {
    for (int i = 0; i < t->n; i++) {
        set->tokens[i] = ath_tool_tokens(set->p->engine, t->text[i], strlen(t->text[i]), &set->n_tokens[i]);
        if (!set->tokens[i]) return 1;
        if (set->n_tokens[i] < 2) return ath_tool_fail("a text of a task has fewer than two tokens");
        if ((int64_t)set->n_tokens[i] > ath_session_n_ctx(set->p->session))
            return ath_tool_fail("a task has a text of %zu tokens: raise -c", set->n_tokens[i]);
    }
    return -1;
}

static int run_task(task_set *set, const task *t) {
    size_t from[MAX_ANSWERS], end[MAX_ANSWERS];
    double best = -INFINITY, score = 0;
    int guess = 0, code = tokenize_task(set, t);
    if (code < 0) code = scored_range(set, t, from, end);
    for (int i = 0; i < t->n && code < 0; i++) {
        code = score_text(set, i, from[i], end[i], &score);
        if (code < 0 && score > best) best = score, guess = i;
    }
    for (int i = 0; i < t->n; i++) {
        free(set->tokens[i]);
        set->tokens[i] = NULL;
    }
    if (code >= 0) return code;
    set->n_right += guess == t->right;
    set->chance += 1.0 / t->n;
    return -1;
}

/* ---- the run */

/* Moves the wanted number of tasks to the front: a seeded draw, the same each time. */
static void draw_tasks(task_set *set, int64_t wanted) {
    set->wanted = wanted > 0 && (size_t)wanted < set->n ? (size_t)wanted : set->n;
    if (set->wanted == set->n) return;
    uint64_t state = 1;
    for (size_t i = 0; i < set->wanted; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t j = i + (size_t)(state >> 33) % (set->n - i);
        task moved = set->tasks[i];
        set->tasks[i] = set->tasks[j];
        set->tasks[j] = moved;
    }
}

static int run_tasks(task_set *set) {
    perplexity *p = set->p;
    size_t done = 0;
    ath_progress_start(&set->progress, set->name, (double)set->wanted, true);
    printf("task\tright\t95%% confidence\n");
    while (done < set->wanted && !ath_tool_interrupted) {
        int code = run_task(set, &set->tasks[done]);
        if (code == ATH_EXIT_INTERRUPTED) break;
        if (code >= 0) return code;
        double n = (double)++done, share = (double)set->n_right / n, z = 1.96;
        double middle = (share + z * z / (2 * n)) / (1 + z * z / n); /* Wilson */
        double half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n));
        printf("%zu\t%.8f%%\t[%.4f%%, %.4f%%]\n", done, 100 * share, 100 * (middle - half),
               100 * (middle + half));
        fflush(stdout);
        ath_progress_show(&set->progress, n);
    }
    ath_progress_end(&set->progress);
    double n = (double)done, share = done ? (double)set->n_right / n : 0;
    double error = done > 1 ? sqrt(share * (1 - share) / (n - 1)) : 0;
    if (done)
        printf("Final %s score(%zu tasks): %.4f +/- %.4f; random chance: %.4f\n", set->name, done,
               100 * share, 100 * error, 100 * set->chance / n);
    if (p->json) {
        cJSON_AddStringToObject(p->json, "mode", set->name);
        cJSON_AddNumberToObject(p->json, "tasks", n);
        cJSON_AddNumberToObject(p->json, "right", share);
        cJSON_AddNumberToObject(p->json, "right_err", error);
        cJSON_AddNumberToObject(p->json, "chance", done ? set->chance / n : 0);
    }
    return done < set->wanted ? ATH_EXIT_INTERRUPTED : -1;
}

static int run_set(task_set *set, int (*parse)(task_set *, char *, size_t), int64_t wanted) {
    char *text;
    size_t size;
    int code = ath_tool_read_text(set->p->args, false, &text, &size);
    if (code >= 0) return code;
    code = parse(set, text, size);
    if (code < 0 && !set->n) code = ath_tool_fail("there are no tasks: -f names their file");
    if (code < 0) code = ath_perplexity_open_session(set->p, ATH_ARG_INT(set->p->args, X_CTX_SIZE));
    if (code < 0) {
        draw_tasks(set, wanted);
        code = run_tasks(set);
    }
    for (size_t i = 0; i < set->n; i++)
        for (int j = 0; j < MAX_ANSWERS; j++) free(set->tasks[i].text[j]);
    free(set->tasks);
    free(text);
    return code;
}

int ath_perplexity_hellaswag(perplexity *p) {
    task_set set = {.p = p, .name = "HellaSwag"};
    return run_set(&set, parse_hellaswag, ATH_ARG_INT(p->args, HELLASWAG_TASKS));
}

int ath_perplexity_winogrande(perplexity *p) {
    task_set set = {.p = p, .name = "Winogrande", .winogrande = true};
    return run_set(&set, parse_winogrande, ATH_ARG_INT(p->args, WINOGRANDE_TASKS));
}

int ath_perplexity_multiple_choice(perplexity *p) {
    task_set set = {.p = p, .name = "multiple choice"};
    return run_set(&set, parse_multiple_choice, ATH_ARG_INT(p->args, MULTIPLE_CHOICE_TASKS));
}
