// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The fault injector: both ends of a wire, a pair of interfaces that a link of the lab leads
 * through. A frame that comes in at one end leaves by the other, but the cluster's datagrams may be
 * lost, have a bit flipped, or take a detour past a queue in user space, which duplicates, holds
 * back and delays them, because a program here can neither copy a frame nor keep one. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/fault.h"

/* The number of ends, which is larger than in any lab. */
#define MAX_ENDS 256

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32);
	__type(value, struct fault_wire);
} wires SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32);
	__type(value, struct fault_state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32);
	__type(value, struct fault_handled);
} handled SEC(".maps");

struct payload {
	__u32 at;
	__u32 len;
};

static __always_inline int is_clusters(const struct fault_wire *wire, __be16 port)
{
	__u16 number = bpf_ntohs(port);

	return number >= wire->first_port && number <= wire->last_port;
}

/* Returns true if the frame is a whole datagram from or to one of the cluster's ports, and finds
 * its payload. */
static __always_inline int find_payload(struct xdp_md *ctx, const struct fault_wire *wire,
					struct payload *payload)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct udphdr *udp;

	if ((void *)(eth + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return 0;
		/* The mask leaves out only "don't fragment", so fragments don't count as
		 * datagrams. */
		if (ip->frag_off & bpf_htons(0xbfff))
			return 0;
		udp = (void *)(ip + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
			return 0;
		udp = (void *)(ip + 1);
	} else {
		return 0;
	}
	if ((void *)(udp + 1) > end)
		return 0;
	if (!is_clusters(wire, udp->source) && !is_clusters(wire, udp->dest))
		return 0;
	payload->at = (void *)(udp + 1) - (void *)eth;
	payload->len = bpf_ntohs(udp->len) - sizeof(*udp);
	return 1;
}

/* Mixes a seed by splitmix64's last step, so that neighbouring seeds start far apart. */
static __always_inline __u64 mixed(__u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static __always_inline void start_anew(struct fault_state *state, const struct fault_wire *wire)
{
	__u64 stream = ((__u64)wire->stream << 32) | bpf_get_smp_processor_id();

	__builtin_memset(state, 0, sizeof(*state));
	state->random = mixed(mixed(wire->seed + 0x9e3779b97f4a7c15ull) ^ stream) | 1;
	state->generation = wire->generation;
}

/* Returns the upper half of the next xorshift64* number. */
static __always_inline __u32 draw(struct fault_state *state)
{
	__u64 x = state->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	state->random = x;
	return (x * 0x2545f4914f6cdd1dull) >> 32;
}

static __always_inline int happens(struct fault_state *state, __u32 likelihood)
{
	__u32 drawn = draw(state);

	return likelihood && drawn <= likelihood;
}

/* Flips a random bit of the payload. The checksum stays as it was, since it must show the
 * damage. */
static __always_inline int flip_a_bit(struct xdp_md *ctx, struct fault_state *state,
				      const struct payload *payload)
{
	__u32 bit = draw(state);
	__u32 at;
	__u8 byte;

	if (!payload->len)
		return 0;
	at = payload->at + (bit >> 3) % payload->len;
	if (bpf_xdp_load_bytes(ctx, at, &byte, sizeof(byte)))
		return 0;
	byte ^= 1 << (bit & 7);
	return !bpf_xdp_store_bytes(ctx, at, &byte, sizeof(byte));
}

SEC("xdp")
int fault(struct xdp_md *ctx)
{
	__u32 in = ctx->ingress_ifindex;
	struct fault_wire *wire = bpf_map_lookup_elem(&wires, &in);
	struct fault_state *state = bpf_map_lookup_elem(&states, &in);
	struct payload payload;

	if (!wire || !state)
		return XDP_ABORTED;
	if (state->generation != wire->generation)
		start_anew(state, wire);
	if (!find_payload(ctx, wire, &payload)) {
		state->others++;
		return bpf_redirect(wire->out, 0);
	}
	state->datagrams++;
	if (happens(state, wire->loss)) {
		state->lost++;
		return XDP_DROP;
	}
	if (happens(state, wire->corrupt))
		state->corrupted += flip_a_bit(ctx, state, &payload);
	if (happens(state, wire->detour)) {
		state->detoured++;
		return XDP_PASS;
	}
	return bpf_redirect(wire->out, 0);
}

char LICENSE[] SEC("license") = "GPL";
