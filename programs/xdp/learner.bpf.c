// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The learner: counts votes (Algorithm 3 of both papers; docs/protocol/learner.md).
 *
 * It follows crates/paxos/src/learner.rs step by step. On f+1 equal votes of the round's
 * configuration the value in hand is decided. In a replica's host the value goes to the partition's
 * ring; in the network it leaves as one DELIVER, which the learner in a replica's host takes as
 * decided. A full ring loses nothing: the vote isn't counted, and the next vote or the replica's
 * repair completes the quorum. [D-OPAQUE] [D-FULL] */
#include "include/bench.h"
#include "include/clone.h"
#include "include/ring.h"
#include "include/role.h"

/* ---- Types */

#define MAX_KNOWN 16
#define MAX_TRUSTED 7

struct known {
	__u32 epoch;
	__u16 quorum;
	__u16 count;
	__u16 acceptors[MAX_ACCEPTORS];
};

/* Learner nodes elsewhere whose DELIVER is a decision here. */
struct trusted {
	__u16 count;
	__u16 learners[MAX_TRUSTED];
};

/* The known configurations, newest first, since nearly every vote is of the newest epoch. Epoch 0
 * marks an unused entry. */
struct configurations {
	__u32 bank;
	__u32 unused;
	struct known known[2][MAX_KNOWN];
};

/* A slot of zeros is unused: it has no round, so it holds no votes. */
struct slot {
	__u64 inst;
	__u64 client;
	__u64 request;
	__u32 rnd;
	__u32 votes;
	__u16 noop;
	__u16 delivered;
	__u32 lock;
};

/* ---- State */

SHARED_ARRAY(trusted, 1, struct trusted);
SHARED_ARRAY(configurations, 1, struct configurations);
SHARED_ARRAY(slots, 65536, struct slot);

/* The data that a handler works on. */
struct step {
	struct common common;
	struct configurations *all;
	struct partition *partition;
	/* The slot of the instance, if that is in the window. */
	struct slot *slot;
	/* True if a decision was handed over, by ring or DELIVER. */
	__u32 decided;
};

/* ---- Functions: named and ordered as in crates/paxos/src/learner.rs. What only this plane has stands behind
 * who needs it. Handlers return a verdict and set `common.action`. */

static __always_inline int is_decision(const struct message *m, const struct step *s);
static __always_inline int is_shown(const struct step *s, __u32 verdict);
static __always_inline __u32 handle(struct xdp_md *ctx, struct message *m, struct step *s);
static __always_inline __u32 phase2b(struct xdp_md *ctx, struct message *m, struct step *s);
static __always_inline __u32 count_vote(struct xdp_md *ctx, const struct message *m, struct step *s,
					__u32 vote, __u32 quorum, int *decided);
