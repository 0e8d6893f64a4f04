// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The acceptor: remembers promises and votes (Algorithm 2 of both papers;
 * docs/protocol/acceptor.md).
 *
 * It follows crates/paxos/src/acceptor.rs step by step. Membership lies in the same memory as the
 * votes. A partition that has promised nothing is a stranger's, which answers PROBE and nothing
 * else; PROBE shows a stranger until all partitions are a member's.
 *
 * Several CPUs: each slot belongs to a stripe. A CPU that touches a slot holds its stripe's lock,
 * and looks at `floor` and raises the stripe's `end` under that lock. A range promise first raises
 * `floor`, then waits for each lock, then reads every `end`: so a vote either lies below the `end`
 * that the promise shows, or has found the floor raised. The other order loses votes. */
#include "include/bench.h"
#include "include/clone.h"
#include "include/reports.h"
#include "include/role.h"
#include "include/value.h"

/* ---- Types */

/* A slot of zeros is unused: it has no round, so it holds neither a promise nor a vote. Short
 * values lie in the slot itself, since another place a kilobyte apart for each vote would miss the
 * cache and the page table. */
struct slot {
	__u64 inst;
	__u64 client;
	__u64 request;
	__u32 rnd;
	__u32 vrnd;
	__u16 flags;
	__u16 len;
	__u8 short_value[SHORT_VALUE];
	/* These bytes may be read by csum_bytes behind the value. */
	__u32 padding;
};
_Static_assert(sizeof(struct slot) == 128, "a slot is two cache lines");

struct long_value {
	__u8 bytes[MAX_VALUE];
	__u64 padding;
};

/* Each stripe has a cache line of its own, since other CPUs use its neighbours. */
struct stripe {
	/* 1 + the largest instance of this stripe voted for; 0 = none. */
	__u64 end;
	__u32 lock;
	__u32 unused[13];
};
_Static_assert(sizeof(struct stripe) == 64, "a stripe is a cache line");

#define STRIPES 16
/* How many starts are remembered at which the memory was asked for an earlier one. */
#define TOLD_STARTS 128
struct partition {
	/* The round promised for all instances: at least the base round of the epoch that has
	 * enabled this memory last. It is written after all other fields of the partition. 0 = a
	 * stranger. */
	__u32 floor;
	/* The future `floor` of a memory that was read from disk and is mute until the controller
	 * lets it go on; until then it is as silent as a stranger's memory. Otherwise 0. */
	__u32 held;
	/* The instance below which everything is forgotten. */
	__u64 trim;
	/* The instance below which earlier epochs may have voted. The partition's `end` is the
	 * largest of this, `trim` and the `end` of each stripe. */
	__u64 earlier;
	/* The nonce of the candidate that has the promise of the round `raised`. If enabling set
	 * `floor`, no candidate has its promise, and the first that asks gets it. */
	__u64 raiser;
	__u32 raised;
	/* The lock of `reports` and of the two fields before. */
	__u32 reporting;
	__u64 padding[3];
	struct stripe stripes[STRIPES];
	struct trim_report reports[2][MAX_REPLICAS];
};

struct membership {
	/* The boot nonce of this memory, drawn when it starts empty; never 0. */
	__u64 nonce;
	/* The current start of this memory, as PROBE shows it. */
	__u64 start;
	/* The epoch that enabled this memory last; written after all partitions. */
	__u32 epoch;
	/* The index of the replicas and reports in use. */
	__u32 bank;
	struct replicas replicas[2];
	/* The last starts at which this memory was asked for an earlier one, in turn, and their
	 * number. Only user space uses them. */
	__u64 told[TOLD_STARTS];
	__u64 told_count;
};

/* ---- State */

SHARED_ARRAY(members, 1, struct membership);
SHARED_ARRAY(partitions, 1, struct partition);
SHARED_ARRAY(slots, 65536, struct slot);
SHARED_ARRAY(long_values, 65536, struct long_value);

