/* From flags to a sampler. */
#ifndef ATH_TOOL_SAMPLING_H
#define ATH_TOOL_SAMPLING_H

#include "athanor/athanor_sample.h"
#include "tool.h"

/* -1, or 1 after an error line. n_ctx: tokens of the context, for windows of -1. */
int ath_tool_make_sampler(ath_sampler **out, const ath_args *args, const ath_engine *engine, int64_t n_ctx);

#endif
