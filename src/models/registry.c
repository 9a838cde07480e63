/* The architectures of this build: a new family adds its file and one row here. */
#include <string.h>

#include "models/model.h"

/* X(graph, general.architecture) */
#define ARCHITECTURES(X)                                                                                     \
    X(cohere2, "cohere2")                                                                                    \
    X(command_r, "command-r")                                                                                \
    X(deepseek2, "deepseek2")                                                                                \
    X(exaone4, "exaone4")                                                                                    \
    X(gemma, "gemma")                                                                                        \
    X(gemma2, "gemma2")                                                                                      \
    X(gemma3, "gemma3")                                                                                      \
    X(gemma3n, "gemma3n")                                                                                    \
    X(gemma4, "gemma4")                                                                                      \
    X(glm4, "glm4")                                                                                          \
    X(glm4moe, "glm4moe")                                                                                    \
    X(gpt2, "gpt2")                                                                                          \
    X(gpt_oss, "gpt-oss")                                                                                    \
    X(granite, "granite")                                                                                    \
    X(granite, "granitemoe")                                                                                 \
    X(hunyuan, "hunyuan-dense")                                                                              \
    X(hunyuan, "hunyuan-moe")                                                                                \
    X(lfm2, "lfm2")                                                                                          \
    X(lfm2, "lfm2moe")                                                                                       \
    X(llama, "ernie4_5")                                                                                     \
    X(llama, "internlm2")                                                                                    \
    X(llama, "llama")                                                                                        \
    X(mistral3, "mistral3")                                                                                  \
    X(olmo2, "olmo2")                                                                                        \
    X(olmoe, "olmoe")                                                                                        \
    X(phi3, "phi3")                                                                                          \
    X(qwen2, "qwen2")                                                                                        \
    X(qwen2moe, "qwen2moe")                                                                                  \
    X(qwen3, "qwen3")                                                                                        \
    X(qwen3, "qwen3moe")                                                                                     \
    X(qwen3next, "qwen3next")                                                                                \
    X(qwen35, "qwen35")                                                                                      \
    X(qwen35, "qwen35moe")                                                                                   \
    X(seed_oss, "seed_oss")                                                                                  \
    X(smollm3, "smollm3")                                                                                    \
    X(starcoder2, "starcoder2")

#define DECLARE(graph, name) extern const ath_arch ath_arch_##graph;
ARCHITECTURES(DECLARE)

#define ROW(graph, name) {name, &ath_arch_##graph},
static const struct {
    const char *name;
    const ath_arch *arch;
} architectures[] = {ARCHITECTURES(ROW)};

#define NAME(graph, name) " " name
const char *ath_arch_names(void) {
    return &(ARCHITECTURES(NAME))[1];
}

const ath_arch *ath_arch_find(ath_str name) {
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        const char *known = architectures[i].name;
        if (strlen(known) == name.size && memcmp(known, name.data, name.size) == 0)
            return architectures[i].arch;
    }
    return NULL;
}
