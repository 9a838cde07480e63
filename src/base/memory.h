/* How much memory this process may still take. */
#ifndef ATH_BASE_MEMORY_H
#define ATH_BASE_MEMORY_H

#include <stdint.h>

/* Bytes: the least of what the system reports as available, what the control group leaves, and the address-space
 * limit. UINT64_MAX if nothing is known. */
uint64_t ath_memory_available(void);

#endif
