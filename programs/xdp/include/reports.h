/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts the TRIM reports of replicas, for acceptors and leader alike, as
 * crates/paxos/src/quorum.rs does. */
#ifndef WIREPAXOS_REPORTS_H
#define WIREPAXOS_REPORTS_H

#include "parse.h"

struct replicas {
	__u16 count;
	__u16 g;
	__u16 node[MAX_REPLICAS];
	__u32 unused;
};

struct trim_report {
	/* The number of the replica's disk; 0 = nothing was reported. */
	__u64 incarnation;
	/* The instance below which everything is durable there. */
	__u64 inst;
};

/* Returns a < b without a branch, since each branch within two loops would double the states of the
 * verifier. */
static __always_inline __u64 below(__u64 a, __u64 b)
{
	return ((~a & b) | (~(a ^ b) & (a - b))) >> 63;
}

/* Returns the instance below which g+1 replicas cover everything: the (g+1)-th largest report.
 * Reports beyond `count` are 0 and so never win. [T-QUORUM] */
SUBPROGRAM __u64 trim_point(const struct replicas *replicas, const struct trim_report *reports)
{
	__u64 g = replicas->g;
	__u64 point = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_REPLICAS; i++) {
		__u64 candidate = reports[i].inst;
		__u64 covered = MAX_REPLICAS;
		__u64 larger;

#pragma clang loop unroll(disable)
		for (__u32 j = 0; j < MAX_REPLICAS; j++)
			covered -= below(reports[j].inst, candidate);
		larger = below(g, covered) & below(point, candidate);
		point ^= (point ^ candidate) & -larger;
	}
	return point;
}

/* Stores a number in order with other stores. Only atomic operations that return the old value are
 * barriers. */
static __always_inline void in_order(__u64 *number, __u64 to)
{
	__u64 old = __sync_lock_test_and_set(number, to);

	asm volatile("" : : "r"(old));
}

/* Notes that `replica` covers everything below `inst` on the disk of that incarnation, and returns
 * 0 or a reason. The caller holds the lock of the reports, but the process may read them meanwhile,
 * `incarnation` first: it must never see a newer incarnation with an older `inst`. [T-NEWEST] */
SUBPROGRAM int note_report(const struct replicas *replicas, struct trim_report *reports,
			   __u16 replica, __u64 incarnation, __u64 inst)
{
	if (!incarnation)
		return REASON_BAD_SESSION;
	for (__u32 i = 0; i < MAX_REPLICAS; i++) {
		struct trim_report *known = &reports[i];

		if (i >= replicas->count)
			break;
		if (replicas->node[i] != replica)
			continue;
		if (incarnation < known->incarnation ||
		    (incarnation == known->incarnation && inst < known->inst))
			return REASON_STALE;
		if (incarnation == known->incarnation && inst == known->inst)
			return REASON_DUPLICATE;
		stop_at(STOP_AT_REPORT);
		if (incarnation != known->incarnation) {
			in_order(&known->inst, 0);
			in_order(&known->incarnation, incarnation);
		}
		WRITE_ONCE(known->inst, inst);
		return 0;
	}
	return REASON_UNKNOWN_SENDER;
}

/* Handles a replica's TRIM: notes it, and raises `trim` to the point that g+1 replicas cover.
 * Returns 0 or a reason; a replica that doesn't know `epoch` is refused, since it may describe a
 * disk that was lost before this memory became a member. [T-EPOCH] */
static __always_inline __u32 take_report(const struct message *m, const struct replicas *replicas,
					 struct trim_report *reports, __u32 *lock, __u32 epoch,
					 __u64 *trim)
{
	__u32 refused;

	if (m->request < epoch)
		return REASON_STALE;
	if (!lock_soon(lock))
		return REASON_BUSY;
	refused = note_report(replicas, reports, sender_of(m), m->client, m->inst);
	if (!refused && !raise(trim, trim_point(replicas, reports)))
		refused = REASON_BUSY;
	unlock(lock);
	return refused;
}

#endif
