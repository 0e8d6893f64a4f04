/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The layouts that the lab's fault injector shares with the program that sets its rates. Their Rust
 * side is crates/lab/src/faults/layout.rs. */
#ifndef WIREPAXOS_FAULT_H
#define WIREPAXOS_FAULT_H

#include <linux/types.h>

/* The settings of one end of a wire, by the interface that a frame comes in on. A likelihood p is
 * the number p * 2^32 - 1, and 0 is never. */
struct fault_wire {
	/* The interface that the frame leaves by. */
	__u32 out;
	/* The cluster's UDP ports. Other packets are forwarded as they are. */
	__u16 first_port;
	__u16 last_port;
	__u32 loss;
	__u32 corrupt;
	/* The likelihood of the way past the queue in user space, which duplicates, holds back or
	 * delays datagrams. */
	__u32 detour;
	__u32 duplicate;
	__u32 reorder;
	/* The longest time that a reordered frame, or a duplicate, is held back. */
	__u32 hold_us;
	/* The delay of every frame. */
	__u32 delay_us;
	__u32 seed;
	/* The number of the stream of random numbers. Both ends of all wires have their own. */
	__u32 stream;
	/* A new generation starts the random numbers and the counters anew. */
	__u32 generation;
};
_Static_assert(sizeof(struct fault_wire) == 48, "layout.rs says so, too");

/* The state of each end on each CPU. */
struct fault_state {
	__u64 random;
	/* Datagrams of the cluster that came in. */
	__u64 datagrams;
	__u64 lost;
	__u64 corrupted;
	__u64 detoured;
	/* Frames that aren't the cluster's. */
	__u64 others;
	__u32 generation;
	__u32 unused;
};
_Static_assert(sizeof(struct fault_state) == 56, "layout.rs says so, too");

/* The counts of each end's detour. Only user space reads and writes them. */
struct fault_handled {
	__u64 duplicated;
	__u64 reordered;
	__u64 delayed;
	/* Datagrams that were lost for want of room, though no setting asked for that. */
	__u64 overflowed;
	__u32 generation;
	__u32 unused;
};
_Static_assert(sizeof(struct fault_handled) == 40, "layout.rs says so, too");

#endif
