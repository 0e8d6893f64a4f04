/* Multicast: one broadcast redirect to all links, then one address per copy.
 *
 * The packet goes to every entry of a devmap (BPF_F_BROADCAST); each entry runs the egress program,
 * which gives its copy the address of one member. Several members behind one port need as many
 * entries of that port, and there the kernel keeps one egress program per device and flush. So the
 * same program serves all copies and tells them apart by counting the copies of a packet that have
 * left by this port on this CPU. */
#ifndef WIREPAXOS_MULTICAST_H
#define WIREPAXOS_MULTICAST_H

#include "answer.h"

#define MAX_MEMBERS 8 /* of one group, behind one port */
#define MAX_LINKS 64

struct member {
	__u8 mac_to[ETH_ALEN];
	__u8 mac_from[ETH_ALEN];
	/* 4 or 6; in network order, an IPv4 address in the first word. */
	__u32 family;
	__be32 ip_to[4];
	__be32 ip_from[4];
	/* Host order. */
	__u16 port_to;
	__u16 port_from;
	/* Partition p listens on `port_to + p`. */
	__u16 port_per_partition;
	/* It is at the same switch: 1 + its entry in `roles`; 0 = it isn't. */
	__u16 role;
};

/* What a port is to a group. A group without an entry has no member there: its copies are dropped. */
struct link {
	/* The key: the port, written last (0 = unused), and the group. */
	__u32 ifindex;
	__u32 group;
	/* Entries of this port in `multicast`. */
	__u32 entries;
	__u32 members;
	/* Index into `copies`, one for each port. */
	__u32 index;
	__u32 unused;
	struct member member[MAX_MEMBERS];
};

/* In place of a port: all members of a group, where they are roles of this switch. */
#define PORT_WITHIN (~0u)

/* An entry lies at its key's place, or at one of the next few. A hash of the kernel's own costs each
 * copy 20 ns more. */
#define LINK_PLACES 256
#define LINK_TRIES 8
SHARED_ARRAY(port_links, LINK_PLACES, struct link);

static __always_inline struct link *link_of(__u32 ifindex, __u32 group)
{
	__u32 first = ifindex * 31 + group;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LINK_TRIES; i++) {
		__u32 place = (first + i) % LINK_PLACES;
		struct link *link = bpf_map_lookup_elem(&port_links, &place);

		if (link && link->ifindex == ifindex && link->group == group)
			return link;
	}
	return NULL;
}

/* The packet whose copies are leaving by a port, and how many have. */
struct copies {
	struct wire_header of;
	__u32 left;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_LINKS);
	__type(key, __u32);
	__type(value, struct copies);
} copies SEC(".maps");

struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast SEC(".maps");

/* The same where that is few: a broadcast walks through all of a map's room. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_small SEC(".maps");

/* Entry 0: the only port, where there is one; no hash to walk and no program on egress. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_only SEC(".maps");

/* For commands over several partitions: every port as often as in `multicast`, times the number of
 * partitions. Surplus copies are dropped on egress. */
#define VECTOR_FEW 4
struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64 * VECTOR_FEW);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_few SEC(".maps");

struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64 * MAX_VECTOR);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_many SEC(".maps");

/* Which copy of its packet this one is. */
static __always_inline __u32 number_of_copy(const struct wire_header *h, const struct link *link,
					    __u32 entries)
{
	__u32 index = link->index;
	struct copies *seen = bpf_map_lookup_elem(&copies, &index);
	__u64 difference = 0;
	const __u64 *old;

	if (!seen)
		return 0;
	old = (void *)&seen->of;
#pragma clang loop unroll(full)
	for (int i = 0; i < HEADER_LEN / 8; i++) {
		__u64 new;

		__builtin_memcpy(&new, (void *)h + 8 * i, 8);
		difference |= new ^ old[i];
	}
	if (difference || seen->left >= entries) {
		__builtin_memcpy(&seen->of, h, HEADER_LEN);
		seen->left = 0;
	}
	return seen->left++;
}

/* Sets a header word and keeps the checksum right. */
static __always_inline void change(struct udphdr *udp, void *at, void *new, __u32 len)
{
	if (udp->check)
		udp->check = csum_field(csum_replace(udp->check, at, new, len));
	__builtin_memcpy(at, new, len);
}

