/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the lab's fault injector shares with the program that sets its rates. The Rust side of these
 * layouts is crates/lab/src/faults/layout.rs. */
#ifndef WIREPAXOS_FAULT_H
#define WIREPAXOS_FAULT_H

#include <linux/types.h>

/* A wire has two ends, and one of these for each, by the interface that a frame comes in on.
 * A likelihood p is the number p * 2^32 - 1, and 0 is never. */
struct fault_wire {
	/* The interface that the frame leaves by. */
	__u32 out;
	/* The cluster's UDP ports; anything else is forwarded as it is. */
	__u16 first_port;
	__u16 last_port;
	__u32 loss;
	__u32 corrupt;
	/* Past the queue in user space: what is to be duplicated, held back or delayed. */
	__u32 detour;
	__u32 duplicate;
	__u32 reorder;
	/* How long a reordered frame, or a duplicate, is held back at most. */
	__u32 hold_us;
	/* For every frame. */
	__u32 delay_us;
	__u32 seed;
	/* Which stream of random numbers: both ends of all wires have their own. */
	__u32 stream;
	/* A new one starts the random numbers and the counters anew. */
	__u32 generation;
};
_Static_assert(sizeof(struct fault_wire) == 48, "layout.rs says so, too");

/* One for each end and CPU. */
struct fault_state {
	__u64 random;
	/* Datagrams of the cluster that came in. */
	__u64 datagrams;
	__u64 lost;
	__u64 corrupted;
	__u64 detoured;
	/* Frames of others. */
	__u64 others;
	__u32 generation;
	__u32 unused;
};
_Static_assert(sizeof(struct fault_state) == 56, "layout.rs says so, too");

/* One for each end: what the detour has done. Only user space reads and writes it. */
struct fault_handled {
	__u64 duplicated;
	__u64 reordered;
	__u64 delayed;
	/* No room for it: lost, though nobody asked for that. */
	__u64 overflowed;
	__u32 generation;
	__u32 unused;
};
_Static_assert(sizeof(struct fault_handled) == 40, "layout.rs says so, too");

#endif
