/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Puts requests in order: the part that leader and sequencer have in common
 * (crates/paxos/src/stamping.rs). Nothing is stamped until the role is programmed, once for each
 * round, by its boot nonce. A role defines three macros before it includes this: the type of a
 * stamped REQUEST (STAMPED), the role that PROBE asks for (STAMPING_ROLE), and the rounds that a
 * refusal may name (NAMES_ROUND).
 *
 * Several CPUs: an instance is taken by compare-and-swap. A command over several partitions locks
 * `next` of all of them before it takes the first instance. While it holds one, nothing else is
 * stamped there, and others see all of its instances taken or none.
 *
 * Each program of a round lies in a bank, which isn't written again before all programs have ended
 * that may use it. So a packet that is on its way while another round is programmed ends in the
 * round and with the instances that it began with. [M-BANK] */
#ifndef WIREPAXOS_STAMP_H
#define WIREPAXOS_STAMP_H

#include "bench.h"
#include "clone.h"
#include "reports.h"
#include "role.h"

/* ---- Types */

/* The acceptors of an epoch that said that they have promised a later one (`Preemption`). */
struct preemption {
	__u16 count;
	/* The number f+1 of acceptors that retire the role. */
	__u16 quorum;
	__u16 node[MAX_ACCEPTORS];
	/* The acceptors that have said so: bit i is the i-th acceptor. */
	__u32 told;
};

struct leader_bank {
	/* The base round; 0 = the bank was never programmed. */
	__u32 rnd;
	/* A later epoch exists, so this role stamps no more. */
	__u32 retired;
	__u64 window;
	struct replicas replicas;
	struct preemption preemption;
};

struct leader {
	/* The boot nonce of this memory, drawn when it starts empty; never 0. */
	__u64 nonce;
	__u32 bank;
	/* The lock that is held while a command over several partitions is stamped, since one is
	 * stamped at a time. */
	__u32 lock;
	struct leader_bank banks[2];
};

/* The bit in `next` that says that a command over several partitions is about to take an
 * instance. */
#define NEXT_LOCKED (1ULL << 63)
/* Instances that are stamped lie below this one. One more would be the lock. */
#define END (NEXT_LOCKED - 1)

struct partition_bank {
	__u64 next;
	/* The instance below which acceptors have forgotten everything. */
	__u64 trimmed;
	struct trim_report reports[MAX_REPLICAS];
	/* The lock of `reports`. */
	__u32 reporting;
	__u32 unused;
};

struct partition {
	struct partition_bank banks[2];
};

struct vector {
	__u8 bytes[VECTOR_HEAD_LEN + MAX_VECTOR * VECTOR_ENTRY_LEN + 2];
};
_Static_assert(sizeof(struct vector) % 4 == 0, "checksums take whole words");

/* ---- State */

SHARED_ARRAY(leaders, 1, struct leader);
SHARED_ARRAY(partitions, 1, struct partition);

/* The data that a handler works on. */
struct step {
	struct common common;
	struct leader *leader;
	struct leader_bank *bank;
	/* The trim point of the partition whose window is closed. */
	__u64 trimmed;
	/* The index of the bank. */
	__u32 which;
	/* The round in which a request is stamped. It is read once, before an instance is taken. */
	__u32 rnd;
};

/* ---- Functions: named and ordered as in crates/paxos/src/stamping.rs. What only this plane has stands behind
 * who needs it. Handlers return a verdict and set `common.action`. */

/* The role defines this function, which chooses the handler of a packet. */
static __always_inline __u32 handle(struct xdp_md *ctx, struct message *m, struct step *s);
static __noinline int verify(const struct message *m);
static __always_inline __u32 request(struct xdp_md *ctx, struct message *m, struct step *s,
				     struct partition_bank *p);
static __noinline __u32 request_multi(struct xdp_md *ctx, const struct message *m, struct step *s,
				      __u64 *first, __u32 *partitions);
static __noinline __u32 take_all(struct step *s, struct vector *v, __u32 n, __u64 *trimmed);
__noinline int lock_place(struct partition_bank *p, __u64 window);
__noinline int unlock_place(struct partition_bank *p, __u64 taken);
static __always_inline __u32 load_vector(struct xdp_md *ctx, const struct message *m,
					 const struct step *s, struct vector *v, __u32 *count);
static __always_inline __u16 vector_pid(const struct vector *v, __u32 at);
static __always_inline int store_vector(struct xdp_md *ctx, const struct message *m,
					struct vector *old, struct vector *new, __u32 len);