/* Makes the packet at `header_at` the copy of a command over several partitions for the one whose
 * `entry` of its vector this is. */
static __always_inline int set_partition(void *data, void *end, __u32 header_at, const __u8 *entry)
{
	struct wire_header *h = data + header_at;
	/* `pid`, with `group` before it, and `inst`. */
	struct {
		__be16 group;
		__be16 pid;
		__be32 inst_hi;
		__be32 inst_lo;
	} place;

	if ((void *)(h + 1) > end)
		return 0;
	place.group = h->group;
	__builtin_memcpy(&place.pid, entry, 2);
	__builtin_memcpy(&place.inst_hi, entry + 2, 8);
	change((void *)h - sizeof(struct udphdr), &h->group, &place, sizeof(place));
	return 1;
}

/* The partitions that a command over several names; 0 = it is none. */
static __always_inline __u32 partitions_of(const struct wire_header *h, void *end)
{
	const __u8 *value = (const void *)(h + 1);
	__be16 partitions;

	if (h->msgtype != PHASE2A || !(h->flags & bpf_htons(FLAG_MULTI)))
		return 0;
	if ((void *)(value + VECTOR_HEAD_LEN) > end)
		return 0;
	__builtin_memcpy(&partitions, value + 4, 2);
	return bpf_ntohs(partitions);
}

static __always_inline __u32 vector_entry_at(__u32 header_at, __u32 partition)
{
	return header_at + HEADER_LEN + VECTOR_HEAD_LEN + partition * VECTOR_ENTRY_LEN;
}

/* The addresses are part of both checksums. */
static __always_inline int address_v4(void *data, void *end, const struct member *to, __u16 port)
{
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct udphdr *udp = (void *)(ip + 1);
	struct {
		__be32 from;
		__be32 to;
		__be16 port_from;
		__be16 port_to;
	} new = {
		.from = to->ip_from[0],
		.to = to->ip_to[0],
		.port_from = bpf_htons(to->port_from),
		.port_to = bpf_htons(port),
	};
	/* Behind it lies what stays: the protocol. */
	half_t *ttl = (void *)&ip->ttl;
	__u64 addresses, sum;

	if ((void *)(udp + 1) > end)
		return 0;
	addresses = csum_change(&ip->saddr, &new.from, 8);
#ifndef MUTATE_EGRESS
	if (udp->check) {
		sum = csum_replace(udp->check, &udp->source, &new.port_from, 4);
		udp->check = csum_field(sum + addresses);
	}
#endif
	sum = csum_of_field(ip->check) + addresses + 0xffff - *ttl;
	ip->ttl = 64;
	ip->check = ~csum_fold(sum + *ttl);
	/* The ports, which UDP begins with, lie behind the addresses. */
	__builtin_memcpy(&ip->saddr, &new, sizeof(new));
	return 1;
}

static __always_inline int address_v6(void *data, void *end, const struct member *to, __u16 port)
{
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	struct udphdr *udp = (void *)(ip + 1);
	struct {
		__be32 from[4];
		__be32 to[4];
		__be16 port_from;
		__be16 port_to;
	} new = {
		.port_from = bpf_htons(to->port_from),
		.port_to = bpf_htons(port),
	};

	if ((void *)(udp + 1) > end)
		return 0;
	__builtin_memcpy(new.from, to->ip_from, sizeof(new.from));
	__builtin_memcpy(new.to, to->ip_to, sizeof(new.to));
	change(udp, &ip->saddr, &new, sizeof(new));
	ip->hop_limit = 64;
	return 1;
}

/* Where the header lies in a frame that a role of ours has made. */
static __always_inline __u32 place_in_own(const struct ethhdr *eth)
{
	return protocol(eth) == bpf_htons(ETH_P_IP) ? HEADER_AT_V4 : HEADER_AT_V6;
}

