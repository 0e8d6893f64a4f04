// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The sequencer: gives requests their slots (section 4 of the NOPaxos paper;
 * docs/protocol/nopaxos.md).
 *
 * It follows crates/paxos/src/nopaxos/sequencer.rs step by step. include/stamp.h says how it
 * stamps. */
#define STAMPED ORDERED
#define STAMPING_ROLE PROBE_SEQUENCER
/* A replica's REJECT names its view. */
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

/* Handles a member's TRIM, which opens the window. A session has no candidate, so a TRIM with a
 * round is refused. [Q-WINDOW] */
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
