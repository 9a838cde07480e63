/* How much memory this process may still take, and large blocks of it. */
#ifndef ATH_BASE_MEMORY_H
#define ATH_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes: the least of what the system reports as available, what the control group leaves, and the address-space
 * limit. UINT64_MAX if nothing is known. */
uint64_t ath_memory_available(void);

/* Zeroed memory on a boundary of ATH_HUGE_PAGE, in huge pages where the system has them: pages count from their first use.
 * NULL if there is none. bytes is a multiple of ATH_HUGE_PAGE. */
#define ATH_HUGE_PAGE ((size_t)2 << 20)
void *ath_memory_map(size_t bytes);
void ath_memory_unmap(void *memory, size_t bytes);

#endif