/* Gives the copy in hand the address of a member. */
static __always_inline int address(void *data, void *end, const struct member *to)
{
	struct ethhdr *eth = data;
	struct wire_header *h;
	__u32 family, header_at;
	__u16 port;

	if ((void *)(eth + 1) > end)
		return 0;
	header_at = place_in_own(eth);
	family = header_at == HEADER_AT_V4 ? 4 : 6;
	h = data + header_at;
	if (to->family != family || (void *)(h + 1) > end)
		return 0;
	port = to->port_to + (to->port_per_partition ? bpf_ntohs(h->pid) : 0);
	copy_mac(eth->h_dest, to->mac_to);
	copy_mac(eth->h_source, to->mac_from);
	return family == 4 ? address_v4(data, end, to, port) : address_v6(data, end, to, port);
}

/* Gives a copy that leaves by `ifindex` the address of one member. */
static __always_inline int send_copy(struct xdp_md *ctx, __u32 ifindex)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u32 header_at, copy = 0, partitions;
	struct wire_header *h;
	struct link *link;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	header_at = place_in_own(eth);
	h = (void *)eth + header_at;
	if ((void *)(h + 1) > end)
		return XDP_DROP;
	link = link_of(ifindex, bpf_ntohs(h->group));
	if (!link || !link->members)
		return XDP_DROP;
	partitions = partitions_of(h, end);
	if (partitions) {
		__u32 times = partitions <= VECTOR_FEW ? VECTOR_FEW : MAX_VECTOR;
		__u8 entry[12] = {};
		__u32 partition;

		copy = number_of_copy(h, link, link->entries * times);
		partition = copy / link->members;
		copy %= link->members;
		if (partition >= partitions || partition >= MAX_VECTOR ||
		    bpf_xdp_load_bytes(ctx, vector_entry_at(header_at, partition), entry,
				       VECTOR_ENTRY_LEN) ||
		    !set_partition((void *)(long)ctx->data, (void *)(long)ctx->data_end, header_at,
				   entry))
			return XDP_DROP;
	} else if (link->entries > 1) {
		copy = number_of_copy(h, link, link->entries);
	}
	if (copy >= link->members || copy >= MAX_MEMBERS)
		return XDP_DROP;
	return address((void *)(long)ctx->data, (void *)(long)ctx->data_end,
		       &link->member[copy]) ?
		       XDP_PASS :
		       XDP_DROP;
}

/* No actions of the kernel's: a role's program ends in a call (`leave`), of `within` or of the role whose
 * entry in `roles` is added to this. */
#define TO_WITHIN 0x100
#define TO_ROLE 0x200

/* Where one copy is all, it gets its address here, which costs less than on egress. */
static __always_inline int multicast_one(struct xdp_md *ctx, const struct device *device,
					 __u32 group)
{
	struct link *link = link_of(device->only_port, group);
	__u32 role;

	if (!link || !link->members ||
	    !address((void *)(long)ctx->data, (void *)(long)ctx->data_end, &link->member[0]))
		return XDP_DROP;
	role = link->member[0].role;
	return role ? TO_ROLE + role - 1 : bpf_redirect_map(&multicast_only, 0, 0);
}

/* To every member of the group, in as many copies as a command over so many partitions needs. What it
 * gives back is the program's action. */
static __always_inline int multicast_of(struct xdp_md *ctx, const struct device *device,
					__u32 group, __u32 partitions)
{
	if (device->flags & DEVICE_CLONES)
		return XDP_PASS;
	if (partitions > 1)
		return partitions <= VECTOR_FEW ?
			       bpf_redirect_map(&multicast_few, 0, BPF_F_BROADCAST) :
			       bpf_redirect_map(&multicast_many, 0, BPF_F_BROADCAST);
	if (device->only_port)
		return multicast_one(ctx, device, group);
	if (device->flags & DEVICE_WITHIN)
		return TO_WITHIN;
	if (device->flags & DEVICE_FEW_COPIES)
		return bpf_redirect_map(&multicast_small, 0, BPF_F_BROADCAST);
	return bpf_redirect_map(&multicast, 0, BPF_F_BROADCAST);
}

SEC("xdp/devmap")
int egress(struct xdp_md *ctx)
{
	return send_copy(ctx, ctx->egress_ifindex);
}

/* The same body where BPF_PROG_TEST_RUN reaches it. */
SEC("xdp")
int test_egress(struct xdp_md *ctx)
{
	return send_copy(ctx, ctx->ingress_ifindex);
}

#endif
