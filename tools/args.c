/* Parsing of command lines. The rules are those that people's scripts rely on: "_" is "-" in long names, the
 * environment comes first, the later of two spellings wins. See args.h, and flags.def for the table. */
#include "args.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "args_table.h"
#include "tool.h"

enum {
    C = ATH_PROGRAM_C,
    T = ATH_PROGRAM_T,
    L = ATH_PROGRAM_L,
    I = ATH_PROGRAM_I,
    D = ATH_PROGRAM_D,
    X = ATH_PROGRAM_X,
    Q = ATH_PROGRAM_Q,
    P = ATH_PROGRAM_P,
    M = ATH_PROGRAM_M,
    B = ATH_PROGRAM_B
};

const ath_flag ath_flags[ATH_FLAG_COUNT] = {
#define FLAG(id, programs, kind, effect, names, no_names, env, value, standard, group, help)                 \
    {programs, ATH_KIND_##kind, ATH_EFFECT_##effect, names, no_names, env,                                   \
     value,    standard,        ATH_GROUP_##group,   help},
#include "flags.def"
#undef FLAG
};

const char *ath_next_word(const char **list, char separator, size_t *size) {
    while (**list == separator) ++*list;
    const char *word = *list;
    while (**list && **list != separator) ++*list;
    *size = (size_t)(*list - word);
    return *size ? word : NULL;
}

/* Does a separated list hold this word? */
static bool list_has(const char *list, char separator, const char *word) {
    size_t size, wanted = strlen(word);
    for (const char *w; (w = ath_next_word(&list, separator, &size));)
        if (size == wanted && memcmp(w, word, size) == 0) return true;
    return false;
}

/* ---- memory of the parse */

char *ath_args_own(ath_args *args, char *text) {
    char **more = realloc(args->owned, (args->n_owned + 1) * sizeof *more);
    if (!more || !text) {
        fputs("error: out of memory\n", stderr);
        abort();
    }
    args->owned = more;
    return more[args->n_owned++] = text;
}

static void warn(ath_args *args, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void warn(ath_args *args, const char *format, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    char **more = realloc(args->warnings, (args->n_warnings + 1) * sizeof *more);
    if (!more) return;
    args->warnings = more;
    more[args->n_warnings++] = ath_args_own(args, strdup(line));
}

static void add_item(ath_args *args, ath_flag_id id, const char *text) {
    void *more = realloc(args->list, (args->n_list + 1) * sizeof *args->list);
    if (!more) {
        fputs("error: out of memory\n", stderr);
        abort();
    }
    args->list = more;
    args->list[args->n_list].id = id;
    args->list[args->n_list++].text = text;
}

void ath_args_free(ath_args *args) {
    for (size_t i = 0; i < args->n_owned; i++) free(args->owned[i]);
    free(args->owned);
    free(args->warnings);
    free(args->list);
    *args = (ath_args){0};
}

/* ---- names */

/* The flag of this name that any of `programs` takes; *negated: it is one of the names that turn it off. */
static int find_flag(unsigned programs, const char *name, bool *negated) {
    for (int id = 0; id < ATH_FLAG_COUNT; id++) {
        if (!(ath_flags[id].programs & programs)) continue;
        *negated = list_has(ath_flags[id].no_names, ' ', name);
        if (*negated || list_has(ath_flags[id].names, ' ', name)) return id;
    }
    return -1;
}

/* Levenshtein distance, of names no longer than 63. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb) {
    size_t row[64];
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

static void nearest_name(unsigned program, const char *name, char *nearest, size_t cap) {
    size_t best = SIZE_MAX, n = strlen(name);
    if (n > 63) n = 63;
    for (int id = 0; id < ATH_FLAG_COUNT; id++) {
        if (!(ath_flags[id].programs & program)) continue;
        for (int negative = 0; negative < 2; negative++) {
            const char *list = negative ? ath_flags[id].no_names : ath_flags[id].names, *word;
            for (size_t size; (word = ath_next_word(&list, ' ', &size));) {
                size_t distance = edit_distance(name, n, word, size);
                if (distance >= best) continue;
                best = distance;
                snprintf(nearest, cap, "%.*s", (int)size, word);
            }
        }
    }
}

static int unknown_flag(const ath_args *args, const char *name) {
    bool negated;
    if (find_flag(~0u, name, &negated) >= 0)
        return ath_tool_fail("this program does not take %.60s, another one does; see -h", name);
    char nearest[64] = "";
    nearest_name(args->program->bit, name, nearest, sizeof nearest);
    return ath_tool_fail("unknown flag %.60s; the nearest known one is %s (-h shows all)", name, nearest);
}

/* ---- values: each returns false where the text is not of the kind */

static bool parse_int(const ath_flag *flag, const char *text, ath_arg *value) {
    const char *words = strchr(flag->value, '|');
    if (words && list_has(words, '|', text)) return true;
    char *end;
    errno = 0;
    value->number = strtoll(text, &end, strncasecmp(text, "0x", 2) == 0 ? 16 : 10);
    return end != text && !*end && !errno;
}

static bool parse_real(const char *text, ath_arg *value) {
    char *end;
    value->real = strtod(text, &end);
    return end != text && !*end && isfinite((float)value->real);
}

static bool is_on(const char *text) {
    return list_has("on enabled true 1", ' ', text);
}
static bool is_off(const char *text) {
    return list_has("off disabled false 0", ' ', text);
}
static bool is_auto(const char *text) {
    return list_has("auto -1", ' ', text);
}

static bool parse_on_off(const ath_flag *flag, const char *text, ath_arg *value) {
    value->on = !is_off(text);
    return is_on(text) || is_off(text) || (list_has(flag->value, '|', "auto") && is_auto(text));
}

static bool parse_value(const ath_flag *flag, const char *text, ath_arg *value) {
    value->text = text;
    switch (flag->kind) {
    case ATH_KIND_SWITCH: value->on = is_on(text); return is_on(text) || is_off(text);
    case ATH_KIND_ON_OFF:
    case ATH_KIND_BARE: return parse_on_off(flag, text, value);
    case ATH_KIND_INT: return parse_int(flag, text, value);
    case ATH_KIND_FLOAT: return parse_real(text, value);
    case ATH_KIND_CHOICE: return list_has(flag->value, '|', text);
    case ATH_KIND_TEXT:
    case ATH_KIND_LIST: break;
    }
    return true;
}

static int bad_value(const ath_flag *flag, const char *name, const char *text) {
    static const char *const expected[] = {
        [ATH_KIND_SWITCH] = "on or off", [ATH_KIND_INT] = "a whole number", [ATH_KIND_FLOAT] = "a number",
        [ATH_KIND_TEXT] = "a value",     [ATH_KIND_LIST] = "a value",       [ATH_KIND_CHOICE] = "one of",
        [ATH_KIND_ON_OFF] = "one of",    [ATH_KIND_BARE] = "one of"};
    char got[80] = "nothing";
    if (text) snprintf(got, sizeof got, "\"%.60s\"", text);
    return ath_tool_fail("%s expects %s%s%s, but got %s", name, expected[flag->kind], *flag->value ? " " : "",
                         flag->value, got);
}

/* ---- setting */

/* A refused switch may be turned off: that is what the program does anyway. */
static int check_refused(int id, const char *name, const ath_arg *value) {
    const ath_flag *flag = &ath_flags[id];
    if (flag->effect != ATH_EFFECT_REFUSED || (flag->kind == ATH_KIND_SWITCH && !value->on)) return -1;
    return ath_tool_fail("%s: %s", name, flag->help);
}

static int set(ath_args *args, int id, const char *name, const char *text, bool from_env) {
    const ath_flag *flag = &ath_flags[id];
    ath_arg value = {.name = name, .from_env = from_env}, *old = &args->values[id];
    if (!parse_value(flag, text, &value)) return bad_value(flag, name, text);
    int code = check_refused(id, name, &value);
    if (code >= 0) return code;
    if (flag->kind == ATH_KIND_LIST)
        add_item(args, (ath_flag_id)id, text);
    else if (old->name && !from_env) {
        if (old->from_env)
            warn(args, "%s takes the place of the variable %s", name, old->name);
        else
            warn(args, "%s was given twice: the last one counts", name);
    }
    *old = value;
    return -1;
}

static void set_defaults(ath_args *args) {
    for (int id = 0; id < ATH_FLAG_COUNT; id++)
        if (*ath_flags[id].standard) parse_value(&ath_flags[id], ath_flags[id].standard, &args->values[id]);
}

/* ---- environment */

static int read_variable(ath_args *args, int id, char *name) {
    const char *text = getenv(name);
    return text ? set(args, id, name, text, true) : -1;
}

/* LLAMA_ARG_NO_X, whatever its value, turns the switch LLAMA_ARG_X off. */
static int read_negation(ath_args *args, int id, const char *name) {
    char no_name[80];
    if (!*ath_flags[id].no_names || strncmp(name, "LLAMA_ARG_", 10) != 0) return -1;
    snprintf(no_name, sizeof no_name, "LLAMA_ARG_NO_%s", name + 10);
    return getenv(no_name) ? set(args, id, ath_args_own(args, strdup(no_name)), "off", true) : -1;
}

static int parse_environment(ath_args *args) {
    for (int id = 0; id < ATH_FLAG_COUNT; id++) {
        if (!(ath_flags[id].programs & args->program->bit)) continue;
        const char *list = ath_flags[id].env, *word;
        for (size_t size; (word = ath_next_word(&list, ' ', &size));) {
            char *name = ath_args_own(args, strndup(word, size));
            int code = read_variable(args, id, name);
            if (code < 0) code = read_negation(args, id, name);
            if (code >= 0) return code;
        }
    }
    return -1;
}

/* ---- command line */

/* "--flag_name=value" as a name of the table and, where there is a "=", its value. */
static char *split_flag(ath_args *args, const char *arg, const char **value) {
    char *name = ath_args_own(args, strdup(arg));
    *value = NULL;
    if (strncmp(name, "--", 2) != 0) return name;
    size_t size = strcspn(name, "=");
    if (name[size] == '=') {
        name[size] = 0;
        *value = arg + size + 1;
    }
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    return name;
}

/* Parses argv[*at], and the value behind it; leaves *at on the last one used. */
static int parse_flag(ath_args *args, int argc, char **argv, int *at) {
    const char *value;
    char *name = split_flag(args, argv[*at], &value);
    bool negated;
    int id = find_flag(args->program->bit, name, &negated);
    if (id < 0) return unknown_flag(args, name);
    const ath_flag *flag = &ath_flags[id];
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    ath_arg unused;
    if (flag->kind == ATH_KIND_SWITCH) {
        if (value) return ath_tool_fail("%s takes no value, but got \"%.60s\"", name, value);
        value = negated ? "off" : "on";
    } else if (flag->kind == ATH_KIND_BARE && !value) {
        bool has_value = next && parse_on_off(flag, next, &unused);
        value = has_value ? next : "on";
        *at += has_value;
    } else if (!value) {
        if (!next) return bad_value(flag, name, NULL);
        value = next;
        ++*at;
    }
    return set(args, id, name, value, false);
}

static int parse_command_line(ath_args *args, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        int code = -1;
        if (argv[i][0] == '-' && argv[i][1])
            code = parse_flag(args, argc, argv, &i);
        else if (args->program->positional && !args->positional)
            args->positional = argv[i];
        else
            code = ath_tool_fail("\"%.60s\" is not a flag, and no value is expected here (-h shows all)",
                                 argv[i]);
        if (code >= 0) return code;
    }
    return -1;
}

/* One line for everything that was given and does nothing. */
static void warn_ignored(ath_args *args) {
    char names[512] = "";
    size_t at = 0;
    int n = 0;
    for (int id = 0; id < ATH_FLAG_COUNT; id++) {
        const ath_flag *flag = &ath_flags[id];
        const ath_arg *value = &args->values[id];
        if (flag->effect != ATH_EFFECT_IGNORED || !value->name) continue;
        bool has_state =
            flag->kind == ATH_KIND_SWITCH || flag->kind == ATH_KIND_ON_OFF || flag->kind == ATH_KIND_BARE;
        if (has_state && value->on == !is_off(flag->standard)) continue;
        if (at < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", n ? ", " : "", value->name);
        n++;
    }
    if (n) warn(args, "without effect in this build: %s", names);
}

static void print_version(void) {
    printf("athanor %s, built with %s %s for %s\n", ATHANOR_VERSION,
#ifdef __clang__
           "clang", __clang_version__,
#else
           "gcc", __VERSION__,
#endif
#if defined __x86_64__
           "x86-64"
#elif defined __aarch64__
           "arm64"
#else
           "another CPU"
#endif
    );
}

int ath_args_parse(ath_args *args, const ath_program *program, int argc, char **argv) {
    *args = (ath_args){.program = program};
    set_defaults(args);
    for (int i = 1; i < argc; i++) /* help never fails over another flag, nor over the environment */
        if (list_has(ath_flags[ATH_FLAG_HELP].names, ' ', argv[i])) {
            ath_args_print_help(program, argv[0]);
            return 0;
        }
    int code = parse_environment(args);
    if (code < 0) code = parse_command_line(args, argc, argv);
    if (code >= 0) return code;
    if (ATH_ARG_ON(args, VERSION)) {
        print_version();
        return 0;
    }
    warn_ignored(args);
    return -1;
}

const char *ath_args_default(ath_flag_id id) {
    return ath_flags[id].standard;
}

bool ath_args_given(const ath_args *args, ath_flag_id id) {
    return args->values[id].name != NULL;
}

const char *ath_args_joined(ath_args *args, ath_flag_id id) {
    size_t size = 0;
    for (size_t at = 0; at < args->n_list; at++)
        if (args->list[at].id == id) size += strlen(args->list[at].text) + 1;
    if (!size) return NULL;
    char *text = ath_args_own(args, calloc(size, 1)), *end = text;
    for (size_t at = 0; at < args->n_list; at++)
        if (args->list[at].id == id) end += sprintf(end, "%s%s", end == text ? "" : ",", args->list[at].text);
    return text;
}

const char *ath_args_item(const ath_args *args, ath_flag_id id, size_t i) {
    for (size_t at = 0; at < args->n_list; at++)
        if (args->list[at].id == id && i-- == 0) return args->list[at].text;
    return NULL;
}
