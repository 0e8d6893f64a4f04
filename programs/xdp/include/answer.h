/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Turns the packet in hand into the one to send. */
#ifndef WIREPAXOS_ANSWER_H
#define WIREPAXOS_ANSWER_H

#include "tags.h"

/* The largest value of an answer that doesn't come from a slot. */
#define MAX_SHORT_ANSWER 24

/* The part of an answer behind IP that is made here. Three more bytes must be readable behind every
 * place that csum_bytes gets. */
struct answer {
	struct udphdr udp;
	struct wire_header h;
	__u8 value[MAX_SHORT_ANSWER];
	__u32 padding;
};
#define ANSWER_HEAD_LEN (sizeof(struct udphdr) + HEADER_LEN)

/* Fills in the header of a message from this node, about the partition of `m`. */
static __always_inline void answer_header(struct wire_header *h, const struct device *device,
					  const struct message *m, __u8 msgtype)
{
	__builtin_memset(h, 0, sizeof(*h));
	h->version = WIRE_VERSION;
	h->msgtype = msgtype;
	h->group = bpf_htons(m->group);
	h->pid = bpf_htons(m->pid);
	h->swid = bpf_htons(device->node);
	h->flags = bpf_htons(device->flags & DEVICE_SIGNED ? FLAG_TAG : 0);
	h->cluster = bpf_htonl(device->cluster);
}

/* Sets the value's flags, besides the flag of the tag. */
static __always_inline void set_flags(struct wire_header *h, __u16 flags)
{
	h->flags |= bpf_htons(flags);
}

static __always_inline void set_inst(struct wire_header *h, __u64 inst)
{
	h->inst_hi = bpf_htonl(inst >> 32);
	h->inst_lo = bpf_htonl(inst);
}

static __always_inline void set_session(struct wire_header *h, __u64 client, __u64 request)
{
	h->client_hi = bpf_htonl(client >> 32);
	h->client_lo = bpf_htonl(client);
	h->request_hi = bpf_htonl(request >> 32);
	h->request_lo = bpf_htonl(request);
}

static __always_inline void put32(__u8 *to, __u32 number)
{
	number = bpf_htonl(number);
	__builtin_memcpy(to, &number, 4);
}

static __always_inline void put64(__u8 *to, __u64 number)
{
	put32(to, number >> 32);
	put32(to + 4, number);
}

/* Makes Ethernet and IP of an answer with `ip_payload` bytes, to the sender of the packet if `back`
 * is set. Returns false if they aren't in the frame. */
static __always_inline int answer_frame(struct xdp_md *ctx, __u32 header_at, __u32 ip_payload,
					int back)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;

	if ((void *)(eth + 1) > end)
		return 0;
	if (back) {
		half_t mac[ETH_ALEN / 2];

		copy_mac(mac, eth->h_dest);
		copy_mac(eth->h_dest, eth->h_source);
		copy_mac(eth->h_source, mac);
	}
	if (header_at == HEADER_AT_V4) {
		struct iphdr *ip = (void *)(eth + 1);
		__be32 from;

		if ((void *)(ip + 1) > end)
			return 0;
		from = ip->saddr;
		if (back) {
			ip->saddr = ip->daddr;
			ip->daddr = from;
		}
		ip->tot_len = bpf_htons(sizeof(*ip) + ip_payload);
		ip->ttl = 64;
		ip->check = 0;
		ip->check = ~csum_fold(csum_words(ip, sizeof(*ip)));
		return 1;
	}
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct in6_addr from;

	if ((void *)(ip + 1) > end)
		return 0;
	from = ip->saddr;
	if (back) {
		ip->saddr = ip->daddr;
		ip->daddr = from;
	}
	ip->payload_len = bpf_htons(ip_payload);
	ip->hop_limit = 64;
	return 1;
}

/* Makes the frame carry `a` with `short_len` bytes of its own value or `long_len` bytes at `value`
 * (of which `max` and three more are readable). Returns false if the frame can't be that long.
 *
 * If packets are signed, there is room for a tag, which is made when the role is done
 * (`sign_answer`). Addresses are swapped if the answer goes `back`; multicast addresses are set
 * later, for each copy. */
