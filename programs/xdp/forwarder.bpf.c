// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The forwarder: a switch. It passes packets on by destination address, and calls a role if the
 * address is one of the switch's own. Without roles it is the path that roles are measured
 * against. */
#include "include/bench.h"
#include "include/multicast.h"

struct route_key {
	/* An IPv4 address is in the first word. */
	__be32 address[4];
	__u32 family;
};

struct route {
	/* The key in `ports`. */
	__u32 port;
	/* True if the packet goes to every entry of `multicast` instead, in as many frames as a
	 * role sends. */
	__u32 broadcast;
	__u8 mac_to[ETH_ALEN];
	__u8 mac_from[ETH_ALEN];
	/* 1 + the entry in `roles`, if the address is one of this switch's own; otherwise 0. */
	__u32 role;
};

struct {
	KEPT_MAP(BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct route_key);
	__type(value, struct route);
} routes SEC(".maps");

/* The ports, by the interface's index. */
struct {
	KEPT_MAP(BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

/* Takes one hop off. Returns 0 if none is left. */
static __always_inline int hop_v4(struct iphdr *ip)
{
	__u32 check = ip->check;

	if (ip->ttl <= 1)
		return 0;
	/* The high byte of a word counts down by one, so its complement's sum goes up by as much. */
	check += bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	return 1;
}

static __always_inline int hop_v6(struct ipv6hdr *ip)
{
	if (ip->hop_limit <= 1)
		return 0;
	ip->hop_limit--;
	return 1;
}

static __always_inline int forward(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct route_key key = {};
	struct iphdr *ip4 = NULL;
	struct ipv6hdr *ip6 = NULL;
	struct route *route;

	if ((void *)(eth + 1) > end)
		return pass_on();
	if (protocol(eth) == bpf_htons(ETH_P_IP)) {
		ip4 = (void *)(eth + 1);
		if ((void *)(ip4 + 1) > end)
			return pass_on();
		key.family = 4;
		key.address[0] = ip4->daddr;
	} else if (protocol(eth) == bpf_htons(ETH_P_IPV6)) {
		ip6 = (void *)(eth + 1);
		if ((void *)(ip6 + 1) > end)
			return pass_on();
		/* Neighbours accept these packets only if no router has passed them on. */
		if (ip6->nexthdr == IPPROTO_ICMPV6)
			return pass_on();
		key.family = 6;
		__builtin_memcpy(key.address, &ip6->daddr, sizeof(key.address));
	} else {
		return pass_on();
	}
	route = bpf_map_lookup_elem(&routes, &key);
	if (!route)
		return pass_on();
	if (route->role) {
		bpf_tail_call(ctx, &roles, route->role - 1);
		return pass_on();
	}
	/* The kernel's stack tells the sender when the last hop was reached. */
	if (!(ip6 ? hop_v6(ip6) : ip4 && hop_v4(ip4)))
		return pass_on();
	copy_macs(eth, route->mac_to);
	count(VERDICT_CHANGED);
	if (route->broadcast) {
		struct device *device = this_device();

		return device ? broadcast(device, 1) : XDP_ABORTED;
	}
	return bpf_redirect_map(&ports, route->port, 0);
}

SEC("xdp")
int forwarder(struct xdp_md *ctx)
{
	return forward(ctx);
}

char _license[] SEC("license") = "GPL";
