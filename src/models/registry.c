/* The architectures of this build: a new family adds its file and one row here. */
#include <string.h>

#include "models/model.h"

#define ARCHITECTURES(X) X(gemma3) X(llama) X(qwen2) X(qwen3)

#define DECLARE(name) extern const ath_arch ath_arch_##name;
ARCHITECTURES(DECLARE)

#define ROW(name) &ath_arch_##name,
static const ath_arch *const architectures[] = {ARCHITECTURES(ROW)};

#define NAME(name) #name " "
const char *ath_arch_names(void) { return ARCHITECTURES(NAME); }

const ath_arch *ath_arch_find(ath_str name) {
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        const char *known = architectures[i]->name;
        if (strlen(known) == name.size && memcmp(known, name.data, name.size) == 0) return architectures[i];
    }
    return NULL;
}
