// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The receiver: hands a sequencer's requests to the workers of its host (section 3 of the NOPaxos
 * paper; docs/protocol/nopaxos.md).
 *
 * It makes the checks of crates/paxos/src/nopaxos/receiver.rs, step by step. The worker makes them
 * again, puts messages in order, and notices which are missing. So a wrong message that this
 * program takes at the moment of a change costs only room in a ring. If the ring has no room for a
 * message, the message is lost, as it may be on its way. All packets but ORDERED go to the host's
 * sockets. */
#include "include/bench.h"
#include "include/clone.h"
#include "include/ring.h"
#include "include/role.h"

/* ---- Types */

/* The sender that a partition's worker listens to, in one word, so that no CPU sees half of a
 * change: the session, how often the worker has begun to listen, and the session's sequencer. 0 =
 * the worker listens to nothing. */
#define LISTENED_SESSION(word) ((__u32)((word) >> 32))
#define LISTENED_SEQUENCER(word) ((__u16)(word))

/* The message that came last in a slot. A slot of zeros is unused. */
struct slot {
	__u64 inst;
	/* The value of `listening` at that time. */
	__u64 listening;
	__u32 lock;
	__u32 unused;
};

/* ---- State */

SHARED_ARRAY(listening, 1, __u64);
SHARED_ARRAY(slots, 65536, struct slot);

/* The data that a handler works on. */
struct step {
	struct common common;
	struct partition *partition;
	struct slot *slot;
	/* The word that the worker listens to, read once. */
	__u64 listening;
	/* True if the packet belongs to a later session. */
	__u32 later;
};

/* ---- Functions: named and ordered as in crates/paxos/src/nopaxos/receiver.rs. What only this plane has stands
 * behind who needs it. Handlers return a verdict. */

static __always_inline int is_shown(const struct step *s, __u32 verdict);
static __always_inline __u32 handle(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline __u32 session(const struct message *m, struct step *s);
static __always_inline __u32 within_window(const struct message *m, const struct step *s);
static __always_inline __u32 hold(struct xdp_md *ctx, const struct message *m, struct step *s);
static __always_inline int find(const struct message *m, struct step *s);

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
	if (m.msgtype != ORDERED)
		return pass_on();
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
	count_both(verdict, verdict == VERDICT_CHANGED ? COUNT_DECIDED : 0);
	return is_shown(&s, verdict) ? pass_on() : XDP_DROP;
}

/* Returns true if the host must see the packet, too: to wake up, or to ask about a session that it
 * hears of. [O-LATER] */
static __always_inline int is_shown(const struct step *s, __u32 verdict)
{
	return s->later || (verdict == VERDICT_CHANGED && sleeps(s->partition));
}

/* Checks a packet of the present session and hands it over, once. [O-ONCE] [O-SENDER] */
static __always_inline __u32 handle(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	__u32 refused, verdict;

	if (!round_is_base(m->rnd) || m->header->vrnd)
		return because(REASON_BAD_ROUND);
	refused = session(m, s);
	if (refused)
		return refused;
	refused = within_window(m, s);
	if (refused)
		return refused;
	if (!try_lock(&s->slot->lock))
		return because(REASON_BUSY);
	verdict = hold(ctx, m, s);
	unlock(&s->slot->lock);
	return verdict;
}

/* Checks that the packet belongs to the session that the worker listens to, and comes from its
 * sequencer. Returns 0 or a reason. */
static __always_inline __u32 session(const struct message *m, struct step *s)
{
	__u32 listened = LISTENED_SESSION(s->listening);

	if (round_epoch(m->rnd) != listened) {
		s->later = round_epoch(m->rnd) > listened;
		return because(REASON_OLD_SESSION);
	}
	return sender_of(m) == LISTENED_SEQUENCER(s->listening) ? 0 : REASON_UNKNOWN_SENDER;
}

static __always_inline __u32 within_window(const struct message *m, const struct step *s)
{
	__u32 refused = in_window(s->partition, s->common.group, m->inst);

	/* The slot behind this one must have a number, too. */
	return refused || m->inst != ~0ULL ? refused : REASON_WINDOW;
}

/* Hands the message to the worker, or refuses it if it was handed over before. The slot is
 * locked. */
static __always_inline __u32 hold(struct xdp_md *ctx, const struct message *m, struct step *s)
{
	struct slot *slot = s->slot;

	if (slot->inst == m->inst && slot->listening == s->listening)
		return REASON_DUPLICATE;
	if (!to_ring(ctx, m, s->partition, 1))
		return REASON_FULL;
	slot->inst = m->inst;
	slot->listening = s->listening;
	return VERDICT_CHANGED;
}

/* ---- Helpers */

/* Finds the slot and the partition of a packet. Returns false if the node isn't set up for them. */
static __always_inline int find(const struct message *m, struct step *s)
{
	const struct group *group = s->common.group;
	__u32 at = ring_index(group, m->pid, m->inst);
	__u64 *listened = partition_in(&listening, group, m->pid);

	s->partition = partition_in(&partitions, group, m->pid);
	s->slot = bpf_map_lookup_elem(&slots, &at);
	if (!listened || !s->partition || !s->slot)
		return 0;
	s->listening = READ_ONCE(*listened);
	return 1;
}

SEC("xdp")
int receiver(struct xdp_md *ctx)
{
	return step(ctx);
}

char _license[] SEC("license") = "GPL";
