/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Parses frames into messages, and makes the checks that every role needs. */
#ifndef WIREPAXOS_PARSE_H
#define WIREPAXOS_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include "maps.h"

/* Packets with IP options, extension headers or VLAN tags are not for this node, so the header lies
 * at one of two places. */
#define HEADER_AT_V4 (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define HEADER_AT_V6 (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr))
_Static_assert(HEADER_AT_V4 == 42 && HEADER_AT_V6 == 62, "no padding in the kernel's headers");

/* Returns the same place as one of two constants. So the verifier knows it, and the compiler
 * computes offsets from it. */
static __always_inline __u32 known_place(__u32 header_at)
{
	return header_at == HEADER_AT_V4 ? HEADER_AT_V4 : HEADER_AT_V6;
}

/* A header in host order, and its place. */
struct message {
	/* Pointers into the frame, which are valid until its length changes. Then `find_header`
	 * finds them again. */
	struct ethhdr *eth;
	struct wire_header *header;
	void *end;
	__u64 inst;
	__u64 client;
	__u64 request;
	__u32 rnd;
	__u32 header_at;
	__u16 value_len;
	__u16 group;
	__u16 pid;
	__u16 flags;
	__u16 msgtype;
	/* The number of the holder whose key signed the packet, and for whom the answer is
	 * signed. */
	__u8 signer;
};

static __always_inline __u16 sender_of(const struct message *m)
{
	return bpf_ntohs(m->header->swid);
}

static __always_inline struct udphdr *udp_of(struct wire_header *h)
{
	return (void *)h - sizeof(struct udphdr);
}

/* Returns the offset of the value behind the start of the header. */
static __always_inline __u32 head_len(__u32 flags)
{
	return HEADER_LEN + (flags & FLAG_TAG ? TAG_LEN : 0);
}

static __always_inline __u32 value_at(const struct message *m)
{
	return m->header_at + head_len(m->flags);
}

#define NOT_OURS (-1)

/* `struct ethhdr` is packed, so its fields would be read and written byte by byte. */
typedef __u16 __attribute__((may_alias)) half_t;
typedef __u32 __attribute__((may_alias)) word_t;

static __always_inline __be16 protocol(const struct ethhdr *eth)
{
	return ((const half_t *)eth)[ETH_ALEN];
}

static __always_inline void copy_mac(void *to, const void *from)
{
	half_t *out = to;
	const half_t *in = from;

	out[0] = in[0];
	out[1] = in[1];
	out[2] = in[2];
}

/* Copies destination and source, which follow each other. */
static __always_inline void copy_macs(struct ethhdr *eth, const void *from)
{
	word_t *out = (void *)eth;
	const word_t *in = from;

	out[0] = in[0];
	out[1] = in[1];
	out[2] = in[2];
}

static __always_inline __u64 frame_length(struct xdp_md *ctx)
{
	__u64 len = (void *)(long)ctx->data_end - (void *)(long)ctx->data;

	/* Without this the length is computed in 32 bits, which the verifier forbids for
	 * pointers. */
	KEEP(len);
	return len;
}

/* Loads `len` bytes of a frame from `at` on. Returns false if they aren't all there, or aren't 1 to
 * `max`. The verifier of kernel 6.1 must see that a length isn't 0; a comparison doesn't show it,
 * but a sum does. */
static __always_inline int load_bytes(struct xdp_md *ctx, __u32 at, void *to, __u32 len, __u32 max)
{
	__u32 less = len - 1;

	KEEP(less);
	return less < max && !bpf_xdp_load_bytes(ctx, at, to, less + 1);
}

static __always_inline int store_bytes(struct xdp_md *ctx, __u32 at, void *from, __u32 len,
				       __u32 max)
{
	__u32 less = len - 1;

	KEEP(less);
	return less < max && !bpf_xdp_store_bytes(ctx, at, from, less + 1);
}

static __always_inline int is_own_ip6(const struct device *device, const struct ipv6hdr *ip)
{
	const __be32 *to = ip->daddr.in6_u.u6_addr32;
	__be32 any = device->ip6[0] | device->ip6[1] | device->ip6[2] | device->ip6[3];

	return !any || (to[0] == device->ip6[0] && to[1] == device->ip6[1] &&
			to[2] == device->ip6[2] && to[3] == device->ip6[3]);
}

