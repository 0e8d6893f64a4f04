/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The way of a packet through a role, as far as all roles have it in common. */
#ifndef WIREPAXOS_ROLE_H
#define WIREPAXOS_ROLE_H

#include "within.h"
#ifdef STAMPED
#include "replays.h"
#endif

/* The part that every role's `struct step` has. */
struct common {
	const struct device *device;
	struct group *group;
	/* The program's return value. */
	int action;
};

/* Turns a frame into a message for a group of this node. Returns false if there is none; then
 * `action` says what becomes of the frame. */
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
	/* The group is never NULL here. But the verifier of kernel 6.1 forgets that a reason of
	 * `check_tag` isn't 0 after it was compared with 0, and also follows refused packets to
	 * here, which have no group. */
	KEEP(c->group);
	return c->group != NULL;
}

/* Returns true if only the UDP checksum shows damage, since the packets have no tags.
 * [M-CHECKSUM] */
static __always_inline int needs_checksum(const struct common *c)
{
	return !(c->device->flags & DEVICE_SIGNED);
}

/* Notes that an answer leaves by `action`. If the frame had no room for it, the packet goes to the
 * node's process, which runs this program again on a larger frame. */
static __always_inline void sent(struct common *c, int done, int action)
{
	c->action = done ? action : XDP_PASS;
	if (!done)
		count(COUNT_UNSENT);
}

/* Makes the tag of an answer, for the holder that signed the question. It is made here and not by
 * the functions that write answers, because a verifier adds up the stacks of all functions on the
 * way. */
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

/* Ends a packet's way through a role, and returns the program's action. */
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
	/* The entry has no program. */
	return drop(COUNT_UNSENT);
}

#endif
