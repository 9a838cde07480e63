/* Command lines of all programs, parsed from the one table of flags.def: names and old spellings,
 * environment, defaults, help, warnings for what has no effect and refusals for what can't be done yet. */
#ifndef ATH_ARGS_H
#define ATH_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Programs: bits of the table's second column. */
enum {
    ATH_PROGRAM_C = 1,  /* completion */
    ATH_PROGRAM_T = 2,  /* tokenize */
    ATH_PROGRAM_L = 4,  /* logits */
    ATH_PROGRAM_I = 8,  /* inspect */
    ATH_PROGRAM_D = 16, /* distortion */
    ATH_PROGRAM_X = 32, /* perplexity */
    ATH_PROGRAM_Q = 64, /* quality */
    ATH_PROGRAM_P = 128, /* plan */
    ATH_PROGRAM_M = 512, /* models */
    ATH_PROGRAM_B = 256, /* bench */
};

typedef struct ath_program {
    unsigned bit;
    const char *usage; /* what follows the name in the first line of help */
    const char *about; /* one line */
    bool positional;   /* takes one argument without a flag */
} ath_program;

typedef enum ath_flag_id {
#define FLAG(id, ...) ATH_FLAG_##id,
#include "flags.def"
#undef FLAG
    ATH_FLAG_COUNT
} ath_flag_id;

typedef struct ath_arg {
    const char *text; /* NULL: neither given nor a default */
    const char *name; /* as it was spelled, or the variable's name; NULL: default */
    bool from_env;
    bool on;        /* SWITCH; ON_OFF and BARE: not "off" */
    int64_t number; /* INT */
    double real;    /* FLOAT */
} ath_arg;

typedef struct ath_args {
    const ath_program *program;
    ath_arg values[ATH_FLAG_COUNT];
    const char *positional; /* NULL: none */
    struct {
        ath_flag_id id;
        const char *text;
    } * list; /* every LIST flag, in order */
    size_t n_list;
    char **warnings; /* lines to be shown once the log is open */
    size_t n_warnings;
    char **owned; /* strings made while parsing */
    size_t n_owned;
} ath_args;

/* Environment, then the command line. Strings of argv and of the environment are kept by address. Returns -1,
 * or the exit code where the program is done: 0 after help or version, 1 after an error line on stderr. */
int ath_args_parse(ath_args *args, const ath_program *program, int argc, char **argv);
void ath_args_free(ath_args *args);

/* Keeps a malloc'd string as long as args; the same string. Ends the program when text is NULL: out of memory. */
char *ath_args_own(ath_args *args, char *text);

/* The default, as text; "" for none. */
const char *ath_args_default(ath_flag_id id);
/* Given on the command line or in the environment. */
bool ath_args_given(const ath_args *args, ath_flag_id id);
/* All values of a LIST flag with commas between; NULL: none. Lives as long as args. */
const char *ath_args_joined(ath_args *args, ath_flag_id id);
/* The value of a LIST flag, i counted from 0; NULL past the last one. */
const char *ath_args_item(const ath_args *args, ath_flag_id id, size_t i);

#define ATH_ARG_ON(args, ID)    ((args)->values[ATH_FLAG_##ID].on)
#define ATH_ARG_INT(args, ID)   ((args)->values[ATH_FLAG_##ID].number)
#define ATH_ARG_REAL(args, ID)  ((args)->values[ATH_FLAG_##ID].real)
#define ATH_ARG_TEXT(args, ID)  ((args)->values[ATH_FLAG_##ID].text)
#define ATH_ARG_GIVEN(args, ID) ath_args_given((args), ATH_FLAG_##ID)

#endif
