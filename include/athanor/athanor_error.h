/* Errors of the Athanor library.
 *
 * A function that can fail returns an ath_status: ATH_OK (0) or a negative code that never changes its meaning.
 * It also fills an ath_error, if the caller passed one, with a sentence for a person: what failed, which key,
 * tensor or flag, and what to do. The library never prints and never exits. */
#ifndef ATHANOR_ERROR_H
#define ATHANOR_ERROR_H

typedef enum ath_status {
    ATH_OK = 0,
    ATH_ERR_ARGUMENT = -1,    /* the caller asked for something that makes no sense */
    ATH_ERR_IO = -2,          /* a file can't be opened, read, mapped or written */
    ATH_ERR_NOMEM = -3,       /* memory, or the budget for it, is used up */
    ATH_ERR_FORMAT = -4,      /* a file is truncated, corrupt, hostile or foreign */
    ATH_ERR_UNSUPPORTED = -5, /* valid, but this build or this model can't do it */
    ATH_ERR_CONTEXT = -6,     /* the context is full, or the prompt doesn't fit into it */
    ATH_ERR_CANCELLED = -7,   /* the caller's cancel callback said stop */
} ath_status;

typedef struct ath_error {
    ath_status code;
    char message[512]; /* one sentence, no newline, UTF-8 */
    char where[64];    /* function that failed first */
} ath_error;

#endif
