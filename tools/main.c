/* The program: one executable whose name, or first argument, says which tool it is. */
#include <string.h>

#include "tool.h"

static const struct {
    const char *name, *link, *about;
    int (*run)(int argc, char **argv);
} tools[] = {
    {"completion", "llama-completion", "continue a text", ath_tool_completion},
    {"cli", "llama-cli", "the same; chat comes later", ath_tool_completion},
    {"tokenize", "llama-tokenize", "show the tokens of a text", ath_tool_tokenize},
    {"inspect", "", "what a GGUF file holds, and what its cache will take", ath_tool_inspect},
    {"logits", "", "write the logits of given tokens to a file", ath_tool_logits},
    {"perplexity", "llama-perplexity", "perplexity, KL divergence and task scores of a text", ath_tool_perplexity},
    {"quality", "", "what cache types do to this model's output", ath_tool_quality},
    {"plan", "", "which cache type fits which context", ath_tool_plan},
    {"models", "", "list or remove what -hf and -mu have fetched", ath_tool_models},
    {"bench", "llama-bench", "speed of prompts and generation, and how both change with depth", ath_tool_bench},
    {"distortion", "", "what a cache type does to vectors", ath_tool_distortion},
};
enum { N_TOOLS = sizeof tools / sizeof tools[0] };

static void print_tools(FILE *file) {
    fputs("usage: athanor COMMAND [flags]; athanor COMMAND -h shows the flags\n", file);
    for (int i = 0; i < N_TOOLS; i++)
        fprintf(file, "  %-12s %s%s%s%s\n", tools[i].name, tools[i].about, *tools[i].link ? " (also: " : "",
                tools[i].link, *tools[i].link ? ")" : "");
}

int main(int argc, char **argv) {
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "athanor";
    for (int i = 0; i < N_TOOLS; i++)
        if (strcmp(name, tools[i].link) == 0) return tools[i].run(argc, argv);
    if (argc < 2) {
        print_tools(stderr);
        return 1;
    }
    for (int i = 0; i < N_TOOLS; i++) {
        if (strcmp(argv[1], tools[i].name) != 0) continue;
        char full_name[64]; /* what its usage line shows */
        snprintf(full_name, sizeof full_name, "athanor %s", tools[i].name);
        argv[1] = full_name;
        return tools[i].run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_tools(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        char version[] = "--version", *only_version[] = {argv[0], version, NULL};
        return ath_tool_logits(2, only_version);
    }
    char list[512] = "";
    for (int i = 0; i < N_TOOLS; i++) strcat(strcat(list, i ? ", " : ""), tools[i].name);
    return ath_tool_fail("unknown command \"%.40s\"; there are %s", argv[1], list);
}
