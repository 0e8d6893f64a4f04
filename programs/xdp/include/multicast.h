/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Multicast: one broadcast redirect to all links, then one address per copy.
 *
 * The packet goes to every entry of a devmap (BPF_F_BROADCAST). Each entry runs the egress program,
 * which gives its copy the address of one member. Several members behind one port need as many
 * entries of that port, and the kernel keeps only one egress program per device and flush. So the
 * same program serves all copies, and tells them apart by counting the copies of a packet that have
 * left by this port on this CPU. */
#ifndef WIREPAXOS_MULTICAST_H
#define WIREPAXOS_MULTICAST_H

#include "answer.h"

#define MAX_MEMBERS 8 /* of one group, behind one port */
#define MAX_LINKS 64

struct member {
	__u8 mac_to[ETH_ALEN];
	__u8 mac_from[ETH_ALEN];
	/* The family is 4 or 6. Addresses are in network order; an IPv4 address is in the first
	 * word. */
	__u32 family;
	__be32 ip_to[4];
	__be32 ip_from[4];
	/* The ports are in host order. */
	__u16 port_to;
	__u16 port_from;
	/* All ones: partition p listens on `port_to + p`. 0: all partitions share that port. */
	__u16 partitions;
	/* 1 + the member's entry in `roles`, if it is at the same switch; otherwise 0. */
	__u16 role;
};

/* The members of a group behind a port. A group without an entry has no member there, so its copies
 * are dropped. */
struct link {
	/* The key: the port, written last (0 = unused), and the group. */
	__u32 ifindex;
	__u32 group;
	/* How many entries this port has in `multicast`. */
	__u32 entries;
	__u32 members;
	/* The index into `copies`, one for each port. */
	__u32 index;
	__u32 unused;
	struct member member[MAX_MEMBERS];
};

/* The number that stands for all members of a group that are roles of this switch, in place of a
 * port. */
#define PORT_WITHIN (~0u)

/* An entry lies at its key's place, or at one of the next few. A hash map of the kernel would cost
 * each copy 20 ns more. */
#define LINK_PLACES 256
#define LINK_TRIES 8
SHARED_ARRAY(port_links, LINK_PLACES, struct link);

static __always_inline struct link *link_at(__u32 place, __u32 ifindex, __u32 group)
{
	struct link *link;

	place %= LINK_PLACES;
	link = bpf_map_lookup_elem(&port_links, &place);
	return link && link->ifindex == ifindex && link->group == group ? link : NULL;
}

/* Finds an entry at one of the places behind its own. */
SUBPROGRAM struct link *link_behind(__u32 first, __u32 ifindex, __u32 group)
{
	struct link *link = NULL;

	for (__u32 i = 1; i < LINK_TRIES && !link; i++)
		link = link_at(first + i, ifindex, group);
	return link;
}

static __always_inline struct link *link_of(__u32 ifindex, __u32 group)
{
	__u32 first = ifindex * 31 + group;
	struct link *link = link_at(first, ifindex, group);

	return link ? link : link_behind(first, ifindex, group);
}

/* The packet whose copies are leaving by a port, and how many have left. */
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

/* The entries of `multicast`, if they are few. A broadcast walks through the whole capacity of a
 * map. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_small SEC(".maps");

/* Entry 0 is the only port, if there is only one. Then there is no hash to walk and no program on
 * egress. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_only SEC(".maps");

/* The ports for commands over several partitions: each as often as in `multicast`, times the
 * largest number of partitions. Surplus copies are dropped on egress. */
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

#define SURPLUS (~0u)

/* Returns the number of this copy of its packet, of `entries` that leave and `wanted` that have a
 * receiver, or SURPLUS. The surplus ones come first: the kernel hands a driver a burst in parts,
 * and tells it with the last frame of a part to send; if egress drops all of that part, the
 * driver's frames wait for the next burst. */
static __always_inline __u32 number_of_copy(const struct wire_header *h, const struct link *link,
					    __u32 entries, __u32 wanted)
{
	__u32 index = link->index;
	struct copies *seen = bpf_map_lookup_elem(&copies, &index);
	__u32 surplus = wanted < entries ? entries - wanted : 0;
	__u64 difference = 0;
	const __u64 *old;
	__u32 at;

	if (!seen)
		return SURPLUS;
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
	at = seen->left++;
	return at < surplus ? SURPLUS : at - surplus;
}

/* Makes the packet at `header_at` the copy of a command over several partitions for the partition
 * in `entry` of its vector. Returns false if there is no header. */
static __always_inline int set_partition(void *data, void *end, __u32 header_at, const __u8 *entry)
{
	struct wire_header *h = data + header_at;
	/* `pid` and `inst`, with `group` in front of them. */
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
	csum_grow(udp_of(h), csum_change(&h->group, &place, sizeof(place)));
	__builtin_memcpy(&h->group, &place, sizeof(place));
	return 1;
}

