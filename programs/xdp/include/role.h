/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a packet's way through leader, acceptor and learner has in common. */
#ifndef WIREPAXOS_ROLE_H
#define WIREPAXOS_ROLE_H

#include "within.h"
#ifdef STAMPED
#include "replays.h"
#endif

/* Part of every role's `struct step`. */
struct common {
	const struct device *device;
	struct group *group;
	/* The program's return value. */
	int action;
};

/* From a frame to a message for a group of this node. False = there is none, and `action` says what
 * becomes of the frame. */
static __always_inline int receive(struct xdp_md *ctx, struct message *m, struct common *c)
{
	int refused;

	c->action = XDP_ABORTED;
	c->device = this_device();
	if (!c->device)
		return 0;
	refused = parse(ctx, c->device, m);
	if (!refused)
		refused = check_sender(c->device, m);
	if (!refused)
		refused = check_signed(ctx, c->device, m);
#ifdef STAMPED
	if (!refused)
		refused = admit(ctx, c->device, m);
#endif
	if (!refused)
		refused = check(m, &c->group);
	if (refused) {
		c->action = refused == NOT_OURS ? pass_on() : drop(refused);
		return 0;
	}
	c->action = XDP_DROP;
	/* There is one. But the verifier of kernel 6.1 forgets that a reason of `check_tag` which was compared with 0 isn't
	 * 0, and follows packets that were refused to here: they have no group. */
	KEEP(c->group);
	return c->group != NULL;
}

/* Whether the UDP checksum is all that shows damage: a tag shows more. [M-CHECKSUM] */
static __always_inline int needs_checksum(const struct common *c)
{
	return !(c->device->flags & DEVICE_SIGNED);
}

/* What is sent leaves by `action`. Where the frame has no room for the answer, the packet goes to the
 * node's process, which runs this program again on a frame that has. */
static __always_inline void sent(struct common *c, int done, int action)
{
	c->action = done ? action : XDP_PASS;
	if (!done)
		count(COUNT_UNSENT);
}

/* Makes the tag of an answer, for who has signed the question, where there is none yet. Not where the answer is written:
 * a verifier counts the stacks of all functions on the way. */
static __always_inline int sign_answer(struct xdp_md *ctx, const struct message *m)
{
	struct wire_header *h = (void *)(long)ctx->data + known_place(m->header_at);
	struct tag *tag = (void *)(h + 1);
	__u64 grown;

	if ((void *)(tag + 1) > (void *)(long)ctx->data_end)
		return drop(COUNT_UNSENT);
	__builtin_memset(tag, 0, sizeof(*tag));
	grown = make_tag(ctx, m->header_at, m->signer, 0, UNCOUNTED);
	if (!grown)
		return drop(COUNT_UNSENT);
	csum_grow(udp_of(h), grown);
	return XDP_TX;
}

/* The end of a packet's way through a role. */
static __always_inline int leave(struct xdp_md *ctx, const struct message *m,
				 const struct common *c)
{
	if (c->action == XDP_TX && c->device->flags & DEVICE_SIGNED)
		return sign_answer(ctx, m);
	if (c->action < TO_WITHIN)
		return c->action;
	if (c->action == TO_WITHIN)
		bpf_tail_call(ctx, &own_switch, CALL_WITHIN);
	else
		bpf_tail_call(ctx, &roles, c->action - TO_ROLE);
	/* Nobody is there. */
	return drop(COUNT_UNSENT);
}

#endif