/* Parses Ethernet, IP and UDP. Returns NOT_OURS, a reason, or 0; for 0 the frame holds the whole
 * datagram of that length. Packets with IP options, fragments, extension headers and VLAN tags are
 * left to the kernel. */
static __always_inline int parse_frame(void *data, void *end, __u64 frame_len,
				       const struct device *device, struct message *m,
				       __u32 *udp_len)
{
	struct ethhdr *eth = data;
	struct udphdr *udp;
	__u32 ip_payload;
	__u32 port;

	if ((void *)(eth + 1) > end)
		return because(NOT_OURS);
	if (protocol(eth) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return because(NOT_OURS);
		if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return because(NOT_OURS);
		/* The mask leaves out only "don't fragment". */
		if (ip->frag_off & bpf_htons(0xbfff))
			return because(NOT_OURS);
		if (device->ip4 && ip->daddr != device->ip4)
			return because(NOT_OURS);
		ip_payload = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		m->header_at = HEADER_AT_V4;
	} else if (protocol(eth) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return because(NOT_OURS);
		if (ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
			return because(NOT_OURS);
		if (!is_own_ip6(device, ip))
			return because(NOT_OURS);
		ip_payload = bpf_ntohs(ip->payload_len);
		m->header_at = HEADER_AT_V6;
	} else {
		return because(NOT_OURS);
	}
	m->eth = eth;
	m->header = (void *)(udp + 1);
	m->end = end;
	port = bpf_ntohs(udp->dest);
	/* A port below the first is a very large number here. */
	if (port - device->port >= device->ports)
		return because(NOT_OURS);
	*udp_len = bpf_ntohs(udp->len);
	if (*udp_len < sizeof(*udp) || *udp_len != ip_payload ||
	    m->header_at - sizeof(*udp) + *udp_len > frame_len)
		return because(REASON_BAD_LENGTH);
	return 0;
}

/* Parses the header, and checks all that needs no state: version, type, flags and lengths.
 * `Packet::parse` makes the same checks in the same order. [M-PACKET] */
static __always_inline int parse_header(struct message *m, __u32 udp_len)
{
	struct wire_header *h = m->header;
	__u32 rest = udp_len - sizeof(struct udphdr);

	if (rest < HEADER_LEN || (void *)(h + 1) > m->end)
		return because(REASON_TRUNCATED);
	rest -= HEADER_LEN;
	if (h->version != WIRE_VERSION)
		return because(REASON_BAD_VERSION);
	if (h->msgtype >= MSGTYPES)
		return because(REASON_UNKNOWN_TYPE);
	m->msgtype = h->msgtype;
	m->flags = bpf_ntohs(h->flags);
	if (m->flags & ~allowed_flags(m->msgtype))
		return because(REASON_BAD_FLAGS);
	if (m->flags & FLAG_TAG) {
		if (rest < TAG_LEN)
			return because(REASON_TRUNCATED);
		rest -= TAG_LEN;
	}
	m->value_len = bpf_ntohs(h->value_len);
	if (m->value_len != rest)
		return because(REASON_BAD_LENGTH);
	m->group = bpf_ntohs(h->group);
	m->pid = bpf_ntohs(h->pid);
	m->inst = get64(&h->inst_hi);
	m->rnd = bpf_ntohl(h->rnd);
	m->client = get64(&h->client_hi);
	m->request = get64(&h->request_hi);
	return 0;
}

/* Finds the header at the same place in a frame that may have changed. Returns false if the header
 * isn't there. */
static __always_inline int find_header(struct xdp_md *ctx, struct message *m)
{
	void *data = (void *)(long)ctx->data;

	m->eth = data;
	m->header = data + known_place(m->header_at);
	m->end = (void *)(long)ctx->data_end;
	return (void *)(m->header + 1) <= m->end;
}

/* Parses a frame. Returns NOT_OURS, a reason, or 0. */
static __always_inline int parse(struct xdp_md *ctx, const struct device *device, struct message *m)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 udp_len;
	int refused = parse_frame(data, end, frame_length(ctx), device, m, &udp_len);

	return refused ? refused : parse_header(m, udp_len);
}