/* Returns how many partitions a command over several partitions names, or 0 for other packets. */
static __always_inline __u32 partitions_of(const struct wire_header *h, void *end)
{
	const __u8 *value = (const void *)h + head_len(bpf_ntohs(h->flags));
	__be16 partitions;

	if ((h->msgtype != PHASE2A && h->msgtype != ORDERED) || !(h->flags & bpf_htons(FLAG_MULTI)))
		return 0;
	if ((void *)(value + VECTOR_HEAD_LEN) > end)
		return 0;
	__builtin_memcpy(&partitions, value + 4, 2);
	return bpf_ntohs(partitions);
}

/* Returns how many times more often each port is in the map by which such a packet leaves than in
 * `multicast`. */
static __always_inline __u32 times_of(__u32 partitions)
{
	return partitions > VECTOR_FEW ? MAX_VECTOR : partitions > 1 ? VECTOR_FEW : 1;
}

/* Returns the place of a vector's entry in a packet with these flags. */
static __always_inline __u32 vector_entry_at(__u32 header_at, __u32 flags, __u32 partition)
{
	return header_at + head_len(flags) + VECTOR_HEAD_LEN + partition * VECTOR_ENTRY_LEN;
}

/* Sets the addresses, which are part of both checksums. */
static __always_inline void address_v4(struct iphdr *ip, const struct member *to, __u16 port,
				       __u64 grown)
{
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
	/* The time to live, and behind it the protocol, which stays. */
	half_t *ttl = (void *)&ip->ttl;
	__u16 hops = (*ttl & bpf_htons(0xff)) | bpf_htons(64 << 8);
	__u64 addresses = csum_change(&ip->saddr, &new.from, 8);

	grown += addresses;
	csum_grow(udp, grown + csum_change(&udp->source, &new.port_from, 4));
	ip->check = ~csum_fold(csum_of_field(ip->check) + addresses + 0xffff - *ttl + hops);
	*ttl = hops;
	/* The ports, which UDP begins with, lie behind the addresses. */
	__builtin_memcpy(&ip->saddr, &new, sizeof(new));
}

SUBPROGRAM void address_v6(struct ipv6hdr *ip, const struct member *to, __u16 port, __u64 grown)
{
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

	__builtin_memcpy(new.from, to->ip_from, sizeof(new.from));
	__builtin_memcpy(new.to, to->ip_to, sizeof(new.to));
	csum_grow(udp, grown + csum_change(&ip->saddr, &new, sizeof(new)));
	__builtin_memcpy(&ip->saddr, &new, sizeof(new));
	ip->hop_limit = 64;
}

/* Returns the place of the header in a frame that a role of this node has made. */
static __always_inline __u32 place_in_own(const struct ethhdr *eth)
{
	return protocol(eth) == bpf_htons(ETH_P_IP) ? HEADER_AT_V4 : HEADER_AT_V6;
}

/* Gives a copy, whose header lies at `h`, the address of a member. `grown` is the growth of its sum
 * since its checksum was right. Returns false if the member is of the other family. */
static __always_inline int address(struct ethhdr *eth, const struct wire_header *h,
				   const struct member *to, __u64 grown)
{
	int is_v4 = protocol(eth) == bpf_htons(ETH_P_IP);
	__u16 port = to->port_to + (bpf_ntohs(h->pid) & to->partitions);

	if (is_v4 ? to->family != 4 : to->family != 6)
		return 0;
	copy_macs(eth, to->mac_to);
	if (is_v4)
		address_v4((void *)(eth + 1), to, port, grown);
	else
		address_v6((void *)(eth + 1), to, port, grown);
	return 1;
}

/* Gives a frame that a role of this node has made the address of a member. Returns false if it
 * can't. */
static __always_inline int address_own(void *data, void *end, const struct member *to)
{
	struct ethhdr *eth = data;
	struct wire_header *h;

	if ((void *)(eth + 1) > end)
		return 0;
	h = data + place_in_own(eth);
	return (void *)(h + 1) <= end && address(eth, h, to, 0);
}

