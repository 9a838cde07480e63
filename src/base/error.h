/* How the library fills an ath_error. See include/athanor/athanor_error.h for the contract. */
#ifndef ATH_BASE_ERROR_H
#define ATH_BASE_ERROR_H

#include "athanor/athanor_error.h"

/* Fills *err (may be NULL) and returns code, so that a failing function can `return ATH_FAIL(err, ...)`.
 * The message is cut at the size of ath_error.message. */
ath_status ath_error_set(ath_error *err, ath_status code, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define ATH_FAIL(err, code, ...) ath_error_set((err), (code), __func__, __VA_ARGS__)

/* Passes a failure on: `ATH_TRY(expression returning ath_status)`. */
#define ATH_TRY(expression)                                                                                  \
    do {                                                                                                     \
        ath_status try_status_ = (expression);                                                               \
        if (try_status_ != ATH_OK) return try_status_;                                                       \
    } while (0)

#endif
