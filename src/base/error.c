#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

ath_status ath_error_set(ath_error *err, ath_status code, const char *where, const char *format, ...) {
    if (!err) return code;
    err->code = code;
    snprintf(err->where, sizeof err->where, "%s", where);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return code;
}
