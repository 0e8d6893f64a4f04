/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Multicast to roles of the same switch: each of them is called with the packet in turn, so a value
 * can be proposed, voted for and decided in one run of the switch's forwarder.
 *
 * XDP can't copy a frame and go on with it. But a program that a subprogram tail-calls returns to
 * the subprogram's caller, so the frame is kept, and put back for the next role.
 *
 * Only one frame leaves by a run. If several were to leave, the last one does, and the others are
 * lost like any packet. */
#ifndef WIREPAXOS_WITHIN_H
#define WIREPAXOS_WITHIN_H

#include "multicast.h"

#define MAX_FRAME (HEADER_AT_V6 + HEADER_LEN + TAG_LEN + MAX_VALUE_LEN)

struct kept_frame {
	__u32 len;
	__u8 bytes[MAX_FRAME];
};

/* The frames that are kept on one CPU. */
struct turns {
	/* The frame that every member gets. */
	struct kept_frame copy;
	/* The frame that leaves the switch in the end. */
	struct kept_frame leaving;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turns);
} turns SEC(".maps");

static __always_inline int keep(struct xdp_md *ctx, struct kept_frame *kept)
{
	__u32 len = frame_length(ctx);

	kept->len = len;
	return load_bytes(ctx, 0, kept->bytes, len, MAX_FRAME);
}

static __always_inline int put_back(struct xdp_md *ctx, struct kept_frame *kept)
{
	__u32 len = kept->len;
	int grows = (int)(len - frame_length(ctx));

	if (grows && bpf_xdp_adjust_tail(ctx, grows))
		return 0;
	return store_bytes(ctx, 0, kept->bytes, len, MAX_FRAME);
}

/* Calls a member's program, and returns its action, or XDP_ABORTED if there is none.
 *
 * This is a global function, because verifiers like that of kernel 6.1 believe that a static one
 * always returns what it returns without a program, and remove the callers' code for other results.
 * So does the compiler without KEEP. */
__noinline int call_role(struct xdp_md *ctx, __u32 entry)
{
	int action = XDP_ABORTED;

	bpf_tail_call(ctx, &roles, entry);
	KEEP(action);
	return action;
}

__noinline int call_forwarder(struct xdp_md *ctx)
{
	int action = XDP_DROP;

	bpf_tail_call(ctx, &own_switch, CALL_FORWARDER);
	KEEP(action);
	return action;
}

/* Gives a member its turn, and also the one that it sends to. Returns the action for the resulting
 * frame. */
static __always_inline int turn_of(struct xdp_md *ctx, const struct member *member)
{
	int action;

	if (!address_own((void *)(long)ctx->data, (void *)(long)ctx->data_end, member))
		return XDP_DROP;
	action = call_role(ctx, member->role - 1);
	/* An answer goes back to the sender, which may be a role of this switch. */
	return action == XDP_TX ? call_forwarder(ctx) : action;
}

/* Finds the group of a role's own message. Returns false if the frame holds none. */
static __always_inline int group_of(struct xdp_md *ctx, __u32 *group)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct wire_header *h;

	if ((void *)(eth + 1) > end)
		return 0;
	h = (void *)eth + place_in_own(eth);
	if ((void *)(h + 1) > end)
		return 0;
	*group = bpf_ntohs(h->group);
	return 1;
}

SEC("xdp")
int within(struct xdp_md *ctx)
{
	__u32 zero = 0, group;
	struct turns *turns_here = bpf_map_lookup_elem(&turns, &zero);
	struct link *link = group_of(ctx, &group) ? link_of(PORT_WITHIN, group) : NULL;
	int leaves = 0;

	if (!turns_here || !link || !keep(ctx, &turns_here->copy))
		return XDP_DROP;
	for (__u32 i = 0; i < MAX_MEMBERS; i++) {
		int action;

		if (i >= link->members)
			break;
		if (i > 0 && !put_back(ctx, &turns_here->copy))
			break;
		action = turn_of(ctx, &link->member[i]);
		if (leaves && action == XDP_REDIRECT)
			count(COUNT_UNSENT);
		if (action == XDP_REDIRECT)
			leaves = keep(ctx, &turns_here->leaving);
		else if (action != XDP_DROP)
			count(COUNT_UNSENT);
	}
	return leaves && put_back(ctx, &turns_here->leaving) ? XDP_REDIRECT : XDP_DROP;
}

#endif
