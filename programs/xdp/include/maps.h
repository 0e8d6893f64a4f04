/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The maps and small tools that all roles share.
 *
 * Maps that the control plane writes while packets pass are BPF_F_MMAPABLE arrays: user space maps
 * their memory and uses the same atomic operations as the programs. Data that must change as a
 * whole lies in two banks. User space fills the bank that isn't in use, once no program is left
 * that may use it, and then flips `bank` by one store. */
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
	/* The UDP ports of this node are [port, port + ports), in host order. */
	__u16 port;
	__u16 ports;
	__u16 flags;
	/* This node's own addresses in network order; all zero = any. */
	__be32 ip4;
	__be32 ip6[4];
	/* The port in `multicast_only`, if `multicast` has only one entry; otherwise 0. */
	__u32 only_port;
};

/* Multicast goes the way of clone.h. */
#define DEVICE_CLONES 1
/* All entries of `multicast` are in `multicast_small`, too. */
#define DEVICE_FEW_COPIES 2
/* All members are roles of the switch that this role is at, too, and are called in turn. */
#define DEVICE_WITHIN 4
/* A message in the name of a node must come from the address that `nodes` has for it. This flag is
 * set always but in tests. */
#define DEVICE_KNOWS_NODES 8
/* Packets count only if they are signed, and are sent signed. */
#define DEVICE_SIGNED 16
/* A client's message must come from an address that `askers` allows. */
#define DEVICE_KNOWS_ASKERS 32

struct group {
	/* The number of the group's partitions, written last; 0 = there is no such group. */
	__u16 partitions;
	__u16 max_value;
	__u32 flags;
	/* The group's entry in the role's array of groups, and its first entry in the array of
	 * partitions. */
	__u32 index;
	__u32 first_partition;
	/* The ring: the slots of one partition, `slots - 1` if `slots` is a power of two (otherwise
	 * 0), and the group's first slot. */
	__u64 slots;
	__u64 mask;
	__u64 first_slot;
};
/* Learner: decisions leave as DELIVER instead of by the ring. */
#define GROUP_DELIVER 1
/* Learner: packets other than votes go to the host's sockets instead of being dropped. */
#define GROUP_PASS_OTHERS 2

struct {
	KEPT_MAP(BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device);
} device SEC(".maps");

/* The groups by their number. This array has all possible entries, since a hash costs each packet 5
 * ns. */
SHARED_ARRAY(groups, 65536, struct group);

/* The address of a node, in network order. All zero = there is no such node. */
struct node_address {
	__be32 ip4;
	__be32 ip6[4];
	__u32 unused;
};

/* The nodes by their number. This array has all possible entries, since each vote is looked up. */
SHARED_ARRAY(nodes, 65536, struct node_address);

/* The addresses that begin with the same bits. IPv4 addresses are written as in IPv6, behind
 * ::ffff. */
struct network {
	__u32 bits;
	__be32 address[4];
};

/* The networks from which clients' messages are taken. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	/* There is room for all possible nodes and for the networks that the cluster file names
	 * besides. */
	__uint(max_entries, 1 << 17);
	__type(key, struct network);
	__type(value, __u32);
} askers SEC(".maps");

/* The programs of a switch that a role calls besides other roles: the switch's forwarder, and the
 * role's own program `within`, which calls each member in turn. */
#define CALL_FORWARDER 0
#define CALL_WITHIN 1
struct {
	KEPT_MAP(BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} own_switch SEC(".maps");

/* The roles of a switch, which its forwarder and they themselves call, in one map for all roles at
 * the same switch. If an entry has no program, a packet from the forwarder goes to the kernel's
 * stack, and a packet from a role is dropped. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} roles SEC(".maps");

/* A copy of the datagram, from the UDP header on, for data that can't be read from the packet in
 * place. */
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

/* Returns true if at least `quorum` bits are set, by taking away one bit less. */
static __always_inline int are_quorum(__u32 votes, __u32 quorum)
{
	for (__u32 i = 1; i < MAX_ACCEPTORS; i++) {
		if (i >= quorum)
			break;
		votes &= votes - 1;
	}
	return votes != 0;
}

/* Returns the verdict, and makes the compiler load it here instead of carrying it along with the
 * packets that go on. */
static __always_inline int because(int verdict)
{
	KEEP(verdict);
	return verdict;
}

/* Counts a packet under the reason, and drops it. [M-REFUSE] */
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

/* Returns a partition from a role's map of the partitions of all groups, or NULL if the node isn't
 * set up for it. */
static __always_inline void *partition_in(void *partitions, const struct group *group, __u16 pid)
{
	__u32 at = group->first_partition + pid;

	return bpf_map_lookup_elem(partitions, &at);
}

/* Returns the index of an instance's slot. */
static __always_inline __u32 ring_index(const struct group *group, __u16 pid, __u64 inst)
{
	__u64 within = group->mask ? inst & group->mask : inst % group->slots;

	return group->first_slot + pid * group->slots + within;
}

/* Makes a full barrier. Only atomic operations that return the old value are one. */
static __always_inline void full_barrier(__u32 *any)
{
	__u32 old = __sync_fetch_and_add(any, 0);

	asm volatile("" : : "r"(old));
}

static __always_inline int try_lock(__u32 *lock)
{
	return __sync_val_compare_and_swap(lock, 0, 1) == 0;
}

/* How often a lock is tried if several CPUs are likely to meet: some ten microseconds in all. A CPU
 * holds a lock for less than one microsecond, unless it is taken away. */
#define MAX_WAITS 1024

struct wanted {
	__u32 *lock;
	int had;
};

static long try_again(__u32 unused __attribute__((unused)), struct wanted *wanted)
{
	/* Reading alone leaves the cache line with the CPU that holds the lock. */
	wanted->had = !READ_ONCE(*wanted->lock) && try_lock(wanted->lock);
	return wanted->had;
}

SUBPROGRAM int await_lock(__u32 *lock)
{
	struct wanted wanted = { .lock = lock };

	bpf_loop(MAX_WAITS, try_again, &wanted, 0);
	return wanted.had;
}

/* Takes a lock, and returns false if that takes too long. */
static __always_inline int lock_soon(__u32 *lock)
{
	return try_lock(lock) || await_lock(lock);
}

static __always_inline void unlock(__u32 *lock)
{
#ifdef __TARGET_ARCH_x86
	/* This architecture keeps stores in order by itself, and an exchange costs 8 ns. */
	asm volatile("" : : : "memory");
	WRITE_ONCE(*lock, 0);
#else
	/* An exchange is a full barrier, too. */
	__u32 old = __sync_lock_test_and_set(lock, 0);

	asm volatile("" : : "r"(old));
#endif
}

/* How often a compare-and-swap is tried before the packet is dropped as `busy`. */
#define MAX_TRIES 16

/* Raises a number that only grows, and makes a full barrier. Returns false if other CPUs always
 * came first. */
static __always_inline int raise(__u64 *number, __u64 to)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		__u64 old = READ_ONCE(*number);

		/* The exchange is made even if there is nothing to raise, since it is the
		 * barrier. */
		if (__sync_val_compare_and_swap(number, old, old < to ? to : old) == old)
			return 1;
	}
	return 0;
}

#include "stop.h"

#endif