static __always_inline int send_answer(struct xdp_md *ctx, __u32 header_at, struct answer *a,
				       __u32 short_len, __u8 *value, __u32 long_len, __u32 max,
				       int back)
{
	__u32 udp_at = header_at == HEADER_AT_V4 ? HEADER_AT_V4 - sizeof(struct udphdr) :
						   HEADER_AT_V6 - sizeof(struct udphdr);
	__u32 tag_len = head_len(bpf_ntohs(a->h.flags)) - HEADER_LEN;
	__u32 udp_len = ANSWER_HEAD_LEN + tag_len + short_len + long_len;
	__u32 frame_len = frame_length(ctx);
	struct udphdr *udp;
	__u32 own_len;
	__u64 sum;

	if (bpf_xdp_adjust_tail(ctx, (int)(udp_at + udp_len - frame_len)))
		return 0;
	if (!answer_frame(ctx, header_at, udp_len, back))
		return 0;
	udp = (void *)(long)ctx->data + udp_at;
	if ((void *)(udp + 1) > (void *)(long)ctx->data_end)
		return 0;
	a->udp.source = back ? udp->dest : udp->source;
	a->udp.dest = back ? udp->source : udp->dest;
	a->udp.len = bpf_htons(udp_len);
	a->udp.check = 0;
	a->h.value_len = bpf_htons(short_len + long_len);

	own_len = ANSWER_HEAD_LEN + short_len;
	sum = csum_pseudo(udp, header_at, a->udp.len);
	sum = csum_bytes((__u8 *)a, own_len, ANSWER_HEAD_LEN + MAX_SHORT_ANSWER, sum);
	if (max)
		sum = csum_bytes(value, long_len, max, csum_fold(sum));
	a->udp.check = csum_field(sum);

	if (max && long_len &&
	    !store_bytes(ctx, udp_at + ANSWER_HEAD_LEN + tag_len, value, long_len, max))
		return 0;
	if (!tag_len)
		return store_bytes(ctx, udp_at, a, own_len, ANSWER_HEAD_LEN + MAX_SHORT_ANSWER);
	if (short_len && !store_bytes(ctx, udp_at + ANSWER_HEAD_LEN + tag_len, a->value, short_len,
				      MAX_SHORT_ANSWER))
		return 0;
	return store_bytes(ctx, udp_at, a, ANSWER_HEAD_LEN, ANSWER_HEAD_LEN);
}

/* Sends an answer back to the sender, whose value, if any, is in `a` itself. */
SUBPROGRAM int send_short(struct xdp_md *ctx, __u32 header_at, struct answer *a, __u32 short_len)
{
	return send_answer(ctx, header_at, a, short_len, NULL, 0, 0, 1);
}

/* The changes in the header of a message that is multicast with its value. */
struct stamp {
	/* True if the message gets an instance and a round, instead of keeping its own. */
	__u32 orders;
	__u32 rnd;
	__u64 inst;
	__u32 vrnd;
	__u16 flags;
	__u16 msgtype;
};

/* Changes the header in place, and returns by how much the datagram's sum grows. The checksum is
 * changed later, together with other changes; so a wrong one stays wrong, and whoever verifies it
 * sees a damaged value. */
static __always_inline __u64 stamp_in_place(const struct device *device, const struct message *m,
					    const struct stamp *stamp)
{
	struct wire_header *h = m->header;
	/* The fields are in the order of the header. */
	struct {
		__be32 inst_hi;
		__be32 inst_lo;
		__be32 rnd;
	} order = {
		.inst_hi = bpf_htonl(stamp->inst >> 32),
		.inst_lo = bpf_htonl(stamp->inst),
		.rnd = bpf_htonl(stamp->rnd),
	};
	struct {
		__be32 vrnd;
		__be16 swid;
		__be16 flags;
	} vote = {
		.vrnd = bpf_htonl(stamp->vrnd),
		.swid = bpf_htons(device->node),
		.flags = bpf_htons(stamp->flags | (m->flags & FLAG_TAG)),
	};
	__u64 grown = csum_change(&h->vrnd, &vote, sizeof(vote)) + 0xffff - bpf_htons(h->msgtype) +
		      bpf_htons(stamp->msgtype);

	_Static_assert(sizeof(order) + sizeof(vote) ==
			       __builtin_offsetof(struct wire_header, cluster) -
				       __builtin_offsetof(struct wire_header, inst_hi),
		       "all that lies between");
	h->msgtype = stamp->msgtype;
	__builtin_memcpy(&h->vrnd, &vote, sizeof(vote));
	if (stamp->orders) {
		grown += csum_change(&h->inst_hi, &order, sizeof(order));
		__builtin_memcpy(&h->inst_hi, &order, sizeof(order));
	}
	return grown;
}

