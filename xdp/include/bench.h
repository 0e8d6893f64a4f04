/* For measurements alone: BPF_PROG_TEST_RUN repeats a program over one packet, which a role changes.
 * This program makes it new each time, with the next instance and the next sender, and tail-calls
 * the role. Its own time is measured with `bench_nothing` in the role's place. */
#ifndef WIREPAXOS_BENCH_H
#define WIREPAXOS_BENCH_H

#include "checksum.h"

#define BENCH_HEAD_LEN (HEADER_AT_V4 + HEADER_LEN)

struct bench {
	/* Packets made so far. */
	__u64 made;
	/* 1 << shift packets of one instance, from as many senders. */
	__u32 shift;
	__u32 first_sender;
	/* Ethernet, IPv4, UDP and header; instance and sender 0, and a checksum right for that. */
	__u8 head[BENCH_HEAD_LEN];
	__u8 unused[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench);
} bench_packet SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} bench_target SEC(".maps");

SEC("xdp")
int bench(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct bench *b = bpf_map_lookup_elem(&bench_packet, &zero);
	struct wire_header *h;
	struct udphdr *udp;
	__u64 made, sum;

	if (!b || bpf_xdp_store_bytes(ctx, 0, b->head, BENCH_HEAD_LEN))
		return XDP_ABORTED;
	made = b->made++;
	h = (void *)(long)ctx->data + HEADER_AT_V4;
	udp = (void *)h - sizeof(*udp);
	if ((void *)(h + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	h->inst_hi = bpf_htonl(made >> b->shift >> 32);
	h->inst_lo = bpf_htonl(made >> b->shift);
	h->swid = bpf_htons(b->first_sender + (made & ((1 << b->shift) - 1)));
	sum = (__u64)(__u16)~udp->check + h->inst_hi + h->inst_lo + h->swid;
	udp->check = ~csum_fold(sum);
	bpf_tail_call(ctx, &bench_target, 0);
	return XDP_ABORTED;
}

SEC("xdp")
int bench_nothing(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_DROP;
}

#endif
