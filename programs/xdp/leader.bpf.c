// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The leader: puts requests in order (Algorithm 1 of both papers; docs/protocol/leader.md).
 *
 * It follows crates/paxos/src/leader.rs step by step. include/stamp.h says how it stamps. */
#define STAMPED PHASE2A
#define STAMPING_ROLE PROBE_LEADER
#define NAMES_ROUND(round) round_is_valid(round)
#include "include/stamp.h"

static __always_inline __u32 trim_to(const struct message *m, struct step *s,
				     struct partition_bank *p);

/* ---- Handlers */

static __always_inline __u32 handle(struct xdp_md *ctx, struct message *m, struct step *s)
{
	struct partition_bank *p = partition_of(s, m->pid);

	if (!p)
		return REASON_FULL;
	switch (m->msgtype) {
	case REQUEST:
		return request(ctx, m, s, p);
	case TRIM:
		return trim_to(m, s, p);
	case REJECT:
		return rejected(ctx, m, s);
	case PROBE:
		return probe(ctx, m, s, p);
	default:
		return REASON_NOT_FOR_ROLE;
	}
}

/* Handles TRIM, which opens the window: a replica's report (without a round), or a candidate's trim
 * point (in its base round). [L-TRIM] */
static __always_inline __u32 trim_to(const struct message *m, struct step *s,
				     struct partition_bank *p)
{
	__u64 trimmed = READ_ONCE(p->trimmed);

	if (m->value_len)
		return REASON_BAD_VALUE;
	if (!m->rnd)
		return report(m, s, p);
	if (!round_is_base(m->rnd))
		return REASON_BAD_ROUND;
	if (!s->bank->rnd || m->rnd < s->bank->rnd || m->inst < trimmed)
		return REASON_STALE;
	if (m->inst == trimmed)
		return REASON_DUPLICATE;
	return raise(&p->trimmed, m->inst) ? VERDICT_CHANGED : REASON_BUSY;
}

SEC("xdp")
int leader(struct xdp_md *ctx)
{
	return step(ctx);
}

char _license[] SEC("license") = "GPL";
