/* llama-tokenize: the tokens of a text. Needs no more of the file than its vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "tool.h"

static const ath_program program = {ATH_PROGRAM_T, "-m MODEL [--ids] (-p TEXT | -f FILE | --stdin) [flags]",
                                    "Shows the tokens of a text.", false};

/* The text asked for, malloc'd. NULL after an error line. */
static char *read_text(const ath_args *args, size_t *size) {
    const char *prompt = ATH_ARG_TEXT(args, PROMPT), *path = ATH_ARG_TEXT(args, FILE);
    int ways = (prompt != NULL) + (path != NULL) + ATH_ARG_ON(args, STDIN);
    if (ways != 1) {
        ath_tool_fail("the text comes from one of -p TEXT, -f FILE, --stdin; %d of them were given", ways);
        return NULL;
    }
    if (!prompt) return ath_tool_read_file(path ? path : "-", size);
    char *text = strdup(prompt);
    if (!text) ath_tool_fail("out of memory");
    *size = strlen(prompt);
    if (text && ATH_ARG_ON(args, T_ESCAPE)) *size = ath_tool_unescape(text, *size);
    return text;
}

static void print_ids(const ath_token *tokens, size_t n) {
    putchar('[');
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? ", " : "", tokens[i]);
    puts("]");
}

static void print_pieces(const ath_engine *engine, const ath_token *tokens, size_t n) {
    char piece[4096];
    for (size_t i = 0; i < n; i++) {
        size_t size = ath_token_piece(engine, tokens[i], true, piece, sizeof piece);
        printf("%6d -> '", tokens[i]);
        fwrite(piece, 1, size < sizeof piece ? size : sizeof piece, stdout);
        puts("'");
    }
}

static int tokenize(const ath_engine *engine, const ath_args *args) {
    size_t size = 0, n;
    char *text = read_text(args, &size);
    if (!text) return 1;
    unsigned flags = (ATH_ARG_ON(args, NO_BOS) ? 0 : ATH_TOKENIZE_ADD_SPECIAL) |
                     (ATH_ARG_ON(args, NO_SPECIAL) ? 0 : ATH_TOKENIZE_PARSE_SPECIAL);
    ath_token *tokens;
    ath_error err;
    ath_status status = ath_tokenize(engine, text, size, flags, &tokens, &n, &err);
    free(text);
    if (status != ATH_OK) return ath_tool_fail("%s", err.message);
    if (ATH_ARG_ON(args, PRINT_IDS))
        print_ids(tokens, n);
    else
        print_pieces(engine, tokens, n);
    if (ATH_ARG_ON(args, SHOW_COUNT)) printf("Total number of tokens: %zu\n", n);
    free(tokens);
    return ath_tool_flush();
}

int ath_tool_tokenize(int argc, char **argv) {
    ath_args args;
    ath_engine *engine = NULL;
    ath_error err;
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) {
        ath_engine_params params = ath_tool_metadata_params(&args);
        params.log = ath_tool_log_callback;
        if (ath_engine_open(&engine, &params, &err) == ATH_OK)
            code = tokenize(engine, &args);
        else
            code = ath_tool_fail("%s", err.message);
    }
    ath_engine_close(&engine);
    ath_args_free(&args);
    return code;
}
