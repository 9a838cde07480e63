/* Time that only moves forward. */
#ifndef ATH_BASE_CLOCK_H
#define ATH_BASE_CLOCK_H

#include <time.h>

/* Milliseconds since some moment in the past. */
static inline double ath_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
