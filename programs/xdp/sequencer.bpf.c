// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The sequencer: gives requests their slots (section 4 of the NOPaxos paper; docs/protocol/nopaxos.md).
 *
 * The same rules, step by step, as crates/paxos/src/nopaxos/sequencer.rs. How it stamps is told in include/stamp.h. */
#define STAMPED ORDERED
#define STAMPING_ROLE PROBE_SEQUENCER
/* A replica names its view. */
#define NAMES_ROUND(round) (round_epoch(round) != 0)
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

/* A member's TRIM opens the window. Nobody else's does: a session has no candidate. [Q-WINDOW] */
static __always_inline __u32 trim_to(const struct message *m, struct step *s,
				     struct partition_bank *p)
{
	if (m->value_len)
		return REASON_BAD_VALUE;
	if (m->rnd)
		return REASON_BAD_ROUND;
	return report(m, s, p);
}

SEC("xdp")
int sequencer(struct xdp_md *ctx)
{
	return step(ctx);
}

char _license[] SEC("license") = "GPL";