static __always_inline __u32 deliver(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 take_decision(struct xdp_md *ctx, const struct message *m,
					   struct step *s);

static __always_inline int is_trusted(__u16 node);
static __always_inline __u32 within_window(const struct message *m, const struct step *s);
static __always_inline struct known *known_of(struct configurations *all, __u32 epoch);
static __always_inline void send_decision(struct xdp_md *ctx, struct message *m, struct step *s);
static __always_inline __u32 voter(const struct known *known, __u16 node);
static __always_inline int same_value(const struct slot *slot, const struct message *m);
static __always_inline int find(const struct message *m, struct step *s);
static __always_inline int is_at_socket(const struct step *s);
static __always_inline int is_in_network(const struct step *s);

/* ---- Handlers */

/* Takes one packet, and returns the program's action. */
static __always_inline int step(struct xdp_md *ctx)
{
	struct step s = {};
	struct message m;
	int refused = 0;
	__u32 verdict;

	if (!receive(ctx, &m, &s.common))
		return s.common.action;
	if (m.msgtype != PHASE2B && !is_decision(&m, &s)) {
		if (s.common.group->flags & GROUP_PASS_OTHERS)
			return pass_on();
		return drop(REASON_NOT_FOR_ROLE);
	}
	if (!find(&m, &s))
		return XDP_ABORTED;
	/* The slot comes from far away, so this loads it long before it is needed. */
	READ_ONCE(s.slot->inst);
	/* Values leave the network here for an application, so their checksum must be right.
	 * [M-CHECKSUM] */
	if (needs_checksum(&s.common))
		refused = verify_checksum(&m);
	if (refused)
		return drop(refused);
	verdict = handle(ctx, &m, &s);
	count_both(verdict, s.decided ? COUNT_DECIDED : 0);
	if (is_shown(&s, verdict))
		return pass_on();
	return leave(ctx, &m, &s.common);
}

static __always_inline int is_decision(const struct message *m, const struct step *s)
{
	return m->msgtype == DELIVER && is_at_socket(s) && !is_in_network(s);
}

/* Returns true if the host must see a vote, too: to wake up, because it repairs, or to ask for the
 * view of an epoch that it hears of. */
static __always_inline int is_shown(const struct step *s, __u32 verdict)
{
	return is_at_socket(s) && ((s->decided && !is_in_network(s) && sleeps(s->partition)) ||
				   verdict == REASON_UNKNOWN_EPOCH ||
				   (READ_ONCE(s->partition->flags) & PARTITION_SHOW_VOTES));
}

static __always_inline __u32 handle(struct xdp_md *ctx, struct message *m, struct step *s)
{
	return m->msgtype == PHASE2B ? phase2b(ctx, m, s) : deliver(ctx, m, s);
}

/* Counts a vote, and hands over the value if the vote completed a quorum. */
static __always_inline __u32 phase2b(struct xdp_md *ctx, struct message *m, struct step *s)
{
	struct known *known;
	__u32 vote, refused, verdict;
	int decided = 0;

	if (!round_is_valid(m->rnd) || m->rnd != bpf_ntohl(m->header->vrnd))
		return because(REASON_BAD_ROUND);
	known = known_of(s->all, round_epoch(m->rnd));
	if (!known)
		return because(REASON_UNKNOWN_EPOCH);
	stop_at(STOP_AT_CONFIGURATION);
	vote = voter(known, sender_of(m));
	if (!vote)
		return because(REASON_UNKNOWN_SENDER);
	refused = within_window(m, s);
	if (refused)
		return refused;
	if (!try_lock(&s->slot->lock))
		return because(REASON_BUSY);
	verdict = count_vote(ctx, m, s, vote, known->quorum, &decided);
	unlock(&s->slot->lock);
	s->decided = verdict == VERDICT_CHANGED && decided;
	if (s->decided && is_in_network(s))
		send_decision(ctx, m, s);
	return verdict;
}

/* Counts a vote in its slot, and sets `decided` if it completed a quorum. The slot is locked.
 * [D-QUORUM] */
static __always_inline __u32 count_vote(struct xdp_md *ctx, const struct message *m, struct step *s,
					__u32 vote, __u32 quorum, int *decided)
{
	struct slot *slot = s->slot;
	__u32 votes = 0;

	/* An older instance never displaces a newer one. [D-SLOT] */
	if (m->inst < slot->inst)
		return REASON_STALE;
	if (m->inst == slot->inst && slot->rnd) {
		/* Votes of a newer round are counted afresh below, but "delivered" stays.
		 * [D-ROUND] */
		if (m->rnd < slot->rnd)
			return REASON_STALE;
		/* One round has one value, and so has every round after a decision. [D-CONFLICT] */
		if ((m->rnd == slot->rnd || slot->delivered) && !same_value(slot, m))
			return REASON_CONFLICT;
		if (slot->delivered || (m->rnd == slot->rnd && (slot->votes & vote)))
			return REASON_DUPLICATE;
		if (m->rnd == slot->rnd)
			votes = slot->votes;
	}
	votes |= vote;
	*decided = are_quorum(votes, quorum);
	if (*decided && !is_in_network(s) && !to_ring(ctx, m, s->partition, is_at_socket(s)))
		return REASON_FULL;
	slot->inst = m->inst;
	slot->client = m->client;
	slot->request = m->request;
	slot->rnd = m->rnd;
	slot->votes = votes;
	slot->noop = !!(m->flags & FLAG_NOOP);
	slot->delivered = *decided;
	return VERDICT_CHANGED;
}

/* Takes a decision from a learner node elsewhere, if this learner trusts the node. [D-DELIVER] */
static __always_inline __u32 deliver(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	__u32 refused, verdict;

	if (!is_trusted(sender_of(m)))
		return REASON_UNKNOWN_SENDER;
	if (!round_is_valid(m->rnd))
		return REASON_BAD_ROUND;
	if (!known_of(s->all, round_epoch(m->rnd)))
		return REASON_UNKNOWN_EPOCH;
	refused = within_window(m, s);
	if (refused)
		return refused;
	if (!try_lock(&s->slot->lock))
		return because(REASON_BUSY);
	verdict = take_decision(ctx, m, s);
	unlock(&s->slot->lock);
	s->decided = verdict == VERDICT_CHANGED;
	return verdict;
}

/* Marks the slot as decided with this value, whatever votes it holds. The slot is locked. */
static __always_inline __u32 take_decision(struct xdp_md *ctx, const struct message *m,
					   struct step *s)
{
	struct slot *slot = s->slot;

	if (m->inst < slot->inst)
		return REASON_STALE;
	if (m->inst == slot->inst && slot->delivered)
		return same_value(slot, m) ? REASON_DUPLICATE : REASON_CONFLICT;
	if (!to_ring(ctx, m, s->partition, is_at_socket(s)))
		return REASON_FULL;
	slot->inst = m->inst;
	slot->client = m->client;
	slot->request = m->request;
	slot->rnd = m->rnd;
	slot->votes = 0;
	slot->noop = !!(m->flags & FLAG_NOOP);
	slot->delivered = 1;
	return VERDICT_CHANGED;
}

/* ---- Helpers */

static __always_inline int is_trusted(__u16 node)
{
	__u32 zero = 0;
	struct trusted *list = bpf_map_lookup_elem(&trusted, &zero);

	for (__u32 i = 0; list && i < MAX_TRUSTED; i++) {
		if (i >= list->count)
			break;
		if (list->learners[i] == node)
			return 1;
	}
	return 0;
}

/* Returns the reason to refuse an instance outside the window, or 0. [D-WINDOW] */
static __always_inline __u32 within_window(const struct message *m, const struct step *s)
{
	return in_window(s->partition, s->common.group, m->inst);
}

/* Returns the configuration of an epoch, or NULL if it isn't known. [D-VOTE] */
static __always_inline struct known *known_of(struct configurations *all, __u32 epoch)
{
	/* The bank that is read now isn't written before this program has ended. [M-BANK] */
	struct known *table = all->known[READ_ONCE(all->bank) & 1];

	for (int i = 0; i < MAX_KNOWN; i++)
		if (table[i].epoch == epoch)
			return &table[i];
	return NULL;
}

/* Sends the decided value to the replicas. */
static __always_inline void send_decision(struct xdp_md *ctx, struct message *m, struct step *s)
{
	struct stamp stamp = {
		.vrnd = m->rnd,
		.flags = m->flags & FLAGS_OF_VALUE,
		.msgtype = DELIVER,
	};
	int action = NOT_SENT;

	/* The header is where it was. The verifier doesn't know that, since for it a record may
	 * have been written meanwhile by a function that got the message. */
	if (find_header(ctx, m))
		action = send_multicast(ctx, s->common.device, m, &stamp, 1);
	if (action == NOT_SENT)
		count(COUNT_UNSENT);
	else
		s->common.action = action;
}

/* Returns the bit of an acceptor, or 0 if it isn't in this configuration. */
static __always_inline __u32 voter(const struct known *known, __u16 node)
{
	for (__u32 i = 0; i < MAX_ACCEPTORS; i++) {
		if (i >= known->count)
			break;
		if (known->acceptors[i] == node)
			return 1u << i;
	}
	return 0;
}

static __always_inline int same_value(const struct slot *slot, const struct message *m)
{
	return slot->client == m->client && slot->request == m->request &&
	       slot->noop == !!(m->flags & FLAG_NOOP);
}

/* Finds the slot, the partition and the configurations. Returns false if the node isn't set up for
 * them. */
static __always_inline int find(const struct message *m, struct step *s)
{
	const struct group *group = s->common.group;
	__u32 at = ring_index(group, m->pid, m->inst);
	__u32 index = group->index;

	s->partition = partition_in(&partitions, group, m->pid);
	s->slot = bpf_map_lookup_elem(&slots, &at);
	s->all = bpf_map_lookup_elem(&configurations, &index);
	return s->partition && s->slot && s->all;
}

/* Returns true if the worker also waits at a socket, so that the packet itself wakes it. */
static __always_inline int is_at_socket(const struct step *s)
{
	return s->common.group->flags & GROUP_PASS_OTHERS;
}

/* Returns true if decisions leave as DELIVER. */
static __always_inline int is_in_network(const struct step *s)
{
	return s->common.group->flags & GROUP_DELIVER;
}

SEC("xdp")
int learner(struct xdp_md *ctx)
{
	return step(ctx);
}

char _license[] SEC("license") = "GPL";
