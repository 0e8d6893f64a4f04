/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Maps and small tools that all roles share.
 *
 * Maps that the control plane writes while packets pass are BPF_F_MMAPABLE arrays: user space maps
 * their memory and uses the same atomic operations as the programs. Whatever has to change as a
 * whole lies in two banks: user space fills the one not in use, once no program is left that may use it, then
 * flips `bank` by one store. */
#ifndef WIREPAXOS_MAPS_H
#define WIREPAXOS_MAPS_H

#include "counters.h"
#include "wire.h"

#define MAX_REPLICAS 32
#define MAX_ACCEPTORS 32

/* ---- Where this node stands */

struct device {
	__u32 cluster;
	__u16 node;
	/* UDP ports [port, port + ports) in host order are ours. */
	__u16 port;
	__u16 ports;
	__u16 flags;
	/* Own addresses in network order; all zero = any. */
	__be32 ip4;
	__be32 ip6[4];
	/* The port in `multicast_only`, where there is one entry of `multicast`; else 0. */
	__u32 only_port;
};

/* Multicast goes the way of clone.h. */
#define DEVICE_CLONES 1
/* All of `multicast` is in `multicast_small`, too. */
#define DEVICE_FEW_COPIES 2
/* All members are roles of the switch that this one is at, too, and called in turn. */
#define DEVICE_WITHIN 4
/* What nodes send comes from where `nodes` says that they are. So always, but in tests. */
#define DEVICE_KNOWS_NODES 8
/* Packets count only if they are signed, and are sent signed. */
#define DEVICE_SIGNED 16
/* What clients send comes from where `askers` says that they may be. */
#define DEVICE_KNOWS_ASKERS 32

struct group {
	/* Written last; 0 = no such group. */
	__u16 partitions;
	__u16 max_value;
	__u32 flags;
	/* This group's entry in the role's array of groups, and its first one in that of partitions. */
	__u32 index;
	__u32 first_partition;
	/* The ring: slots of one partition, `slots - 1` where that is a mask (else 0), and the group's
	 * first slot. */
	__u64 slots;
	__u64 mask;
	__u64 first_slot;
};
/* Learner: decisions leave as DELIVER instead of by the ring. */
#define GROUP_DELIVER 1
/* Learner: what is no vote goes to the host's sockets instead of being dropped. */
#define GROUP_PASS_OTHERS 2

struct {
	KEPT_MAP(BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device);
} device SEC(".maps");

/* The key is the group's number. An array for all that there can be, as a hash costs each packet
 * 5 ns. */
SHARED_ARRAY(groups, 65536, struct group);

/* The key is a node's number; network order. All zero = there is no such node. */
struct node_address {
	__be32 ip4;
	__be32 ip6[4];
	__u32 unused;
};

/* An array for all that there can be: each vote is looked up. */
SHARED_ARRAY(nodes, 65536, struct node_address);

/* The addresses that begin with the same bits; those of IPv4 as IPv6 has them, behind ::ffff. */
struct network {
	__u32 bits;
	__be32 address[4];
};

/* From where clients' messages are taken. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	/* For all nodes that there can be, and what the cluster file says besides. */
	__uint(max_entries, 1 << 17);
	__type(key, struct network);
	__type(value, __u32);
} askers SEC(".maps");

/* What a role at a switch calls besides other roles: the switch's forwarder, and the program `within` of its
 * own, which gives each member its turn. */
#define CALL_FORWARDER 0
#define CALL_WITHIN 1
struct {
	KEPT_MAP(BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} own_switch SEC(".maps");

/* The roles of a switch, which its forwarder and they themselves call: one map for all that are at the
 * same switch. For an entry without a program, what the forwarder got goes to the kernel's stack, and what
 * a role sends is dropped. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} roles SEC(".maps");

/* A copy of the datagram, from the UDP header on, for what can't be read from the packet in place. */
#define SCRATCH_LEN 2048
struct scratch {
	__u8 datagram[SCRATCH_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* ---- Tools */

static __always_inline struct device *this_device(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&device, &zero);
}

static __always_inline struct scratch *this_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* Whether at least so many bits are set: of one less, each in turn is taken away. */
static __always_inline int are_quorum(__u32 votes, __u32 quorum)
{
	for (__u32 i = 1; i < MAX_ACCEPTORS; i++) {
		if (i >= quorum)
			break;
		votes &= votes - 1;
	}
	return votes != 0;
}

/* A verdict that is made where it is given, instead of being carried along by the packets that go on. */
static __always_inline int because(int verdict)
{
	KEEP(verdict);
	return verdict;
}

/* [M-REFUSE] */
static __always_inline int drop(__u32 verdict)
{
	count(verdict);
	return XDP_DROP;
}

static __always_inline int pass_on(void)
{
	count(VERDICT_PASSED);
	return XDP_PASS;
}

/* In a role's map of partitions, of all its groups; NULL = the node isn't set up for that. */
static __always_inline void *partition_in(void *partitions, const struct group *group, __u16 pid)
{
	__u32 at = group->first_partition + pid;

	return bpf_map_lookup_elem(partitions, &at);
}

/* The slot of an instance. */
static __always_inline __u32 ring_index(const struct group *group, __u16 pid, __u64 inst)
{
	__u64 within = group->mask ? inst & group->mask : inst % group->slots;

	return group->first_slot + pid * group->slots + within;
}

/* A full barrier: only atomic operations that give back the old value are one. */
static __always_inline void full_barrier(__u32 *any)
{
	__u32 old = __sync_fetch_and_add(any, 0);

	asm volatile("" : : "r"(old));
}

static __always_inline int try_lock(__u32 *lock)
{
	return __sync_val_compare_and_swap(lock, 0, 1) == 0;
}

/* How often a lock is tried where several CPUs are likely to meet: some ten microseconds in all. Who has
 * it keeps it for less than one, unless its CPU is taken away. */
#define MAX_WAITS 1024

struct wanted {
	__u32 *lock;
	int had;
};

static long try_again(__u32 unused __attribute__((unused)), struct wanted *wanted)
{
	/* Only looking leaves the cache line with the CPU that holds the lock. */
	wanted->had = !READ_ONCE(*wanted->lock) && try_lock(wanted->lock);
	return wanted->had;
}

SUBPROGRAM int await_lock(__u32 *lock)
{
	struct wanted wanted = { .lock = lock };

	bpf_loop(MAX_WAITS, try_again, &wanted, 0);
	return wanted.had;
}

/* False = it takes too long. */
static __always_inline int lock_soon(__u32 *lock)
{
	return try_lock(lock) || await_lock(lock);
}

static __always_inline void unlock(__u32 *lock)
{
#ifdef __TARGET_ARCH_x86
	/* It keeps stores in order by itself, and an exchange costs 8 ns. */
	asm volatile("" : : : "memory");
	WRITE_ONCE(*lock, 0);
#else
	/* An exchange, as it is a full barrier too. */
	__u32 old = __sync_lock_test_and_set(lock, 0);

	asm volatile("" : : "r"(old));
#endif
}

/* How often a compare-and-swap is tried before the packet is dropped as `busy`. */
#define MAX_TRIES 16

/* Raises a number that only grows; a full barrier. False if other CPUs always came first. */
static __always_inline int raise(__u64 *number, __u64 to)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		__u64 old = READ_ONCE(*number);

		/* Where there is nothing to raise, for the sake of the barrier. */
		if (__sync_val_compare_and_swap(number, old, old < to ? to : old) == old)
			return 1;
	}
	return 0;
}

#include "stop.h"

#endif
