/* Help from the table of flags: grouped, one line each, with defaults. */
#include <stdio.h>
#include <string.h>

#include "args_table.h"

enum { HELP_COLUMN = 40 };

static const char *const group_titles[ATH_GROUP_COUNT] = {
    [ATH_GROUP_TOOL] = "This tool",
    [ATH_GROUP_MODEL] = "Model",
    [ATH_GROUP_CONTEXT] = "Context and KV cache",
    [ATH_GROUP_TEXT_IN] = "Text",
    [ATH_GROUP_SAMPLING] = "Sampling",
    [ATH_GROUP_CPU] = "CPU",
    [ATH_GROUP_GPU] = "GPU",
    [ATH_GROUP_OUTPUT] = "Output and logs",
};

static size_t put_names(char *buf, size_t cap, size_t at, const char *names) {
    const char *word;
    for (size_t size; (word = ath_next_word(&names, ' ', &size)) && at < cap;)
        at += (size_t)snprintf(buf + at, cap - at, "%s%.*s", at ? ", " : "", (int)size, word);
    return at;
}

static void print_flag(const ath_flag *flag) {
    char left[256] = "";
    size_t at = put_names(left, sizeof left, 0, flag->names);
    at = put_names(left, sizeof left, at, flag->no_names);
    if (*flag->value && at < sizeof left) snprintf(left + at, sizeof left - at, " %s", flag->value);
    printf("  %-*s  %s", HELP_COLUMN - 4, left, flag->help);
    if (*flag->standard && (flag->kind != ATH_KIND_SWITCH || *flag->no_names))
        printf(" (default: %s)", flag->standard);
    puts(flag->effect == ATH_EFFECT_IGNORED ? " [no effect yet]" : "");
}

static void print_group(const ath_program *program, ath_flag_group group) {
    bool titled = false;
    for (int id = 0; id < ATH_FLAG_COUNT; id++) {
        const ath_flag *flag = &ath_flags[id];
        if (flag->group != group || !(flag->programs & program->bit) || flag->effect == ATH_EFFECT_REFUSED)
            continue;
        if (!titled) printf("\n%s\n", group_titles[group]);
        titled = true;
        print_flag(flag);
    }
}

/* Flags that are known and can't be obeyed: their names, so that nobody has to search for them. */
static void print_refused(const ath_program *program) {
    size_t column = 0;
    for (int id = 0; id < ATH_FLAG_COUNT; id++) {
        const ath_flag *flag = &ath_flags[id];
        if (flag->effect != ATH_EFFECT_REFUSED || !(flag->programs & program->bit)) continue;
        char names[128] = "";
        size_t size = put_names(names, sizeof names, 0, flag->names);
        if (!column) printf("\nRefused, because the text would be another one without them\n ");
        if (column) putchar(';');
        if (column + size > 90) printf("\n "), column = 0;
        column += size + 2;
        printf(" %s", names);
    }
    if (column) putchar('\n');
}

void ath_args_print_help(const ath_program *program, const char *name) {
    printf("usage: %s %s\n%s\n", name, program->usage, program->about);
    for (int group = 0; group < ATH_GROUP_COUNT; group++) print_group(program, (ath_flag_group)group);
    print_refused(program);
}
