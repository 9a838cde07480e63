/* The sub-commands of the program, and what they share. Tools include public headers only. */
#ifndef ATH_TOOL_H
#define ATH_TOOL_H

#include <stdio.h>

#include "athanor/athanor.h"

/* Each takes its own arguments (argv[0] is the name it was called by) and returns the exit code. */
int ath_tool_completion(int argc, char **argv);
int ath_tool_tokenize(int argc, char **argv);
int ath_tool_inspect(int argc, char **argv);
int ath_tool_logits(int argc, char **argv);
int ath_tool_distortion(int argc, char **argv);

/* "error: ..." as one line on stderr; returns 1, the exit code of every failure. */
int ath_tool_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
