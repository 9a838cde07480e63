/* The library's only way to speak: the caller's callback, one line at a time, no newline. */
#ifndef ATH_BASE_LOG_H
#define ATH_BASE_LOG_H

#include "athanor/athanor.h"

typedef struct ath_log {
    ath_log_fn fn; /* NULL: silent */
    void *user;
} ath_log;

/* Formats one line (cut at 1000 bytes) and hands it to the callback. log may be NULL. */
void ath_log_line(const ath_log *log, ath_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