static __always_inline __u32 report(const struct message *m, struct step *s,
				    struct partition_bank *p);
static __always_inline __u32 rejected(struct xdp_md *ctx, const struct message *m, struct step *s);
static __noinline __u32 probe(struct xdp_md *ctx, const struct message *m, struct step *s,
			      struct partition_bank *p);

static __always_inline int window_open(const struct partition_bank *p, __u64 next, __u64 window);
static __always_inline __u32 take(struct partition_bank *p, __u64 window, __u64 change,
				  __u64 *inst);
static __always_inline __u32 take_soon(struct partition_bank *p, __u64 window, __u64 change,
				       __u64 *inst);
SUBPROGRAM int await_unlocked(__u64 *next);
static __always_inline void send(struct xdp_md *ctx, struct message *m, struct step *s, __u64 inst,
				 __u32 partitions);
static __always_inline __u32 reject(struct xdp_md *ctx, const struct message *m, struct step *s,
				    __u16 reason, __u64 trimmed);
static __always_inline struct partition_bank *partition_of(const struct step *s, __u16 pid);
static __always_inline __u32 round_of(const struct step *s);
static __noinline __u32 note(struct leader_bank *bank, __u16 acceptor);
static __always_inline __u32 acceptor_bit(const struct preemption *p, __u16 node);

/* ---- Handlers */

/* Takes one packet, and returns the program's action. */
static __always_inline int step(struct xdp_md *ctx)
{
	struct step s = {};
	struct message m;
	int refused = 0;
	__u32 at;

	if (!receive(ctx, &m, &s.common))
		return s.common.action;
	/* A REQUEST keeps its checksum, right or wrong, so acceptors see damage, which costs only
	 * an instance. If the value moves, a new checksum would hide the damage, so the old one is
	 * checked here. [M-CHECKSUM] */
	if (needs_checksum(&s.common) && m.msgtype != REPLY &&
	    (m.msgtype != REQUEST || (m.flags & FLAG_TAG)))
		refused = verify(&m);
	if (refused)
		return drop(refused);
	at = s.common.group->index;
	s.leader = bpf_map_lookup_elem(&leaders, &at);
	if (!s.leader)
		return XDP_ABORTED;
	s.which = READ_ONCE(s.leader->bank) & 1;
	s.bank = &s.leader->banks[s.which & 1];
	count(handle(ctx, &m, &s));
	return leave(ctx, &m, &s.common);
}

/* Checks the checksum. It isn't inlined, since most packets here are requests, which need no
 * check. */
static __noinline int verify(const struct message *m)
{
	return verify_checksum(m);
}

/* Stamps a REQUEST, if the role is programmed and the window is open. Instance, round and sender in
 * a REQUEST are ignored. [L-STAMP] [Q-STAMP] */
static __always_inline __u32 request(struct xdp_md *ctx, struct message *m, struct step *s,
				     struct partition_bank *p)
{
	__u32 partitions = 1, refused;
	__u64 inst = 0;

	s->rnd = round_of(s);
	if (!s->rnd)
		return reject(ctx, m, s, REASON_NOT_LEADER, READ_ONCE(p->trimmed));
	stop_at(STOP_BEFORE_TAKING);
	s->trimmed = 0;
	if (m->flags & FLAG_MULTI) {
		refused = request_multi(ctx, m, s, &inst, &partitions);
		/* The header is where it was. The verifier need not know the address during the
		 * loops in this call, which halves the states that it goes through. */
		if (!refused && !find_header(ctx, m))
			refused = REASON_TRUNCATED;
	} else {
		refused = take(p, s->bank->window, 1, &inst);
		if (refused)
			s->trimmed = READ_ONCE(p->trimmed);
	}
	if (refused == REASON_WINDOW)
		return reject(ctx, m, s, refused, s->trimmed);
	if (refused)
		return refused;
	stop_at(STOP_AFTER_TAKING);
	send(ctx, m, s, inst, partitions);
	return VERDICT_CHANGED;
}

/* Stamps the vector in the packet. Returns 0 with the first partition's instance and the number of
 * partitions, or a reason. */
