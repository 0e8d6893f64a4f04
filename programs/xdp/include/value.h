/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Copies values out of the packet in hand. */
#ifndef WIREPAXOS_VALUE_H
#define WIREPAXOS_VALUE_H

#include "parse.h"

/* Most values are no longer than this, and have their place in slots and small records. */
#define SHORT_VALUE 88

static __always_inline void copy_doubles(void *to, const void *from, __u32 len)
{
	const double_t *in = from;
	double_t *out = to;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < len / 8; i++)
		out[i] = in[i];
}

/* Copies `len` bytes as the first ones and the last ones, which meet or overlap. */
static __always_inline int copy_ends(void *from, void *end, __u8 *to, __u32 len, __u32 first,
				     __u32 last)
{
	__u32 rest = len - last;

	if (from + first > end)
		return 0;
	copy_doubles(to, from, first);
	if (len == first)
		return 1;
	KEEP(rest);
	if (rest > first || from + rest + last > end)
		return 0;
	copy_doubles(to + rest, from + rest, last);
	return 1;
}

/* Copies the value of a message whose header lies at `h`. The helper would take 5 ns more. */
static __always_inline int copy_short(struct xdp_md *ctx, const struct message *m,
				      struct wire_header *h, void *end, __u8 *to, __u32 len)
{
	void *at = h + 1;

	if (m->flags & FLAG_TAG)
		at += TAG_LEN;
	KEEP(at);
	if (len < 8)
		return load_bytes(ctx, value_at(m), to, len, SHORT_VALUE);
	if (len >= 64)
		return copy_ends(at, end, to, len, 64, SHORT_VALUE - 64);
	if (len >= 32)
		return copy_ends(at, end, to, len, 32, 32);
	if (len >= 16)
		return copy_ends(at, end, to, len, 16, 16);
	return copy_ends(at, end, to, len, 8, 8);
}

#endif
