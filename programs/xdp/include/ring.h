/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The way from the kernel to the workers of its host: a window and a ring for each partition. */
#ifndef WIREPAXOS_RING_H
#define WIREPAXOS_RING_H

#include "value.h"

/* ---- Types */

#define MAX_RINGS 16

struct partition {
	/* The start of a host's window, if there is one; instances below are stale. The partition's
	 * worker moves it on. */
	__u64 floor;
	__u32 flags;
	__u32 ring;
};
/* There is a window. */
#define PARTITION_HAS_FLOOR 1
/* The host wants to see the votes, too, since a repair of its own waits for some of them. */
#define PARTITION_SHOW_VOTES 2
/* The ring's reader is awake: it needs no wake-up, and looks again before it sleeps. */
#define PARTITION_AWAKE 4

/* A decision or an ordered message in a ring, in host order. The value follows. */
struct decision {
	__u64 inst;
	__u64 client;
	__u64 request;
	__u32 rnd;
	__u16 group;
	__u16 pid;
	__u16 flags;
	__u16 len;
	__u32 unused;
};

/* Records come in three sizes, since reservations must have constant sizes. */
#define MEDIUM_VALUE 344
struct small_decision {
	struct decision head;
	__u8 value[SHORT_VALUE];
};
struct medium_decision {
	struct decision head;
	__u8 value[MEDIUM_VALUE];
};
struct large_decision {
	struct decision head;
	__u8 value[MAX_VALUE];
};

/* ---- State */

SHARED_ARRAY(partitions, 1, struct partition);

#define RING(n)                                 \
	struct {                                \
		KEPT_MAP(BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, 4096);      \
	} ring##n SEC(".maps")
RING(0);
RING(1);
RING(2);
RING(3);
RING(4);
RING(5);
RING(6);
RING(7);
RING(8);
RING(9);
RING(10);
RING(11);
RING(12);
RING(13);
RING(14);
RING(15);

/* ---- Functions */

static __always_inline __u32 in_window(const struct partition *partition, const struct group *group,
				       __u64 inst);
static __always_inline int sleeps(const struct partition *partition);
static __always_inline __u64 wake_up(const struct partition *partition, int at_socket);
static __always_inline int to_ring(struct xdp_md *ctx, const struct message *m,
				   const struct partition *partition, int at_socket);
int record_small(struct xdp_md *ctx, const struct message *m, const struct partition *partition,
		 int at_socket);
int record_medium(struct xdp_md *ctx, const struct message *m, const struct partition *partition,
		  int at_socket);
int record_large(struct xdp_md *ctx, const struct message *m, const struct partition *partition,
		 int at_socket);
static __always_inline int load_value(struct xdp_md *ctx, const struct message *m, __u8 *to,
				      __u32 len, __u32 max);
static __always_inline void describe(struct decision *head, const struct message *m);
static __always_inline void *reserve(__u32 ring, __u64 size);

/* Returns 0 if the instance lies in the window or there is none, or a reason. */
static __always_inline __u32 in_window(const struct partition *partition, const struct group *group,
				       __u64 inst)
{
	__u64 floor;

	if (!(READ_ONCE(partition->flags) & PARTITION_HAS_FLOOR))
		return 0;
	floor = READ_ONCE(partition->floor);
	if (inst < floor)
		return REASON_STALE;
	return inst - floor >= group->slots ? REASON_WINDOW : 0;
}

/* Returns true if the ring's reader sleeps, or may soon. A reader first says that it falls asleep,
 * and then, behind a barrier, looks for records that are at least reserved. */
static __always_inline int sleeps(const struct partition *partition)
{
	__u32 any = 0;

	full_barrier(&any);
	return !(READ_ONCE(partition->flags) & PARTITION_AWAKE);
}

/* Returns the flag that wakes the ring's reader only if it sleeps. A ring wakes its reader by an
 * interrupt that the CPU sends itself, which costs a virtual machine more than all roles
 * together. */
static __always_inline __u64 wake_up(const struct partition *partition, int at_socket)
{
	return !at_socket && sleeps(partition) ? 0 : BPF_RB_NO_WAKEUP;
}

/* Hands the message's value to the partition's worker. Returns false if its ring is full. */
static __always_inline int to_ring(struct xdp_md *ctx, const struct message *m,
				   const struct partition *partition, int at_socket)
{
	if (m->value_len <= SHORT_VALUE)
		return record_small(ctx, m, partition, at_socket);
	if (m->value_len <= MEDIUM_VALUE)
		return record_medium(ctx, m, partition, at_socket);
	return record_large(ctx, m, partition, at_socket);
}

/* Writes a record of one size; `max` is the room for the value. As a global function it is verified
 * once: inlined, the verifier of kernel 6.1 finds no end, since it takes each place of a
 * reservation as a different state. It doesn't know that the message's pointers are pointers. */
#define RECORD(name, type, max)                                                                \
	__noinline int name(struct xdp_md *ctx, const struct message *m,                       \
			    const struct partition *partition, int at_socket)                  \
	{                                                                                      \
		__u32 len;                                                                     \
		type *record;                                                                  \
                                                                                               \
		if (!m || !partition)                                                          \
			return 0;                                                              \
		len = m->value_len;                                                            \
		record = reserve(partition->ring, sizeof(type));                               \
		if (!record)                                                                   \
			return 0;                                                              \
		describe(&record->head, m);                                                    \
		KEEP(len);                                                                     \
		if (len > 0 && len <= (max) && !load_value(ctx, m, record->value, len, max)) { \
			bpf_ringbuf_discard(record, 0);                                        \
			return 0;                                                              \
		}                                                                              \
		bpf_ringbuf_submit(record, wake_up(partition, at_socket));                     \
		return 1;                                                                      \
	}
RECORD(record_small, struct small_decision, SHORT_VALUE)
RECORD(record_medium, struct medium_decision, MEDIUM_VALUE)
RECORD(record_large, struct large_decision, MAX_VALUE)

static __always_inline int load_value(struct xdp_md *ctx, const struct message *m, __u8 *to,
				      __u32 len, __u32 max)
{
	struct wire_header *h = (void *)(long)ctx->data + known_place(m->header_at);

	if (max == SHORT_VALUE)
		return copy_short(ctx, m, h, (void *)(long)ctx->data_end, to, len);
	return load_bytes(ctx, value_at(m), to, len, max);
}

static __always_inline void describe(struct decision *head, const struct message *m)
{
	head->inst = m->inst;
	head->client = m->client;
	head->request = m->request;
	head->rnd = m->rnd;
	head->group = m->group;
	head->pid = m->pid;
	head->flags = m->flags & FLAGS_OF_VALUE;
	head->len = m->value_len;
	head->unused = 0;
}

static __always_inline void *reserve(__u32 ring, __u64 size)
{
	switch (ring) {
#define CASE(n) \
	case n: \
		return bpf_ringbuf_reserve(&ring##n, size, 0)
		CASE(0);
		CASE(1);
		CASE(2);
		CASE(3);
		CASE(4);
		CASE(5);
		CASE(6);
		CASE(7);
		CASE(8);
		CASE(9);
		CASE(10);
		CASE(11);
		CASE(12);
		CASE(13);
		CASE(14);
		CASE(15);
	}
	return NULL;
}

#endif
