/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Multicast without broadcast redirects, for devices that take no redirected frames. With
 * DEVICE_CLONES a role's program leaves the frame that it has made of a packet to the stack, and
 * the program `clones` at the interface's TC ingress sends a clone of it to each member, by any
 * port.
 *
 * That program takes a frame as the role's own if it comes to this node's address and ports in this
 * node's own name, since the role's program has dropped what others sent there. */
#ifndef WIREPAXOS_CLONE_H
#define WIREPAXOS_CLONE_H

#include <linux/pkt_cls.h>
#include "multicast.h"

/* The ports of `multicast`, each once. */
struct clone_ports {
	__u32 count;
	__u32 ifindex[MAX_LINKS];
	__u32 unused;
};

struct {
	KEPT_MAP(BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct clone_ports);
} clone_ports SEC(".maps");

struct cloning {
	struct __sk_buff *skb;
	const struct clone_ports *ports;
	__u32 group;
	__u32 header_at;
	__u32 flags;
	/* The clones of one partition: MAX_MEMBERS for each port. */
	__u32 places;
	/* The number of partitions that the command names; 0 = it isn't a command over several. */
	__u32 partitions;
};

/* Signs a clone, whose place in the log is in its tag. Returns false if it can't be signed. */
static __always_inline int sign_by(struct __sk_buff *skb, __u32 header_at, __u32 alg)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct wire_header *h = data + known_place(header_at);
	__u64 grown = sign(data, end, header_at, KEY_OF_NODES, 0, UNCOUNTED, alg);

	if (!grown || (void *)(h + 1) > end)
		return 0;
	csum_grow(udp_of(h), grown);
	return 1;
}

__noinline int sign_clone(struct __sk_buff *skb, __u32 header_at)
{
	return sign_by(skb, header_at, ALG_SIPHASH);
}

__noinline int sign_clone_half(struct __sk_buff *skb, __u32 header_at)
{
	return sign_by(skb, header_at, ALG_HALF_SIPHASH);
}

static __always_inline int clone_partition(struct cloning *c, __u32 partition)
{
	__u8 entry[12] = {};

	if (bpf_skb_load_bytes(c->skb, vector_entry_at(c->header_at, c->flags, partition), entry,
			       VECTOR_ENTRY_LEN))
		return 0;
	if (!set_partition((void *)(long)c->skb->data, (void *)(long)c->skb->data_end,
			   known_place(c->header_at), entry))
		return 0;
	if (c->flags & FLAG_TAG && !sign_clone(c->skb, c->header_at) &&
	    !sign_clone_half(c->skb, c->header_at)) {
		count(COUNT_UNSENT);
		return 0;
	}
	return 1;
}

/* Sends the clone of one partition to one member, if there is that member. */
static long clone_to(__u32 index, struct cloning *c)
{
	__u32 place, port, at, ifindex;
	struct link *link;

	if (!c->places)
		return 1;
	place = index % c->places;
	port = place / MAX_MEMBERS;
	at = place % MAX_MEMBERS;
	if (port >= MAX_LINKS)
		return 1;
	ifindex = c->ports->ifindex[port];
	link = link_of(ifindex, c->group);
	if (!link || at >= link->members || at >= MAX_MEMBERS)
		return 0;
	if (c->partitions && !clone_partition(c, index / c->places))
		return 0;
	if (address_own((void *)(long)c->skb->data, (void *)(long)c->skb->data_end,
			&link->member[at]))
		bpf_clone_redirect(c->skb, ifindex, 0);
	return 0;
}

/* Returns true if a role's program has made this frame, and parses its message. */
static __always_inline int is_own(struct __sk_buff *skb, const struct device *device,
				  struct message *m)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 udp_len;

	return !parse_frame(data, end, skb->len, device, m, &udp_len) &&
	       !parse_header(m, udp_len) && m->header->cluster == bpf_htonl(device->cluster) &&
	       sender_of(m) == device->node &&
	       (m->msgtype == PHASE2A || m->msgtype == PHASE2B || m->msgtype == DELIVER ||
		m->msgtype == ORDERED);
}

SEC("classifier")
int clones(struct __sk_buff *skb)
{
	const struct device *device = this_device();
	struct cloning c = { .skb = skb };
	struct message m = {};
	__u32 zero = 0, head = HEADER_AT_V6 + HEADER_LEN + TAG_LEN + VECTOR_HEAD_LEN;
	struct wire_header *h;

	c.ports = bpf_map_lookup_elem(&clone_ports, &zero);
	if (!device || !c.ports || !(device->flags & DEVICE_CLONES))
		return TC_ACT_UNSPEC;
	/* Drivers may leave all but the first headers elsewhere. */
	if (head > skb->len)
		head = skb->len;
	bpf_skb_pull_data(skb, head);
	if (!is_own(skb, device, &m))
		return TC_ACT_UNSPEC;
	c.group = m.group;
	c.header_at = m.header_at;
	c.flags = m.flags;
	c.places = c.ports->count * MAX_MEMBERS;
	h = (void *)(long)skb->data + known_place(m.header_at);
	if ((void *)(h + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	c.partitions = partitions_of(h, (void *)(long)skb->data_end);
	if (c.partitions > MAX_VECTOR)
		return TC_ACT_SHOT;
	/* Signing needs all of the value. */
	if (c.partitions && c.flags & FLAG_TAG)
		bpf_skb_pull_data(skb, skb->len);
	bpf_loop((c.partitions ? c.partitions : 1) * c.places, clone_to, &c, 0);
	return TC_ACT_SHOT;
}

#endif
