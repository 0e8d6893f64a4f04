// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Looks at tags before a node's socket: a datagram without a tag, or with a wrong one, is dropped
 * before it is queued and wakes a thread. The process checks all that passes, so this check may be
 * incomplete: it looks at neither values nor senders. [M-SIGNED]
 *
 * Datagrams that came together (UDP_GRO) are one packet here, and go to the process if one of them
 * may be right. */
#include <linux/udp.h>
#include "include/counters.h"
#include "include/siphash.h"

/* The most datagrams of one packet that are checked; a packet with more passes. */
#define MAX_DATAGRAMS 128

struct head {
	struct wire_header header;
	struct tag tag;
};
_Static_assert(sizeof(struct head) == HEADER_LEN + TAG_LEN, "no padding between them");

static __always_inline __u32 check_mac(const struct head *head, const struct keys *keys, __u32 alg)
{
	const struct key_pair *pair = key_of(keys, head->tag.key_id, alg);

	if (!pair)
		return REASON_UNKNOWN_KEY;
	return mac_of(&head->header, pair, alg) == get64(&head->tag.mac_hi) ? 0 : REASON_BAD_MAC;
}

/* Returns the reason to drop a datagram that is too short for a tag. */
static __always_inline __u32 why_short(struct __sk_buff *skb, __u32 at)
{
	struct wire_header header;

	if (bpf_skb_load_bytes(skb, at, &header, sizeof(header)))
		return REASON_TRUNCATED;
	return header.flags & bpf_htons(FLAG_TAG) ? REASON_TRUNCATED : REASON_UNSIGNED;
}

/* Returns the reason to drop the datagram at this place, or 0 if nodes may take it. As a global
 * function it is verified only once. */
__noinline __u32 why_wrong(struct __sk_buff *skb, __u32 at)
{
	struct head head __attribute__((aligned(8)));
	const struct keys *keys = these_keys();

	if (!keys)
		return 0;
	if (bpf_skb_load_bytes(skb, at, &head, sizeof(head)))
		return why_short(skb, at);
	if (!(head.header.flags & bpf_htons(FLAG_TAG)))
		return REASON_UNSIGNED;
	if (head.tag.alg == ALG_SIPHASH)
		return check_mac(&head, keys, ALG_SIPHASH);
	if (head.tag.alg == ALG_HALF_SIPHASH)
		return check_mac(&head, keys, ALG_HALF_SIPHASH);
	return REASON_UNKNOWN_KEY;
}

SEC("socket")
int tag_filter(struct __sk_buff *skb)
{
	__u32 len = skb->len, at = sizeof(struct udphdr), datagrams = 0, why = 0;
	__u32 size = skb->gso_size ? skb->gso_size : len;
	__u32 cpu = bpf_get_smp_processor_id();
	struct counters *mine = bpf_map_lookup_elem(&counters, &cpu);

	do {
		why = why_wrong(skb, at);
		if (!why)
			return len;
		at += size;
		datagrams++;
	} while (at < len && datagrams < MAX_DATAGRAMS);
	if (at < len || !mine)
		return len;
	mine->of[why % COUNTERS] += datagrams;
	return 0;
}

char _license[] SEC("license") = "GPL";
