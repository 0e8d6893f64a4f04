/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counters of verdicts, and of other events. */
#ifndef WIREPAXOS_COUNTERS_H
#define WIREPAXOS_COUNTERS_H

#include "shared.h"
#include "verdict.h"

/* The counters of one CPU; the map is indexed by CPU. It is no per-CPU map, so that user space
 * reads it in place. */
struct counters {
	__u64 of[COUNTERS];
};

SHARED_ARRAY(counters, 256, struct counters);

static __always_inline void count_both(__u32 what, __u32 more)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct counters *mine = bpf_map_lookup_elem(&counters, &cpu);

	if (mine)
		mine->of[what % COUNTERS]++;
	if (mine && more)
		mine->of[more % COUNTERS]++;
}

static __always_inline void count(__u32 what)
{
	count_both(what, 0);
}

#endif
