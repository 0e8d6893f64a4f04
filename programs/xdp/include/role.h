/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a packet's way through leader, acceptor and learner has in common. */
#ifndef WIREPAXOS_ROLE_H
#define WIREPAXOS_ROLE_H

#include "within.h"

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
		refused = check(c->device, m, &c->group);
	if (refused) {
		c->action = refused == NOT_OURS ? pass_on() : drop(refused);
		return 0;
	}
	c->action = XDP_DROP;
	return 1;
}

/* What is sent leaves by `action`. Where the frame has no room for the answer, the packet goes to the
 * node's process, which runs this program again on a frame that has. */
static __always_inline void sent(struct common *c, int done, int action)
{
	c->action = done ? action : XDP_PASS;
	if (!done)
		count(COUNT_UNSENT);
}

/* The end of a packet's way through a role. */
static __always_inline int leave(struct xdp_md *ctx, const struct common *c)
{
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
