/* The rows of flags.def as C. Shared by parsing (args.c) and help (args_help.c) only. */
#ifndef ATH_ARGS_TABLE_H
#define ATH_ARGS_TABLE_H

#include "args.h"

typedef enum ath_flag_kind {
    ATH_KIND_SWITCH,
    ATH_KIND_INT,
    ATH_KIND_FLOAT,
    ATH_KIND_TEXT,
    ATH_KIND_LIST,
    ATH_KIND_CHOICE,
    ATH_KIND_ON_OFF,
    ATH_KIND_BARE,
} ath_flag_kind;

typedef enum ath_flag_effect { ATH_EFFECT_USED, ATH_EFFECT_IGNORED, ATH_EFFECT_REFUSED } ath_flag_effect;

typedef enum ath_flag_group {
    ATH_GROUP_TOOL,
    ATH_GROUP_MODEL,
    ATH_GROUP_CONTEXT,
    ATH_GROUP_TEXT_IN,
    ATH_GROUP_SAMPLING,
    ATH_GROUP_CPU,
    ATH_GROUP_GPU,
    ATH_GROUP_OUTPUT,
    ATH_GROUP_COUNT
} ath_flag_group;

/* Columns as flags.def describes them. */
typedef struct ath_flag {
    unsigned programs;
    ath_flag_kind kind;
    ath_flag_effect effect;
    const char *names, *no_names, *env, *value, *standard;
    ath_flag_group group;
    const char *help;
} ath_flag;

extern const ath_flag ath_flags[ATH_FLAG_COUNT];

/* The next word of *list (separated by `separator`), NULL at its end; moves *list on. */
const char *ath_next_word(const char **list, char separator, size_t *size);

void ath_args_print_help(const ath_program *program, const char *name);

#endif
