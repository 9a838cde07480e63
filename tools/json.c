/* JSON output of the tools. */
#include "json.h"

#include "tool.h"

int ath_json_print(cJSON *json, FILE *file) {
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text) return ath_tool_fail("out of memory");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return 0;
}
