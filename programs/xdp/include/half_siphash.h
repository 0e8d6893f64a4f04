/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* HalfSipHash-2-4 with 64 bits: SipHash in words of 32 bits, as in
 * crates/paxos/src/auth/half_siphash.rs. */
#ifndef WIREPAXOS_HALF_SIPHASH_H
#define WIREPAXOS_HALF_SIPHASH_H

#include <linux/types.h>

struct half_sip {
	__u32 v0, v1, v2, v3;
};

#define ROTATE_HALF(x, by) ((x) << (by) | (x) >> (32 - (by)))

static __always_inline void half_round(struct half_sip *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = ROTATE_HALF(s->v1, 5) ^ s->v0;
	s->v3 = ROTATE_HALF(s->v3, 8) ^ s->v2;
	s->v0 = ROTATE_HALF(s->v0, 16);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = ROTATE_HALF(s->v1, 13) ^ s->v2;
	s->v3 = ROTATE_HALF(s->v3, 7) ^ s->v0;
	s->v2 = ROTATE_HALF(s->v2, 16);
}

static __always_inline struct half_sip half_begin(__u64 key)
{
	__u32 low = key, high = key >> 32;
	struct half_sip s = {
		.v0 = low,
		.v1 = high ^ 0xee,
		.v2 = low ^ 0x6c796765,
		.v3 = high ^ 0x74656462,
	};

	return s;
}

static __always_inline void half_word(struct half_sip *s, __u32 word)
{
	s->v3 ^= word;
	half_round(s);
	half_round(s);
	s->v0 ^= word;
}

static __always_inline __u32 half_of_hash(struct half_sip *s)
{
	half_round(s);
	half_round(s);
	half_round(s);
	half_round(s);
	return s->v1 ^ s->v3;
}

static __always_inline __u64 half_end(struct half_sip *s)
{
	__u32 low;

	s->v2 ^= 0xee;
	low = half_of_hash(s);
	s->v1 ^= 0xdd;
	return (__u64)half_of_hash(s) << 32 | low;
}

#endif
