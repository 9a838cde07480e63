#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void ath_log_line(const ath_log *log, ath_log_level level, const char *format, ...) {
    if (!log || !log->fn) return;
    char line[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log->fn(log->user, level, line);
}
