/* athanor plan: which cache type takes how much memory at a context, what it costs in quality, how far it
 * goes, and what auto would take. */
#include "auto_cache.h"
#include "json.h"

static const ath_program program = {ATH_PROGRAM_P, "-m MODEL [-c N] [--kv-budget MIB] [flags]",
                                    "Which cache type fits which context, and what it costs in quality.",
                                    false};

static double mib(uint64_t bytes) {
    return (double)bytes / 1048576;
}

static void print_table(const ath_choices *c, const int64_t *largest) {
    printf("context %lld tokens, %s %.0f MiB\n\n", (long long)c->n_ctx,
           c->budget_given ? "budget" : "free memory", mib(c->budget));
    printf("  %-12s %-12s %6s %12s %10s  %-26s %s\n", "K", "V", "bits", "bytes/token", "MiB",
           "quality (mean KLD)", "largest context");
    for (int i = 0; i < c->n; i++) {
        const ath_choice *x = &c->choice[i];
        if (!x->fits_heads) {
            printf("  %-12s %-12s %6s the model's head size can't be stored in it\n", x->type_k, x->type_v,
                   "-");
            continue;
        }
        char quality[64], context[32];
        int at = snprintf(quality, sizeof quality, "%s", ath_class_name(x->pair.class));
        if (x->pair.class != ATH_CLASS_EXACT)
            snprintf(quality + at, sizeof quality - (size_t)at, " (%s%.2g)",
                     x->pair.measured ? "measured " : "about ", x->pair.kld);
        snprintf(context, sizeof context, "%s%lld", largest[i] >= (int64_t)1 << 32 ? ">= " : "",
                 (long long)largest[i]);
        printf("%c %-12s %-12s %6.2f %12.1f %10.1f  %-26s %s\n", i == c->chosen ? '*' : ' ', x->type_k,
               x->type_v, x->bits, x->bytes_per_token, mib(x->bytes), quality, context);
    }
    printf("\n* auto: %s\n", c->chosen >= 0 ? c->why : "nothing that is allowed can hold this model's heads");
}

static int print_json(const ath_choices *c, const int64_t *largest, const char *model) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", model);
    cJSON_AddNumberToObject(json, "context", (double)c->n_ctx);
    cJSON_AddNumberToObject(json, "budget_bytes", (double)c->budget);
    cJSON *types = cJSON_AddArrayToObject(json, "types");
    for (int i = 0; i < c->n; i++) {
        const ath_choice *x = &c->choice[i];
        cJSON *type = cJSON_CreateObject();
        cJSON_AddStringToObject(type, "type_k", x->type_k);
        cJSON_AddStringToObject(type, "type_v", x->type_v);
        cJSON_AddBoolToObject(type, "possible", x->fits_heads);
        cJSON_AddStringToObject(type, "class", ath_class_name(x->pair.class));
        cJSON_AddNumberToObject(type, "kld", x->pair.kld);
        cJSON_AddBoolToObject(type, "measured", x->pair.measured);
        cJSON_AddNumberToObject(type, "bits_per_value", x->bits);
        cJSON_AddNumberToObject(type, "bytes_per_token", x->bytes_per_token);
        cJSON_AddNumberToObject(type, "bytes", (double)x->bytes);
        cJSON_AddNumberToObject(type, "largest_context", (double)largest[i]);
        cJSON_AddBoolToObject(type, "chosen", i == c->chosen);
        cJSON_AddItemToArray(types, type);
    }
    cJSON_AddStringToObject(json, "why", c->why);
    return ath_json_print(json, stdout);
}

static int plan(const ath_args *args, ath_engine **engine) {
    ath_engine_params ep = ath_tool_metadata_params(args);
    ath_error err;
    ath_session_params sp;
    int code = ath_tool_session_params(args, &sp);
    if (code >= 0) return code;
    sp.type_k = sp.type_v = "auto";
    if (sp.n_ctx < 0 || sp.n_ctx > (int64_t)1 << 32)
        return ath_tool_fail("-c %lld is out of range", (long long)sp.n_ctx);
    if (ath_engine_open(engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_engine_info info;
    ath_engine_get_info(*engine, &info);
    ath_choices choices;
    code = ath_make_choices(&choices, args, *engine, &sp, info.file_bytes);
    if (code >= 0) return code;
    int64_t largest[ATH_MAX_CHOICES];
    for (int i = 0; i < choices.n; i++)
        largest[i] = ath_largest_context(*engine, &choices.choice[i], &sp, choices.budget);
    if (!ATH_ARG_ON(args, JSON))
        print_table(&choices, largest);
    else if (print_json(&choices, largest, info.path))
        return 1;
    return ath_tool_flush();
}

int ath_tool_plan(int argc, char **argv) {
    ath_args args;
    ath_engine *engine = NULL;
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) code = plan(&args, &engine);
    ath_engine_close(&engine);
    ath_args_free(&args);
    return code;
}