/* The data that a handler works on. */
struct step {
	struct common common;
	struct partition *partition;
	/* The slot of the instance, if that is in the window, and the slot's stripe. */
	struct slot *slot;
	struct stripe *stripe;
	__u32 index;
};

/* ---- Functions: named and ordered as in crates/paxos/src/acceptor.rs. What only this plane has stands behind
 * who needs it. Handlers return a verdict and set `common.action`. */

static __always_inline __u32 handle(struct xdp_md *ctx, struct message *m, struct step *s);
static __always_inline __u32 silent(const struct step *s);
static __always_inline __u32 phase2a(struct xdp_md *ctx, struct message *m, struct step *s);
static __always_inline __u32 vote(struct xdp_md *ctx, const struct message *m, struct step *s,
				  __u16 *flags);
static __always_inline __u32 phase1a(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 promise(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 phase1a_range(struct xdp_md *ctx, const struct message *m,
					   struct step *s);
static __always_inline __u32 raise_floor(struct partition *partition, const struct message *m,
					 __u32 *before);
static __always_inline int await_votes(struct partition *partition);
static __always_inline __u32 query(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 show(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 query_range(struct xdp_md *ctx, const struct message *m,
					 struct step *s);
static __always_inline __u32 trim_to(const struct message *m, struct step *s);
static __always_inline __u32 report(const struct message *m, struct step *s);
static __always_inline __u32 probe(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 shown_floor(const struct step *s);
static __always_inline __u64 start_of(const struct step *s);

static __always_inline __u32 within_window(const struct message *m, const struct step *s,
					   __u64 trim);
static __always_inline __u32 not_overtaken(const struct message *m, const struct slot *slot);
static __always_inline __u32 not_preempted(const struct message *m, const struct step *s,
					   __u32 *round);
static __always_inline __u32 promised(const struct slot *slot, __u64 inst, __u32 floor);
static __always_inline __u32 reject(struct xdp_md *ctx, const struct message *m, struct step *s,
				    __u16 reason, __u32 round, __u64 trim);
static __always_inline void send_vote(struct xdp_md *ctx, struct message *m, struct step *s,
				      __u16 flags);
static __always_inline void send_range_report(struct xdp_md *ctx, const struct message *m,
					      struct step *s, __u32 rnd);
SUBPROGRAM __u64 end_of(const struct partition *partition, __u64 trim);
static __always_inline int find(const struct message *m, struct step *s);
static __always_inline struct membership *membership_of(const struct step *s);
static __always_inline __u64 nonce_of(const struct step *s);
static __always_inline int send_value(struct xdp_md *ctx, const struct message *m, struct answer *a,
				      struct slot *slot, __u32 index);
static __noinline int send_short_value(struct xdp_md *ctx, __u32 header_at, struct answer *a,
				       struct slot *slot);
static __noinline int send_long_value(struct xdp_md *ctx, __u32 header_at, struct answer *a,
				      __u32 index, __u32 len);
static __always_inline int store_value(struct xdp_md *ctx, const struct message *m,
				       struct slot *slot, __u32 index);
static __always_inline int voted_for(const struct slot *slot, const struct message *m);
static __always_inline __u32 valid_noop(const struct message *m);

/* ---- Handlers */

/* Takes one packet, and returns the program's action. */
static __always_inline int step(struct xdp_md *ctx)
{
	struct step s = {};
	struct message m;
	int refused = 0;

	if (!receive(ctx, &m, &s.common))
		return s.common.action;
	if (!find(&m, &s))
		return XDP_ABORTED;
	/* The slot comes from far away, so this loads it long before it is needed. */
	READ_ONCE(s.slot->inst);
	READ_ONCE(s.slot->padding);
	/* A stored value is shown again under a checksum of its own, so a damaged value must not
	 * get that far. [M-CHECKSUM] */
	if (m.msgtype != REPLY && needs_checksum(&s.common))
		refused = verify_checksum(&m);
	if (refused)
		return drop(refused);
	count(handle(ctx, &m, &s));
	return leave(ctx, &m, &s.common);
}

static __always_inline __u32 handle(struct xdp_md *ctx, struct message *m, struct step *s)
{
	int range = m->flags & FLAG_RANGE;

	if (!READ_ONCE(s->partition->floor) && m->msgtype != PROBE)
		return silent(s);
	/* The most frequent type comes first. */
	if (m->msgtype == PHASE2A)
		return phase2a(ctx, m, s);
	switch (m->msgtype) {
	case PROBE:
		return probe(ctx, m, s);
	case PHASE1A:
		return range ? phase1a_range(ctx, m, s) : phase1a(ctx, m, s);
	case QUERY:
		return range ? query_range(ctx, m, s) : query(ctx, m, s);
	case TRIM:
		return trim_to(m, s);
	default:
		return because(REASON_NOT_FOR_ROLE);
	}
}

/* Returns the reason why a memory without a floor answers only PROBE. [A-STRANGER] [A-MUTE] */
static __always_inline __u32 silent(const struct step *s)
{
	return because(READ_ONCE(s->partition->held) ? REASON_RESTARTED : REASON_STRANGER);
}

/* Votes, unless a higher round was promised. [A-VOTE] */
static __always_inline __u32 phase2a(struct xdp_md *ctx, struct message *m, struct step *s)
{
	__u64 trim = READ_ONCE(s->partition->trim);
	__u32 refused, verdict, round = 0;
	__u16 flags = 0;

	if (!round_is_valid(m->rnd))
		return because(REASON_BAD_ROUND);
	refused = valid_noop(m);
	if (refused)
		return refused;
	refused = within_window(m, s, trim);
	if (refused)
		return reject(ctx, m, s, refused, 0, trim);
	if (!lock_soon(&s->stripe->lock))
		return because(REASON_BUSY);
	refused = not_overtaken(m, s->slot);
	if (!refused)
		refused = not_preempted(m, s, &round);
	verdict = refused ? refused : vote(ctx, m, s, &flags);
	unlock(&s->stripe->lock);
	if (refused)
		return reject(ctx, m, s, refused, round, trim);
	if (verdict == VERDICT_CHANGED || verdict == VERDICT_ANSWERED)
		send_vote(ctx, m, s, flags);
	return verdict;
}

/* Stores the vote, unless the slot holds it already. The stripe is locked. */
static __always_inline __u32 vote(struct xdp_md *ctx, const struct message *m, struct step *s,
				  __u16 *flags)
{
	struct stripe *stripe = s->stripe;
	struct slot *slot = s->slot;

	if (slot->inst == m->inst && slot->vrnd == m->rnd) {
		/* Two values in one round are impossible if all rules hold. [A-CONFLICT] */
		if (!voted_for(slot, m))
			return REASON_CONFLICT;
		*flags = slot->flags;
		return VERDICT_ANSWERED;
	}
	if (!store_value(ctx, m, slot, s->index))
		return REASON_FULL;
	if (stripe->end <= m->inst)
		WRITE_ONCE(stripe->end, m->inst + 1);
	slot->inst = m->inst;
	slot->client = m->client;
	slot->request = m->request;
	slot->rnd = m->rnd;
	slot->vrnd = m->rnd;
	slot->flags = m->flags & FLAGS_OF_VALUE;
	slot->len = m->value_len;
	*flags = slot->flags;
	return VERDICT_CHANGED;
}

/* Promises a round for one instance, and answers with its vote. [A-PROMISE] */
static __always_inline __u32 phase1a(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	__u64 trim = READ_ONCE(s->partition->trim);
	__u32 refused, verdict, round = 0;

	if (!round_is_valid(m->rnd))
		return REASON_BAD_ROUND;
	if (m->value_len)
		return REASON_BAD_VALUE;
	refused = within_window(m, s, trim);
	if (refused)
		return reject(ctx, m, s, refused, 0, trim);
	if (!lock_soon(&s->stripe->lock))
		return because(REASON_BUSY);
	refused = not_overtaken(m, s->slot);
	if (!refused)
		refused = not_preempted(m, s, &round);
	verdict = refused ? refused : promise(ctx, m, s);
	unlock(&s->stripe->lock);
	return refused ? reject(ctx, m, s, refused, round, trim) : verdict;
}

/* Promises the round, and builds the answer while the stripe is locked. */
static __always_inline __u32 promise(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	struct slot *slot = s->slot;
	struct answer a = {};
	__u32 verdict = VERDICT_ANSWERED;

	if (slot->inst != m->inst) {
		/* The old instance lies below `trim`, so its promise and its vote are void. */
		slot->inst = m->inst;
		slot->client = 0;
		slot->request = 0;
		slot->rnd = 0;
		slot->vrnd = 0;
		slot->flags = 0;
		slot->len = 0;
	}
	if (slot->rnd != m->rnd) {
		slot->rnd = m->rnd;
		verdict = VERDICT_CHANGED;
	}
	answer_header(&a.h, s->common.device, m, PHASE1B);
	set_inst(&a.h, m->inst);
	set_session(&a.h, slot->client, slot->request);
	a.h.rnd = bpf_htonl(m->rnd);
	a.h.vrnd = bpf_htonl(slot->vrnd);
	set_flags(&a.h, slot->flags);
	sent(&s->common, send_value(ctx, m, &a, slot, s->index), XDP_TX);
	return verdict;
}

/* Promises a base round for all instances of the partition, and answers how far votes reach.
 * [A-RANGE] */
static __always_inline __u32 phase1a_range(struct xdp_md *ctx, const struct message *m,
					   struct step *s)
{
	struct partition *partition = s->partition;
	__u32 before = 0, verdict;

	if (!round_is_base(m->rnd))
		return REASON_BAD_ROUND;
	if (m->value_len)
		return REASON_BAD_VALUE;
	if (!m->client)
		return REASON_BAD_SESSION;
	/* `floor` is raised before `end` is read, since the other order loses votes. */
	if (!lock_soon(&partition->reporting))
		return REASON_BUSY;
	verdict = raise_floor(partition, m, &before);
	unlock(&partition->reporting);
	if (verdict == VERDICT_REJECTED + REASON_PREEMPTED)
		return reject(ctx, m, s, REASON_PREEMPTED, before, READ_ONCE(partition->trim));
	if (verdict != VERDICT_ANSWERED && verdict != VERDICT_CHANGED)
		return verdict;
	/* All votes that found the old floor have ended when `end` is read. */
	if (!await_votes(partition))
		return REASON_BUSY;
	send_range_report(ctx, m, s, m->rnd);
	return verdict;
}

/* Raises the floor for the candidate that asks, or finds that this was done before. A round has
 * only one candidate; another one belongs to a second controller on a copied store, and is refused.
 * The partition is locked, but the node's process may raise the floor at any time. [A-ONE] */
static __always_inline __u32 raise_floor(struct partition *partition, const struct message *m,
					 __u32 *before)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		__u32 floor = READ_ONCE(partition->floor);

		*before = floor;
		if (m->rnd < floor)
			return VERDICT_REJECTED + REASON_PREEMPTED;
		if (m->rnd == floor && partition->raised == m->rnd)
			return partition->raiser == m->client ? VERDICT_ANSWERED : REASON_CONFLICT;
		if (__sync_val_compare_and_swap(&partition->floor, floor, m->rnd) != floor)
			continue;
		partition->raiser = m->client;
		partition->raised = m->rnd;
		return VERDICT_CHANGED;
	}
	return REASON_BUSY;
}

/* Waits until all votes that found the floor lower have ended. Returns false if one takes too long.
 * [A-CPUS] */
static __always_inline int await_votes(struct partition *partition)
{
	for (int i = 0; i < STRIPES; i++) {
		__u32 *lock = &partition->stripes[i].lock;

		if (!lock_soon(lock))
			return 0;
		unlock(lock);
	}
	return 1;
}

/* Answers with the vote of an instance. The answer is never a promise. [A-QUERY] */
static __always_inline __u32 query(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	__u64 trim = READ_ONCE(s->partition->trim);
	__u32 refused, verdict;

	if (m->value_len)
		return REASON_BAD_VALUE;
	refused = within_window(m, s, trim);
	if (refused)
		return reject(ctx, m, s, refused, 0, trim);
	if (!lock_soon(&s->stripe->lock))
		return because(REASON_BUSY);
	refused = not_overtaken(m, s->slot);
	verdict = refused ? refused : show(ctx, m, s);
	unlock(&s->stripe->lock);
	return refused ? reject(ctx, m, s, refused, 0, trim) : verdict;
}

/* Answers with the vote, or with "no vote". The answer is built while the stripe is locked. */
static __always_inline __u32 show(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	struct slot *slot = s->slot;
	struct answer a = {};

	if (slot->inst == m->inst && slot->vrnd) {
		answer_header(&a.h, s->common.device, m, PHASE2B);
		set_inst(&a.h, m->inst);
		set_session(&a.h, slot->client, slot->request);
		a.h.rnd = bpf_htonl(slot->vrnd);
		a.h.vrnd = bpf_htonl(slot->vrnd);
		set_flags(&a.h, slot->flags);
		sent(&s->common, send_value(ctx, m, &a, slot, s->index), XDP_TX);
		return VERDICT_ANSWERED;
	}
	/* This answer has no round, so that it can't pass for a promise. It carries the asker's own
	 * numbers, so that an old answer can't pass for a new one. */
	answer_header(&a.h, s->common.device, m, PHASE1B);
	set_inst(&a.h, m->inst);
	set_session(&a.h, m->client, m->request);
	sent(&s->common, send_short(ctx, m->header_at, &a, 0), XDP_TX);
	return VERDICT_ANSWERED;
}

/* Answers how far votes reach and which floor holds. Linearizable reads rest on this answer. */
static __always_inline __u32 query_range(struct xdp_md *ctx, const struct message *m,
					 struct step *s)
{
	if (m->value_len)
		return REASON_BAD_VALUE;
	send_range_report(ctx, m, s, READ_ONCE(s->partition->floor));
	return VERDICT_ANSWERED;
}

/* Handles TRIM: a replica's report (without a round), or a candidate's trim point (in its base
 * round). [A-TRIM] */
static __always_inline __u32 trim_to(const struct message *m, struct step *s)
{
	struct partition *partition = s->partition;
	__u64 trim = READ_ONCE(partition->trim);

	if (m->value_len)
		return REASON_BAD_VALUE;
	if (!m->rnd)
		return report(m, s);
	if (!round_is_base(m->rnd))
		return REASON_BAD_ROUND;
	if (m->rnd < READ_ONCE(partition->floor) || m->inst < trim)
		return REASON_STALE;
	if (m->inst == trim)
		return REASON_DUPLICATE;
	return raise(&partition->trim, m->inst) ? VERDICT_CHANGED : REASON_BUSY;
}

/* Notes the instance up to which a replica has a durable checkpoint, and trims what enough replicas
 * cover. */
static __always_inline __u32 report(const struct message *m, struct step *s)
{
	struct partition *partition = s->partition;
	const struct membership *membership = membership_of(s);
	__u32 bank, refused;

	if (!membership)
		return REASON_FULL;
	/* The bank that is read now isn't written before this program has ended. [M-BANK] */
	bank = READ_ONCE(membership->bank) & 1;
	refused = take_report(m, &membership->replicas[bank], partition->reports[bank],
			      &partition->reporting, round_epoch(READ_ONCE(partition->floor)),
			      &partition->trim);
	return refused ? refused : VERDICT_CHANGED;
}

static __always_inline __u32 probe(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	struct partition *partition = s->partition;
	__u64 trim = READ_ONCE(partition->trim);
	int refused = probe_is_for(ctx, m, PROBE_ACCEPTOR);

	if (refused)
		return refused;
	sent(&s->common,
	     send_probe_ack(ctx, s->common.device, m, shown_floor(s), end_of(partition, trim),
			    nonce_of(s), trim, start_of(s)),
	     XDP_TX);
	return VERDICT_ANSWERED;
}

/* Returns the floor that PROBE shows. It is 0 in every partition until the order to enable was
 * carried out in all, so that the order is repeated if the process has died on the way.
 * [A-ENABLE] */
static __always_inline __u32 shown_floor(const struct step *s)
{
	const struct membership *membership = membership_of(s);
	__u32 floor = READ_ONCE(s->partition->floor);

	if (!membership || !READ_ONCE(membership->epoch))
		return 0;
	return floor ? floor : READ_ONCE(s->partition->held);
}

static __always_inline __u64 start_of(const struct step *s)
{
	const struct membership *membership = membership_of(s);

	return membership ? READ_ONCE(membership->start) : 0;
}

/* ---- Helpers */

/* Returns the reason to refuse an instance outside the window that `trim` opens, or 0.
 * [A-WINDOW] */
static __always_inline __u32 within_window(const struct message *m, const struct step *s,
					   __u64 trim)
{
	if (m->inst < trim)
		return because(REASON_TRIMMED);
	/* The last instance is never used, so that `end` can always lie beyond. */
	if (m->inst - trim >= s->common.group->slots || m->inst == NO_INSTANCE)
		return because(REASON_WINDOW);
	return 0;
}

/* Returns the reason to refuse an instance whose slot holds a later one, since the earlier one is
 * forgotten, or 0. The stripe is locked. [A-WINDOW] */
static __always_inline __u32 not_overtaken(const struct message *m, const struct slot *slot)
{
	return slot->inst > m->inst ? REASON_TRIMMED : 0;
}

/* Refuses a round below the promised one, which it puts into `round`; returns 0 for any other
 * round. The stripe is locked. */
static __always_inline __u32 not_preempted(const struct message *m, const struct step *s,
					   __u32 *round)
{
	__u32 it = promised(s->slot, m->inst, READ_ONCE(s->partition->floor));

	if (m->rnd >= it)
		return 0;
	*round = it;
	return REASON_PREEMPTED;
}

/* In a slot taken over from an older instance the old promise is void and `floor` holds. [A-PREEMPT] */
static __always_inline __u32 promised(const struct slot *slot, __u64 inst, __u32 floor)
{
	return slot->inst == inst && slot->rnd > floor ? slot->rnd : floor;
}

static __always_inline __u32 reject(struct xdp_md *ctx, const struct message *m, struct step *s,
				    __u16 reason, __u32 round, __u64 trim)
{
	struct rejection says = { .reason = reason, .round = round, .trim = trim };

	sent(&s->common, send_reject(ctx, s->common.device, m, &says), XDP_TX);
	return VERDICT_REJECTED + reason;
}

/* Sends PHASE2B with the value in hand, which is the one voted for. */
static __always_inline void send_vote(struct xdp_md *ctx, struct message *m, struct step *s,
				      __u16 flags)
{
	struct stamp stamp = {
		.vrnd = m->rnd,
		.flags = flags,
		.msgtype = PHASE2B,
	};
	int action = send_multicast(ctx, s->common.device, m, &stamp, 1);

	sent(&s->common, action != NOT_SENT, action);
}

static __always_inline void send_range_report(struct xdp_md *ctx, const struct message *m,
					      struct step *s, __u32 rnd)
{
	__u64 trim = READ_ONCE(s->partition->trim);
	struct answer a = {};

	answer_header(&a.h, s->common.device, m, PHASE1B);
	set_session(&a.h, m->client, m->request);
	a.h.rnd = bpf_htonl(rnd);
	set_flags(&a.h, FLAG_RANGE);
	put64(a.value, end_of(s->partition, trim));
	put64(a.value + 8, trim);
	put64(a.value + 16, nonce_of(s));
	sent(&s->common, send_short(ctx, m->header_at, &a, RANGE_REPORT_LEN), XDP_TX);
}

/* Returns at least the partition's `end` as it was when this was called, and at least `trim`. */
SUBPROGRAM __u64 end_of(const struct partition *partition, __u64 trim)
{
	__u64 end = READ_ONCE(partition->earlier);

	if (end < trim)
		end = trim;
	for (int i = 0; i < STRIPES; i++) {
		__u64 its = READ_ONCE(partition->stripes[i].end);

		if (its > end)
			end = its;
	}
	return end;
}

/* Finds the slot and the partition of an instance. Returns false if the node isn't set up for
 * them. */
static __always_inline int find(const struct message *m, struct step *s)
{
	__u32 at = ring_index(s->common.group, m->pid, m->inst);

	s->partition = partition_in(&partitions, s->common.group, m->pid);
	s->slot = bpf_map_lookup_elem(&slots, &at);
	s->index = at;
	if (!s->partition || !s->slot)
		return 0;
	/* The stripe depends on the slot and not on the instance, since all instances of a slot
	 * must have one lock. */
	s->stripe = &s->partition->stripes[s->index % STRIPES];
	/* Without this the compiler computes the address again at each use. */
	KEEP(s->stripe);
	return 1;
}

/* Returns the group's membership, or NULL if the node isn't set up for it. */
static __always_inline struct membership *membership_of(const struct step *s)
{
	__u32 at = s->common.group->index;

	return bpf_map_lookup_elem(&members, &at);
}

/* Returns the memory's boot nonce, or 0 if there is no memory. */
static __always_inline __u64 nonce_of(const struct step *s)
{
	const struct membership *membership = membership_of(s);

	return membership ? membership->nonce : 0;
}

/* Sends the value of a slot's vote behind an answer's header. Returns false if the frame has no
 * room. */
static __always_inline int send_value(struct xdp_md *ctx, const struct message *m, struct answer *a,
				      struct slot *slot, __u32 index)
{
	if (slot->len <= SHORT_VALUE)
		return send_short_value(ctx, m->header_at, a, slot);
	return send_long_value(ctx, m->header_at, a, index, slot->len);
}

static __noinline int send_short_value(struct xdp_md *ctx, __u32 header_at, struct answer *a,
				       struct slot *slot)
{
	__u32 len = slot->len;

	KEEP(len);
	if (len > SHORT_VALUE)
		return 0;
	return send_answer(ctx, header_at, a, 0, slot->short_value, len, SHORT_VALUE, 1);
}

static __noinline int send_long_value(struct xdp_md *ctx, __u32 header_at, struct answer *a,
				      __u32 index, __u32 len)
{
	struct long_value *value = bpf_map_lookup_elem(&long_values, &index);

	if (!value || len > MAX_VALUE)
		return 0;
	return send_answer(ctx, header_at, a, 0, value->bytes, len, MAX_VALUE, 1);
}

static __always_inline int store_value(struct xdp_md *ctx, const struct message *m,
				       struct slot *slot, __u32 index)
{
	__u32 len = m->value_len;
	struct long_value *value;

	KEEP(len);
	if (len == 0)
		return 1;
	if (len <= SHORT_VALUE)
		return copy_short(ctx, m, m->header, m->end, slot->short_value, len);
	value = bpf_map_lookup_elem(&long_values, &index);
	return value && load_bytes(ctx, value_at(m), value->bytes, len, MAX_VALUE);
}

static __always_inline int voted_for(const struct slot *slot, const struct message *m)
{
	return slot->client == m->client && slot->request == m->request &&
	       !((slot->flags ^ m->flags) & FLAG_NOOP);
}

/* Returns the reason to refuse a no-op that is packed or over several partitions, or whose value is
 * neither empty nor as long as an EPOCH marker; a no-op has no command in it. [A-NOOP] */
static __always_inline __u32 valid_noop(const struct message *m)
{
	if (!(m->flags & FLAG_NOOP))
		return 0;
	if ((m->flags & FLAGS_OF_VALUE) != FLAG_NOOP)
		return because(REASON_BAD_FLAGS);
	return m->value_len == 0 || m->value_len == MARKER_LEN ? 0 : because(REASON_BAD_VALUE);
}

SEC("xdp")
int acceptor(struct xdp_md *ctx)
{
	return step(ctx);
}

char _license[] SEC("license") = "GPL";
