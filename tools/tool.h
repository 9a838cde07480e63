/* The sub-commands of the program, and what they share. Tools include public headers only. */
#ifndef ATH_TOOL_H
#define ATH_TOOL_H

#include <signal.h>
#include <stdio.h>

#include "args.h"
#include "athanor/athanor.h"

/* Each takes its own arguments (argv[0] is the name it was called by) and returns the exit code. */
int ath_tool_completion(int argc, char **argv);
int ath_tool_tokenize(int argc, char **argv);
int ath_tool_inspect(int argc, char **argv);
int ath_tool_logits(int argc, char **argv);
int ath_tool_distortion(int argc, char **argv);
int ath_tool_perplexity(int argc, char **argv);
int ath_tool_quality(int argc, char **argv);
int ath_tool_plan(int argc, char **argv);
int ath_tool_models(int argc, char **argv);
int ath_tool_bench(int argc, char **argv);

/* "error: ..." as one line on stderr; returns 1, the exit code of every failure. */
int ath_tool_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Parses the command line, opens the log, shows the parser's warnings, and sees to it that a model named by -hf or -mu
 * is there (hub.h). Returns -1, or the exit code. */
int ath_tool_begin(ath_args *args, const ath_program *program, int argc, char **argv);

/* The log: lines for people on stderr (and in --log-file), as loud as -lv says. Levels as in ath_log_level.
 */
int ath_tool_log_open(const ath_args *args);
void ath_tool_log(ath_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool ath_tool_logs(ath_log_level level); /* is it that loud? */
void ath_tool_log_callback(void *user, ath_log_level level, const char *line);

/* Where threads run, from the flags; prefill's as decode's unless one of its own was given. */
int ath_tool_placements(const ath_args *args, ath_placement *decode, ath_placement *batch);

/* Flags to parameters. Strings live as long as args. Return -1, or 1 after an error line. */
/* Of an engine that is only asked about its file. */
ath_engine_params ath_tool_metadata_params(const ath_args *args);
int ath_tool_engine_params(const ath_args *args, ath_engine_params *params);
int ath_tool_session_params(const ath_args *args, ath_session_params *params);

/* "turbo3", or "q8_0/turbo3" for K and V apart, as in --types. -1, or 1 after an error line. */
enum { ATH_TYPE_NAME = 32 };
int ath_tool_split_types(const char *name, size_t size, char type_k[ATH_TYPE_NAME], char type_v[ATH_TYPE_NAME]);

/* After this the first Ctrl+C sets ath_tool_interrupted, the second kills. */
void ath_tool_catch_interrupt(void);
extern volatile sig_atomic_t ath_tool_interrupted;
/* Evaluation in this session then ends with ATH_ERR_CANCELLED within a layer's time. */
void ath_tool_stop_on_interrupt(ath_session *session);
enum { ATH_EXIT_INTERRUPTED = 130 }; /* as a shell reports SIGINT */

/* A whole file ("-": standard input), malloc'd, NUL behind it. NULL after an error line. */
char *ath_tool_read_file(const char *path, size_t *size);

/* The text of -p (escapes replaced if wanted), -f (one newline at the end dropped) or -bf; malloc'd, "" if
 * none was given. -1, or 1 after an error line. */
int ath_tool_read_text(const ath_args *args, bool escapes, char **text, size_t *size);

/* Replaces C escapes (\n \t \r \" \' \\ \xHH) in place; others stay as they are. Returns the new size. */
size_t ath_tool_unescape(char *text, size_t size);
/* Flushes stdout: 0, or 1 after an error line (a reader that went away is no error). */
int ath_tool_flush(void);

/* A file that appears under its name only when it is complete. */
typedef struct ath_outfile {
    FILE *file;
    const char *path;
    char *temporary; /* NULL: written in place, because the path is a device or a pipe */
} ath_outfile;
int ath_outfile_open(ath_outfile *out, const char *path);
/* Both return 0, or 1 after an error line. After commit or abandon the handle is empty; abandoning an empty
 * one is fine. */
int ath_outfile_commit(ath_outfile *out);
void ath_outfile_abandon(ath_outfile *out);

/* Milliseconds of a clock that never jumps. */
double ath_tool_now_ms(void);

#endif