static __noinline __u32 request_multi(struct xdp_md *ctx, const struct message *m, struct step *s,
				      __u64 *first, __u32 *partitions)
{
	struct scratch *scratch = this_scratch();
	struct vector *old, *new;
	__u64 trimmed = 0;
	__u32 n = 0, refused;

	if (!scratch)
		return REASON_FULL;
	old = (void *)scratch->datagram;
	new = (void *)scratch->datagram + 512;
	refused = load_vector(ctx, m, s, new, &n);
	if (refused)
		return refused;
	__builtin_memcpy(old, new, sizeof(*new));
	if (!try_lock(&s->leader->lock))
		return REASON_BUSY;
	refused = take_all(s, new, n, &trimmed);
	unlock(&s->leader->lock);
	s->trimmed = trimmed;
	if (refused)
		return refused;
	*first = (__u64)bpf_ntohl(*(__be32 *)(new->bytes + 8)) << 32 |
		 bpf_ntohl(*(__be32 *)(new->bytes + 12));
	*partitions = n;
	/* If this fails, its instances are gaps, like those of a lost packet. */
	return store_vector(ctx, m, old, new, VECTOR_HEAD_LEN + n * VECTOR_ENTRY_LEN) ?
		       0 :
		       REASON_TRUNCATED;
}

/* Takes one instance of every partition that the command names, or of none. The first is taken once
 * all are locked, so nothing is stamped between any two of them, commands to a single partition
 * included. [L-MULTI] */
static __noinline __u32 take_all(struct step *s, struct vector *v, __u32 n, __u64 *trimmed)
{
	__u32 refused = 0, locked = 0;

	put32(v->bytes, s->rnd);
	for (__u32 i = 0; i < MAX_VECTOR; i++) {
		struct partition_bank *p;

		if (i >= n)
			break;
		p = partition_of(s, vector_pid(v, i));
		refused = p ? lock_place(p, s->bank->window) : REASON_FULL;
		if (refused) {
			*trimmed = p ? READ_ONCE(p->trimmed) : 0;
			break;
		}
		locked++;
		stop_at(STOP_AMONG_PLACES);
		put64(v->bytes + VECTOR_HEAD_LEN + i * VECTOR_ENTRY_LEN + 2,
		      READ_ONCE(p->next) & ~NEXT_LOCKED);
	}
	for (__u32 i = 0; i < MAX_VECTOR; i++) {
		struct partition_bank *p;

		if (i >= locked)
			break;
		p = partition_of(s, vector_pid(v, i));
		if (p)
			unlock_place(p, refused ? 0 : 1);
	}
	return refused;
}

/* Locks `next` of a partition, and returns 0 or a reason. As a global function it is verified once,
 * and not for each partition. */
__noinline int lock_place(struct partition_bank *p, __u64 window)
{
	__u64 inst;

	return p ? take(p, window, NEXT_LOCKED, &inst) : REASON_FULL;
}

/* Unlocks `next` with `taken` more instances. Other CPUs don't change it while it is locked. */
__noinline int unlock_place(struct partition_bank *p, __u64 taken)
{
	if (!p)
		return 0;
	/* An exchange is a full barrier. */
	return __sync_lock_test_and_set(&p->next, (READ_ONCE(p->next) & ~NEXT_LOCKED) + taken) != 0;
}

/* Reads the vector (`Vector::parse`), and returns 0 or a reason. */
static __always_inline __u32 load_vector(struct xdp_md *ctx, const struct message *m,
					 const struct step *s, struct vector *v, __u32 *count)
{
	__u32 n, len;

	__builtin_memset(v, 0, sizeof(*v));
	if (m->value_len < VECTOR_HEAD_LEN ||
	    bpf_xdp_load_bytes(ctx, value_at(m), v, VECTOR_HEAD_LEN))
		return REASON_BAD_VALUE;
	n = v->bytes[4] << 8 | v->bytes[5];
	KEEP(n);
	if (n == 0 || n > MAX_VECTOR)
		return REASON_BAD_VALUE;
	len = VECTOR_HEAD_LEN + n * VECTOR_ENTRY_LEN;
	if (m->value_len < len)
		return REASON_BAD_VALUE;
	if (!load_bytes(ctx, value_at(m), v, len, sizeof(*v)))
		return REASON_BAD_VALUE;
	for (__u32 i = 1; i < MAX_VECTOR; i++) {
		if (i >= n)
			break;
		if (vector_pid(v, i - 1) >= vector_pid(v, i))
			return REASON_BAD_VALUE;
	}
	if (vector_pid(v, 0) != m->pid)
		return REASON_BAD_VALUE;
	/* The partitions ascend, so the check of the last one covers all. */
	if (vector_pid(v, (n - 1) & (MAX_VECTOR - 1)) >= s->common.group->partitions)
		return REASON_UNKNOWN_PARTITION;
	*count = n;
	return 0;
}