/* The types with a command, or a no-op, in each message. */
#define OF_COMMANDS \
	(1u << REQUEST | 1u << PHASE2A | 1u << PHASE2B | 1u << DELIVER | 1u << ORDERED | 1u << READ)
_Static_assert(MSGTYPES <= 32, "a bit for each type");

static __always_inline int has_command(const struct message *m)
{
	return OF_COMMANDS >> m->msgtype & 1;
}

/* The types that clients send, who may be anywhere; `swid` means nothing in them. */
#define OF_ANYBODY (1u << REQUEST | 1u << READ)

static __always_inline int is_of_anybody(__u32 msgtype)
{
	return OF_ANYBODY >> (msgtype & 31) & 1;
}

/* Returns true if a message in the name of a node comes from its address (`Senders::parse`).
 * [M-SENDER] */
static __always_inline int is_at_home(const struct message *m)
{
	__u32 node = sender_of(m);
	struct node_address *home = bpf_map_lookup_elem(&nodes, &node);

	if (!home)
		return 0;
	if (m->header_at == HEADER_AT_V4) {
		const struct iphdr *ip = (void *)(m->eth + 1);

		return ip->saddr && ip->saddr == home->ip4;
	}
	const struct ipv6hdr *ip = (void *)(m->eth + 1);
	const __be32 *from = ip->saddr.in6_u.u6_addr32;

	return (from[0] | from[1] | from[2] | from[3]) &&
	       !((from[0] ^ home->ip6[0]) | (from[1] ^ home->ip6[1]) | (from[2] ^ home->ip6[2]) |
		 (from[3] ^ home->ip6[3]));
}

/* Returns true if clients may send from the source address of this packet. [M-ASKER] */
static __always_inline int may_ask(const struct message *m)
{
	struct network from = { .bits = 128 };

	if (m->header_at == HEADER_AT_V4) {
		const struct iphdr *ip = (void *)(m->eth + 1);

		from.address[2] = bpf_htonl(0xffff);
		from.address[3] = ip->saddr;
	} else {
		const struct ipv6hdr *ip = (void *)(m->eth + 1);

		__builtin_memcpy(from.address, &ip->saddr, sizeof(from.address));
	}
	return bpf_map_lookup_elem(&askers, &from) != NULL;
}

/* Checks that the packet belongs to this cluster, and comes from an allowed address
 * (`Senders::parse`). Returns 0 or a reason. */
static __always_inline int check_sender(const struct device *device, const struct message *m)
{
	if (m->header->cluster != bpf_htonl(device->cluster))
		return because(REASON_WRONG_CLUSTER);
	if (is_of_anybody(m->msgtype)) {
		if (device->flags & DEVICE_KNOWS_ASKERS && !may_ask(m))
			return because(REASON_FOREIGN_ADDRESS);
	} else if (device->flags & DEVICE_KNOWS_NODES && !is_at_home(m)) {
		return because(REASON_FOREIGN_ADDRESS);
	}
	return 0;
}

/* Makes the other checks that precede every handler (`Deployment::check`): group, partition, size,
 * and that the packet names a session exactly if its type must. Returns 0 or a reason.
 * [M-PACKET] */
static __always_inline int check(const struct message *m, struct group **found)
{
	struct group *group;
	__u32 id = m->group;

	group = bpf_map_lookup_elem(&groups, &id);
	if (!group || !READ_ONCE(group->partitions))
		return because(REASON_UNKNOWN_GROUP);
	if (m->pid >= group->partitions)
		return because(REASON_UNKNOWN_PARTITION);
	if (m->value_len > group->max_value && m->msgtype != REPLY)
		return because(REASON_VALUE_TOO_LARGE);
	if (m->flags & FLAG_NOOP ? (m->client | m->request) != 0 : !m->client && has_command(m))
		return because(REASON_BAD_SESSION);
	*found = group;
	return 0;
}

#endif
