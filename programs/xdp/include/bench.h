/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Programs for tests and measurements alone. BPF_PROG_TEST_RUN repeats a program over one packet,
 * which a role changes. The program `bench` makes the packet new each time, with the next instance
 * and the next sender (and signs it, if it has a tag). Then it tail-calls the role, or `bench_out`,
 * which sends the packet over a link as a network would, or `bench_pass`. Its own time is measured
 * with `bench_nothing` in the role's place. */
#ifndef WIREPAXOS_BENCH_H
#define WIREPAXOS_BENCH_H

#include "tags.h"

/* The length of the headers and the beginning of a value, which is all that roles write. */
#define BENCH_HEAD_LEN 144
#define BENCH_CPUS 64

struct bench {
	/* The packets made so far, and how many may be made. Later ones are dropped. */
	__u64 made;
	__u64 limit;
	/* Each instance has 1 << shift packets, from as many senders. */
	__u32 shift;
	__u32 first_sender;
	/* The place of the header. */
	__u32 header_at;
	/* The number of bytes in `head`. */
	__u32 len;
	/* A frame's beginning, with instance and sender 0 and a checksum that is right for them. */
	__u8 head[BENCH_HEAD_LEN];
};

/* One packet for each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BENCH_CPUS);
	__type(key, __u32);
	__type(value, struct bench);
} bench_packet SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} bench_target SEC(".maps");

/* Entry 0 is the device to which `bench_out` sends. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} bench_port SEC(".maps");

SEC("xdp")
int bench(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct bench *b = bpf_map_lookup_elem(&bench_packet, &cpu);
	struct wire_header *h;
	struct udphdr *udp;
	__u64 made, sum;
	__u32 len;

	if (!b)
		return XDP_ABORTED;
	if (b->made >= READ_ONCE(b->limit))
		return XDP_DROP;
	len = b->len;
	if (!store_bytes(ctx, 0, b->head, len, BENCH_HEAD_LEN))
		return XDP_ABORTED;
	made = b->made++;
	h = (void *)(long)ctx->data + known_place(b->header_at);
	udp = (void *)h - sizeof(*udp);
	if ((void *)(h + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	h->inst_hi = bpf_htonl(made >> b->shift >> 32);
	h->inst_lo = bpf_htonl(made >> b->shift);
	h->swid = bpf_htons(b->first_sender + (made & ((1 << b->shift) - 1)));
	sum = (__u64)(__u16)~udp->check + h->inst_hi + h->inst_lo + h->swid;
	if (h->flags & bpf_htons(FLAG_TAG)) {
		__u64 grown = make_tag(ctx, b->header_at, KEY_OF_NODES, 0, made + 1);

		if (!grown)
			return XDP_ABORTED;
		sum += grown;
	}
	udp->check = csum_field(sum);
	bpf_tail_call(ctx, &bench_target, 0);
	return XDP_ABORTED;
}

SEC("xdp")
int bench_out(struct xdp_md *ctx __attribute__((unused)))
{
	return bpf_redirect_map(&bench_port, 0, 0);
}

/* Passes the frame to the interface's stack, where generic XDP programs and TC see it. */
SEC("xdp")
int bench_pass(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_PASS;
}

SEC("xdp")
int bench_nothing(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_DROP;
}

/* Hands every other frame, by its sender, to the target. The others end here. */
SEC("xdp")
int bench_every_other(struct xdp_md *ctx)
{
	struct wire_header *h = (void *)(long)ctx->data + HEADER_AT_V4;

	if ((void *)(h + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	if (h->swid & bpf_htons(1))
		return drop(VERDICT_ANSWERED);
	bpf_tail_call(ctx, &bench_target, 0);
	return XDP_ABORTED;
}

/* Counts frames and drops them. */
SEC("xdp")
int bench_sink(struct xdp_md *ctx __attribute__((unused)))
{
	return drop(VERDICT_CHANGED);
}

#endif
