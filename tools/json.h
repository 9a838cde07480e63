/* JSON output of the tools. */
#ifndef ATH_TOOL_JSON_H
#define ATH_TOOL_JSON_H

#include <cjson/cJSON.h>
#include <stdio.h>

/* Writes the object and a newline, and deletes it. 0, or 1 after an error line. */
int ath_json_print(cJSON *json, FILE *file);

#endif
