/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The wire format: the 48-byte header and the structured values (docs/wire.md).
 *
 * 64-bit fields lie at 8-byte offsets of the header, but the header itself is only 4-byte aligned
 * behind Ethernet, IP and UDP. So they are declared as two halves. */
#ifndef WIREPAXOS_WIRE_H
#define WIREPAXOS_WIRE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#define WIRE_VERSION 1
#define HEADER_LEN 48
#define TAG_LEN 24
/* The largest value that fits an MTU of 1,500 bytes with IPv4, UDP, header and tag. */
#define MAX_VALUE_LEN (1500 - 20 - 8 - HEADER_LEN - TAG_LEN)
/* The room for a value in maps, which is enough for any value that a group may be configured
 * for. */
#define MAX_VALUE MAX_VALUE_LEN
_Static_assert(MAX_VALUE % 8 == 0, "map entries are whole words");

struct wire_header {
	__u8 version;
	__u8 msgtype;
	__be16 value_len;
	__be16 group;
	__be16 pid;
	__be32 inst_hi;
	__be32 inst_lo;
	__be32 rnd;
	__be32 vrnd;
	__be16 swid;
	__be16 flags;
	__be32 cluster;
	__be32 client_hi;
	__be32 client_lo;
	__be32 request_hi;
	__be32 request_lo;
};

#define WIRE_AT(field, offset) \
	_Static_assert(__builtin_offsetof(struct wire_header, field) == (offset), #field)
WIRE_AT(version, 0);
WIRE_AT(msgtype, 1);
WIRE_AT(value_len, 2);
WIRE_AT(group, 4);
WIRE_AT(pid, 6);
WIRE_AT(inst_hi, 8);
WIRE_AT(rnd, 16);
WIRE_AT(vrnd, 20);
WIRE_AT(swid, 24);
WIRE_AT(flags, 26);
WIRE_AT(cluster, 28);
WIRE_AT(client_hi, 32);
WIRE_AT(request_hi, 40);
_Static_assert(sizeof(struct wire_header) == HEADER_LEN, "the header has 48 bytes");
_Static_assert(_Alignof(struct wire_header) == 4, "the header needs no more than 4-byte alignment");

enum msgtype {
	REQUEST = 0,
	PHASE1A = 1,
	PHASE1B = 2,
	PHASE2A = 3,
	PHASE2B = 4,
	DELIVER = 5,
	REPLY = 6,
	REJECT = 7,
	QUERY = 8,
	TRIM = 9,
	PROBE = 10,
	PROBE_ACK = 11,
	/* The types from here on belong to NOPaxos. */
	ORDERED = 12,
	ACK = 13,
	GAP_REQUEST = 14,
	GAP_REPLY = 15,
	GAP_COMMIT = 16,
	GAP_COMMIT_REP = 17,
	VIEW_CHANGE_REQ = 18,
	VIEW_CHANGE = 19,
	START_VIEW = 20,
	START_VIEW_REP = 21,
	SYNC_PREPARE = 22,
	SYNC_REP = 23,
	SYNC_COMMIT = 24,
	READ = 25,
	MSGTYPES
};

#define FLAG_TAG (1 << 0)
#define FLAG_RANGE (1 << 1)
#define FLAG_NOOP (1 << 2)
#define FLAG_MULTI (1 << 3)
#define FLAG_PACKED (1 << 4)
/* The bits that describe the value and travel with it from request to delivery. */
#define FLAGS_OF_VALUE (FLAG_NOOP | FLAG_MULTI | FLAG_PACKED)

/* The flags that a message of this type may carry besides FLAG_TAG, the lowest, in 4 bits a type.
 * Types from 16 on carry none. */
#define ALLOW(msgtype, flags) ((__u64)(flags) >> 1 << 4 * (msgtype))
#define ALLOWED                                                                   \
	(ALLOW(REQUEST, FLAG_MULTI | FLAG_PACKED) | ALLOW(PHASE1A, FLAG_RANGE) |  \
	 ALLOW(QUERY, FLAG_RANGE) | ALLOW(PHASE1B, FLAG_RANGE | FLAGS_OF_VALUE) | \
	 ALLOW(PHASE2A, FLAGS_OF_VALUE) | ALLOW(PHASE2B, FLAGS_OF_VALUE) |        \
	 ALLOW(DELIVER, FLAGS_OF_VALUE) | ALLOW(REPLY, FLAG_PACKED) |             \
	 ALLOW(ORDERED, FLAG_MULTI | FLAG_PACKED) | ALLOW(GAP_REPLY, FLAGS_OF_VALUE))
_Static_assert(FLAG_TAG == 1 && GAP_REPLY < 64 / 4, "all types with flags fit");

static __always_inline __u32 allowed_flags(__u32 msgtype)
{
	return FLAG_TAG | (msgtype < 64 / 4 ? (ALLOWED >> 4 * msgtype & 0xf) << 1 : 0);
}

/* A round is `epoch << 12 | attempt << 7 | lane`. Lane 0 is never issued, so a number whose lower
 * bits name an attempt without a lane is no round. */
#define ROUND_SUB_BITS 12
#define ROUND_SUB_MASK 0xfffu
#define ROUND_LANE_MASK 0x7fu

static __always_inline __u32 round_epoch(__u32 rnd)
{
	return rnd >> ROUND_SUB_BITS;
}

static __always_inline int round_is_base(__u32 rnd)
{
	return rnd != 0 && (rnd & ROUND_SUB_MASK) == 0;
}

/* Returns true if this is a round of a real epoch: a base round, or a repair round with a lane.
 * [E-ROUND] */
static __always_inline int round_is_valid(__u32 rnd)
{
	return round_epoch(rnd) != 0 &&
	       ((rnd & ROUND_SUB_MASK) == 0 || (rnd & ROUND_LANE_MASK) != 0);
}

#define NO_INSTANCE (~0ULL)

/* The lengths of structured values. */
#define RANGE_REPORT_LEN 24
#define REJECTION_LEN 16
#define PROBE_LEN 2
#define PROBE_REPORT_LEN 24
#define MARKER_LEN 4
#define PROBE_LEADER 1
#define PROBE_ACCEPTOR 2
#define PROBE_REPLICA 3
#define PROBE_SEQUENCER 4
/* The lengths of a multi-partition vector: round u32, count u16, then count x {pid u16, inst
 * u64}. */
#define MAX_VECTOR 16
#define VECTOR_HEAD_LEN 6
#define VECTOR_ENTRY_LEN 10

typedef __u64 __attribute__((may_alias)) double_t;

/* Returns the number whose upper half lies at `hi`, and its lower half behind that. */
static __always_inline __u64 get64(const __be32 *hi)
{
	return bpf_be64_to_cpu(*(const double_t *)hi);
}

/* Stores a number in one store. A load of eight bytes that follows two stores of four waits until
 * both have reached the cache, while a load of what one store wrote gets it from the store
 * itself. */
static __always_inline void set64(__be32 *hi, __u64 number)
{
	*(double_t *)hi = bpf_cpu_to_be64(number);
}

#endif
