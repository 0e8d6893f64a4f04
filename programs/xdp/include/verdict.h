/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The outcomes of a packet, counted per CPU (map `counters`).
 *
 * A verdict is one number: the reason for a dropped packet, VERDICT_REJECTED plus the reason for a
 * rejected one. So the verdict is the index of its counter. */
#ifndef WIREPAXOS_VERDICT_H
#define WIREPAXOS_VERDICT_H

#include "reasons.h"

#define VERDICT_REJECTED 48
enum verdict {
	VERDICT_PASSED = 0, /* not for the programs: to the kernel's own stack */
	/* Verdicts 1 to 47 drop the packet for that reason; 49 to 95 reject it for the reason less
	 * 48. */
	VERDICT_CHANGED = 96,
	VERDICT_ANSWERED = 97,
	/* Learner: the decisions that were handed over, by ring or DELIVER. */
	COUNT_DECIDED = 98,
	/* The answer didn't fit the frame, so the packet went to the node's process after its
	 * verdict had been counted; or a message had no receiver, or there was no key to sign it
	 * with. */
	COUNT_UNSENT = 99,
	COUNTERS = 128
};
_Static_assert(REASONS <= VERDICT_REJECTED && VERDICT_REJECTED + REASONS <= VERDICT_CHANGED,
	       "every reason has a counter");

#endif