static __always_inline __u16 vector_pid(const struct vector *v, __u32 at)
{
	const __u8 *entry = v->bytes + VECTOR_HEAD_LEN + at * VECTOR_ENTRY_LEN;

	return entry[0] << 8 | entry[1];
}

/* Writes the stamped vector into the packet and updates its checksum. */
static __always_inline int store_vector(struct xdp_md *ctx, const struct message *m,
					struct vector *old, struct vector *new, __u32 len)
{
	__u32 udp_at = m->header_at == HEADER_AT_V4 ? HEADER_AT_V4 - sizeof(struct udphdr) :
						      HEADER_AT_V6 - sizeof(struct udphdr);
	struct udphdr *udp;

	if (!store_bytes(ctx, value_at(m), new, len, sizeof(*new)))
		return 0;
	udp = (void *)(long)ctx->data + udp_at;
	if ((void *)(udp + 1) > (void *)(long)ctx->data_end)
		return 0;
	csum_grow(udp, csum_change(old, new, sizeof(*new)));
	return 1;
}

/* Handles a replica's TRIM, which opens the window. [L-TRIM] [Q-WINDOW] */
static __always_inline __u32 report(const struct message *m, struct step *s,
				    struct partition_bank *p)
{
	__u32 refused = take_report(m, &s->bank->replicas, p->reports, &p->reporting,
				    round_epoch(s->bank->rnd), &p->trimmed);

	return refused ? refused : VERDICT_CHANGED;
}

/* Counts an acceptor's refusal of a stamped packet. f+1 refusals with a round of some later epoch
 * end the stamping; fewer may be forged, and the other acceptors still make a quorum. A refusal
 * with a repair round of the same epoch is ignored, since it concerns that instance alone.
 * [L-RETIRE] [Q-RETIRE] */
static __always_inline __u32 rejected(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	struct {
		__be16 reason;
		__be16 zero;
		__be32 round;
		__be32 trim[2];
	} rejection = {};
	__u32 round, reason, refused;

	if (m->value_len != REJECTION_LEN ||
	    bpf_xdp_load_bytes(ctx, value_at(m), &rejection, REJECTION_LEN))
		return REASON_BAD_VALUE;
	reason = bpf_ntohs(rejection.reason);
	round = bpf_ntohl(rejection.round);
	if (rejection.zero || reason == 0 || reason >= REASONS)
		return REASON_BAD_VALUE;
	if (reason != REASON_PREEMPTED)
		return REASON_UNEXPECTED;
	if (!NAMES_ROUND(round))
		return REASON_BAD_ROUND;
	if (!round_of(s) || m->rnd != s->bank->rnd ||
	    round_epoch(round) <= round_epoch(s->bank->rnd))
		return REASON_STALE;
	refused = note(s->bank, sender_of(m));
	return refused ? refused : VERDICT_CHANGED;
}

static __noinline __u32 probe(struct xdp_md *ctx, const struct message *m, struct step *s,
			      struct partition_bank *p)
{
	int refused = probe_is_for(ctx, m, STAMPING_ROLE);

	if (refused)
		return refused;
	sent(&s->common,
	     send_probe_ack(ctx, s->common.device, m, round_of(s),
			    READ_ONCE(p->next) & ~NEXT_LOCKED, s->leader->nonce,
			    READ_ONCE(p->trimmed), 0),
	     XDP_TX);
	return VERDICT_ANSWERED;
}

/* ---- Helpers */

/* Returns true if the next instance lies in the window. [L-WINDOW] [Q-WINDOW] */
static __always_inline int window_open(const struct partition_bank *p, __u64 next, __u64 window)
{
	__u64 trimmed = READ_ONCE(p->trimmed);

	/* What is locked is closed, too. */
	return next < END && (next <= trimmed ? 0 : next - trimmed) < window;
}

/* Adds `change` to `next`, if the window is open. Returns 0 with the instance that was next, or a
 * reason. */
static __always_inline __u32 take(struct partition_bank *p, __u64 window, __u64 change, __u64 *inst)
{
	__u32 refused = take_soon(p, window, change, inst);

	if (refused == REASON_BUSY && await_unlocked(&p->next))
		refused = take_soon(p, window, change, inst);
	return refused;
}