/* Stamps a message as `stamp_in_place` does, if packets aren't signed and the value moves to the
 * place of a tag, under a checksum of its own. Returns false if the frame can't be that long. */
SUBPROGRAM int stamp_untagged(struct xdp_md *ctx, const struct device *device,
			      const struct message *m, const struct stamp *stamp)
{
	struct scratch *copy = this_scratch();
	struct answer a = {};
	__u32 len = m->value_len;

	KEEP(len);
	if (!copy || len > MAX_VALUE_LEN)
		return 0;
	if (len > 0 && !load_bytes(ctx, value_at(m), copy->datagram, len, MAX_VALUE_LEN))
		return 0;
	answer_header(&a.h, device, m, stamp->msgtype);
	set_inst(&a.h, stamp->orders ? stamp->inst : m->inst);
	set_session(&a.h, m->client, m->request);
	a.h.rnd = bpf_htonl(stamp->orders ? stamp->rnd : m->rnd);
	a.h.vrnd = bpf_htonl(stamp->vrnd);
	set_flags(&a.h, stamp->flags);
	return send_answer(ctx, m->header_at, &a, 0, copy->datagram, len, MAX_VALUE_LEN, 0);
}

/* The content of a REJECT. */
struct rejection {
	__u64 trim;
	__u32 round;
	__u32 reason;
};

/* Sends a REJECT, which names the refused message by its instance, round, client and request.
 * [M-REFUSE] */
SUBPROGRAM int send_reject(struct xdp_md *ctx, const struct device *device, const struct message *m,
			   const struct rejection *says)
{
	struct answer a = {};

	answer_header(&a.h, device, m, REJECT);
	set_inst(&a.h, m->inst);
	set_session(&a.h, m->client, m->request);
	a.h.rnd = bpf_htonl(m->rnd);
	put32(a.value, says->reason << 16);
	put32(a.value + 4, says->round);
	put64(a.value + 8, says->trim);
	return send_short(ctx, m->header_at, &a, REJECTION_LEN);
}

/* Checks that a PROBE asks for this role. Returns 0 or a reason. */
static __always_inline int probe_is_for(struct xdp_md *ctx, const struct message *m, __u16 role)
{
	__be16 asked = 0;

	if (m->value_len != PROBE_LEN || bpf_xdp_load_bytes(ctx, value_at(m), &asked, PROBE_LEN))
		return REASON_BAD_VALUE;
	asked = bpf_ntohs(asked);
	if (asked < PROBE_LEADER || asked > PROBE_SEQUENCER)
		return REASON_BAD_VALUE;
	return asked == role ? 0 : REASON_NOT_FOR_ROLE;
}

static __always_inline int send_probe_ack(struct xdp_md *ctx, const struct device *device,
					  const struct message *m, __u32 rnd, __u64 inst,
					  __u64 nonce, __u64 trim, __u64 start)
{
	struct answer a = {};

	answer_header(&a.h, device, m, PROBE_ACK);
	set_inst(&a.h, inst);
	set_session(&a.h, m->client, m->request);
	a.h.rnd = bpf_htonl(rnd);
	put64(a.value, nonce);
	put64(a.value + 8, trim);
	put64(a.value + 16, start);
	return send_short(ctx, m->header_at, &a, PROBE_REPORT_LEN);
}

#endif
