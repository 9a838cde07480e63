/* The codes of turbo pages as constants, so that the loops that unpack them are compiled for each. */
#ifndef ATH_KERNELS_UNPACK_KIND_H
#define ATH_KERNELS_UNPACK_KIND_H

/* As in ath_turbo_code. */
typedef struct ath_unpack_kind {
    int k, L, w;
} ath_unpack_kind;

/* body(kind) for the kind of a code, a constant in each call. */
#define ATH_UNPACK_DISPATCH(code, body)                                                                      \
    do {                                                                                                     \
        if ((code)->L == 2)                                                                                  \
            body(((ath_unpack_kind){2, 2, 2}));                                                              \
        else if ((code)->L == 3)                                                                             \
            body(((ath_unpack_kind){3, 3, 3}));                                                              \
        else if ((code)->L == 4)                                                                             \
            body(((ath_unpack_kind){4, 4, 4}));                                                              \
        else if ((code)->L == 6)                                                                             \
            body(((ath_unpack_kind){2, 6, 4}));                                                              \
        else if ((code)->L == 7)                                                                             \
            body(((ath_unpack_kind){3, 7, 4}));                                                              \
        else                                                                                                 \
            body(((ath_unpack_kind){4, 8, 6}));                                                              \
    } while (0)

#endif