/* Takes an instance as `take` does, without waiting for a command over several partitions. */
static __always_inline __u32 take_soon(struct partition_bank *p, __u64 window, __u64 change,
				       __u64 *inst)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		__u64 next = READ_ONCE(p->next);

		if (!window_open(p, next, window))
			return next & NEXT_LOCKED ? REASON_BUSY : REASON_WINDOW;
		if (__sync_val_compare_and_swap(&p->next, next, next + change) == next) {
			*inst = next;
			return 0;
		}
	}
	return REASON_BUSY;
}

struct awaited {
	__u64 *next;
	int unlocked;
};

static long look_at_lock(__u32 unused __attribute__((unused)), struct awaited *awaited)
{
	awaited->unlocked = !(READ_ONCE(*awaited->next) & NEXT_LOCKED);
	return awaited->unlocked;
}

/* Waits for a command over several partitions. Returns false if it takes too long. */
SUBPROGRAM int await_unlocked(__u64 *next)
{
	struct awaited awaited = { .next = next };

	bpf_loop(MAX_WAITS, look_at_lock, &awaited, 0);
	return awaited.unlocked;
}

/* Sends the stamped REQUEST to all members. If it names several partitions, this is the copy of the
 * first one; the program on egress makes the copies of the others, each with another partition and
 * instance in its header. */
static __always_inline void send(struct xdp_md *ctx, struct message *m, struct step *s, __u64 inst,
				 __u32 partitions)
{
	struct stamp stamp = {
		.orders = 1,
		.rnd = s->rnd,
		.inst = inst,
		.flags = m->flags & FLAGS_OF_VALUE,
		.msgtype = STAMPED,
	};
	int action = send_multicast(ctx, s->common.device, m, &stamp, partitions);

	sent(&s->common, action != NOT_SENT, action);
}

static __always_inline __u32 reject(struct xdp_md *ctx, const struct message *m, struct step *s,
				    __u16 reason, __u64 trimmed)
{
	struct rejection says = {
		.reason = reason,
		.round = reason == REASON_NOT_LEADER ? s->bank->rnd : 0,
		.trim = trimmed,
	};

	__u64 counter = counter_of(ctx, m);
	int done = send_reject(ctx, s->common.device, m, &says);

	sent(&s->common, done, XDP_TX);
	/* The node's process will see the same counter again, and must not take it for a
	 * repetition. */
	if (!done && s->common.device->flags & DEVICE_SIGNED)
		expect_again(m->signer, m->client, counter);
	return VERDICT_REJECTED + reason;
}

static __always_inline struct partition_bank *partition_of(const struct step *s, __u16 pid)
{
	/* This doesn't call `partition_in`, since the verifier would go through a quarter more
	 * states in the loops over a vector. */
	__u32 at = s->common.group->first_partition + pid;
	struct partition *partition = bpf_map_lookup_elem(&partitions, &at);

	return partition ? &partition->banks[s->which & 1] : NULL;
}

/* Returns the round that the role stamps in, or 0 if it isn't programmed or has retired.
 * [L-PROGRAM] [Q-PROGRAM] */
static __always_inline __u32 round_of(const struct step *s)
{
	return READ_ONCE(s->bank->retired) ? 0 : READ_ONCE(s->bank->rnd);
}

/* ---- Counting refusals */

/* Notes an acceptor's word, and returns 0 or a reason. If several CPUs note words at once, the one
 * that sets the last bit sees all of them. */
static __noinline __u32 note(struct leader_bank *bank, __u16 acceptor)
{
	__u32 bit = acceptor_bit(&bank->preemption, acceptor);
	__u32 told;

	if (!bit)
		return REASON_UNKNOWN_SENDER;
	told = __sync_fetch_and_or(&bank->preemption.told, bit);
	if (told & bit)
		return REASON_DUPLICATE;
	if (are_quorum(told | bit, bank->preemption.quorum))
		WRITE_ONCE(bank->retired, 1);
	return 0;
}

/* Returns the bit of an acceptor, or 0 if it isn't in the epoch's list. */
static __always_inline __u32 acceptor_bit(const struct preemption *p, __u16 node)
{
	for (__u32 i = 0; i < MAX_ACCEPTORS; i++) {
		if (i >= p->count)
			break;
		if (p->node[i] == node)
			return 1u << i;
	}
	return 0;
}

#endif