/* Gives a copy that leaves by `ifindex` the address of one member. */
static __always_inline int send_copy(struct xdp_md *ctx, __u32 ifindex)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u32 header_at, copy = 0, entries, partitions;
	struct wire_header *h;
	struct link *link;
	__u64 grown = 0;
	__u32 flags;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	header_at = place_in_own(eth);
	h = (void *)eth + header_at;
	if ((void *)(h + 1) > end)
		return XDP_DROP;
	link = link_of(ifindex, bpf_ntohs(h->group));
	if (!link || !link->members)
		return XDP_DROP;
	flags = bpf_ntohs(h->flags);
	partitions = partitions_of(h, end);
	entries = link->entries * times_of(partitions);
	if (partitions) {
		__u8 entry[12] = {};
		__u32 partition;

		copy = number_of_copy(h, link, entries, link->members * partitions);
		if (copy == SURPLUS)
			return XDP_DROP;
		partition = copy / link->members;
		copy %= link->members;
		if (partition >= partitions || partition >= MAX_VECTOR ||
		    bpf_xdp_load_bytes(ctx, vector_entry_at(header_at, flags, partition), entry,
				       VECTOR_ENTRY_LEN) ||
		    !set_partition((void *)(long)ctx->data, (void *)(long)ctx->data_end, header_at,
				   entry))
			return XDP_DROP;
		if (flags & FLAG_TAG) {
			/* Keys may have changed since the role made the packet. */
			grown = make_tag(ctx, header_at, KEY_OF_NODES, 0, UNCOUNTED);
			if (!grown)
				return drop(COUNT_UNSENT);
		}
	} else if (entries > 1) {
		copy = number_of_copy(h, link, entries, link->members);
	}
	if (copy >= link->members || copy >= MAX_MEMBERS)
		return XDP_DROP;
	return address(eth, h, &link->member[copy], grown) ? XDP_PASS : XDP_DROP;
}

/* Actions besides the kernel's: a role's program ends in a call (`leave`) of `within`, or of the
 * role whose entry in `roles` is added to TO_ROLE. */
#define TO_WITHIN 0x100
#define TO_ROLE 0x200

/* Sends the packet to every entry of `multicast`, as often as a command over this many partitions
 * needs. */
static __always_inline int broadcast(const struct device *device, __u32 partitions)
{
	if (partitions > VECTOR_FEW)
		return bpf_redirect_map(&multicast_many, 0, BPF_F_BROADCAST);
	if (partitions > 1)
		return bpf_redirect_map(&multicast_few, 0, BPF_F_BROADCAST);
	if (device->flags & DEVICE_FEW_COPIES)
		return bpf_redirect_map(&multicast_small, 0, BPF_F_BROADCAST);
	return bpf_redirect_map(&multicast, 0, BPF_F_BROADCAST);
}

/* Sends the only copy, which gets its address here, since that costs less than on egress. */
static __always_inline int multicast_one(const struct device *device, const struct message *m,
					 __u64 grown)
{
	struct link *link = link_of(device->only_port, m->group);
	__u32 role;

	if (!link || !link->members || !address(m->eth, m->header, &link->member[0], grown))
		return drop(COUNT_UNSENT);
	role = link->member[0].role;
	return role ? TO_ROLE + role - 1 : bpf_redirect_map(&multicast_only, 0, 0);
}

/* The mark in front of a frame on which the node's process runs the role
 * (crates/loader/src/user_space_program.rs). No network brings such a frame. */
#define FROM_PROCESS 0x41474149

static __always_inline int is_from_process(struct xdp_md *ctx)
{
	__u32 *mark = (void *)(long)ctx->data_meta;

	return (void *)(mark + 1) <= (void *)(long)ctx->data && *mark == FROM_PROCESS;
}

#define NOT_SENT (-1)

/* Stamps the message in hand, and sends it to every member of its group, in as many copies as a
 * command over this many partitions needs. Returns the program's action, or NOT_SENT if the frame
 * has no room. A packet from the node's process goes back there and leaves by its socket, since no
 * frame leaves from a test run, and what a role called from here made of it would be lost. */
static __always_inline int send_multicast(struct xdp_md *ctx, const struct device *device,
					  struct message *m, const struct stamp *stamp,
					  __u32 partitions)
{
	__u64 grown = 0;

	if (m->flags & FLAG_TAG && !(device->flags & DEVICE_SIGNED)) {
		struct stamp moved = *stamp;

		if (!stamp_untagged(ctx, device, m, &moved) || !find_header(ctx, m))
			return NOT_SENT;
	} else {
		grown = stamp_in_place(device, m, stamp);
	}
	if (device->flags & DEVICE_SIGNED) {
		__u64 tag_grown =
			make_tag(ctx, m->header_at, KEY_OF_NODES, !stamp->orders, UNCOUNTED);

		if (!tag_grown)
			return NOT_SENT;
		grown += tag_grown;
	}
	if (is_from_process(ctx)) {
		csum_grow(udp_of(m->header), grown);
		return XDP_REDIRECT;
	}
	if (device->only_port && partitions <= 1 && !(device->flags & DEVICE_CLONES))
		return multicast_one(device, m, grown);
	csum_grow(udp_of(m->header), grown);
	if (device->flags & DEVICE_CLONES)
		return XDP_PASS;
	if (device->flags & DEVICE_WITHIN && partitions <= 1)
		return TO_WITHIN;
	return broadcast(device, partitions);
}

SEC("xdp/devmap")
int egress(struct xdp_md *ctx)
{
	return send_copy(ctx, ctx->egress_ifindex);
}

/* This program runs the same body on the interface that BPF_PROG_TEST_RUN can name. */
SEC("xdp")
int test_egress(struct xdp_md *ctx)
{
	return send_copy(ctx, ctx->ingress_ifindex);
}

#endif
