/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Internet checksums of the packet in place, and of data that is written into it.
 *
 * Sums are kept in 64 bits and folded in the end; a datagram's 32-bit words can't overflow them.
 * Words are read by 32 bits, since the headers behind Ethernet are aligned like that. */
#ifndef WIREPAXOS_CHECKSUM_H
#define WIREPAXOS_CHECKSUM_H

#include "parse.h"

/* The number of bytes that bpf_csum_diff takes at once on kernel 6.1. */
#define CSUM_PIECE 512

/* Folds a sum below 2^47 to 16 bits. After two steps it is below 2^16 + 2^15 + 1. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Returns true if a sum that isn't 0 folds to 0xffff, that is if 2^16 - 1 divides it. A number is a
 * multiple of an odd d if and only if the number times d's inverse modulo 2^64 is at most (2^64 -
 * 1) / d. */
static __always_inline int csum_is_right(__u64 sum)
{
	const __u64 quotient = 0x0001000100010001;

	return sum * -quotient <= quotient;
}

/* Returns the checksum field for a sum. It is never 0, which would mean that there is no
 * checksum. */
static __always_inline __u16 csum_field(__u64 sum)
{
	__u16 check = ~csum_fold(sum);

	return check ? check : 0xffff;
}

/* Returns the sum of `len` bytes, where `len` is a constant and a multiple of four. */
static __always_inline __u64 csum_words(const void *at, __u32 len)
{
	const word_t *word = at;
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < len / 4; i++) {
		sum += word[i];
		/* Without this many words are loaded first and parked on the stack. */
		KEEP(sum);
	}
	return sum;
}

/* Returns by how much a sum grows when `len` bytes with the sum `old` become bytes with the sum
 * `new`. 2^32 - 1 counts as 0 in such sums, and keeps the result above 0. */
static __always_inline __u64 csum_grown(__u64 old, __u64 new, __u32 len)
{
	return (__u64)0xffffffff * (len / 4) - old + new;
}

/* Returns by how much a sum grows when the `len` bytes at `old` become those at `new`. */
static __always_inline __u64 csum_change(const void *old, const void *new, __u32 len)
{
	return csum_grown(csum_words(old, len), csum_words(new, len), len);
}

/* Returns the sum of both halves. */
static __always_inline __u64 csum_halves(__u64 both)
{
	return (__u32)both + (both >> 32);
}

/* Stores a number over the eight bytes at `hi`, and returns by how much the sum of the bytes
 * grows. */
static __always_inline __u64 csum_set64(__be32 *hi, __u64 number)
{
	__u64 old = *(const double_t *)hi;

	set64(hi, number);
	return csum_grown(csum_halves(old), csum_halves(bpf_cpu_to_be64(number)), 8);
}

/* Returns the sum behind a checksum field. Whatever is added to it, a wrong checksum stays
 * wrong. */
static __always_inline __u64 csum_of_field(__u16 check)
{
	return (__u16)~check;
}

/* Updates a datagram's checksum, if it has one, after its sum has grown. */
static __always_inline void csum_grow(struct udphdr *udp, __u64 grown)
{
	if (udp->check)
		udp->check = csum_field(csum_of_field(udp->check) + grown);
}

/* Adds `len` bytes at `bytes` to a sum; `max` and three more bytes are readable there. Whole words
 * go to the helper, piece by piece, and the remaining bytes are masked out of one more word. */
static __always_inline __u64 csum_bytes(__u8 *bytes, __u32 len, __u32 max, __u64 sum)
{
	__u32 words = len & ~3u;
	__u32 tail = len & 3;

#pragma clang loop unroll(full)
	for (__u32 at = 0; at < max; at += CSUM_PIECE) {
		__u32 piece = words > at ? words - at : 0;
		__u32 room = max - at < CSUM_PIECE ? max - at : CSUM_PIECE;

		/* Without this the compiler makes one comparison of two, which tells the verifier
		 * nothing. */
		KEEP(piece);
		if (piece > room)
			piece = room;
		KEEP(piece);
		if (piece > 0 && piece <= room)
			sum = (__u32)bpf_csum_diff(NULL, 0, (__be32 *)(bytes + at), piece,
						   csum_fold(sum));
	}
	if (tail) {
		KEEP(words);
		if (words <= max)
			sum += *(__u32 *)(bytes + words) & bpf_htonl(~0u << (32 - 8 * tail));
	}
	return sum;
}

/* Returns the sum of the pseudo header of a datagram of `len` bytes: protocol, length, and the
 * addresses, which lie in front of UDP. */
static __always_inline __u64 csum_pseudo(const struct udphdr *udp, __u32 header_at, __be16 len)
{
	const void *from = udp;
	__u64 sum = bpf_htons(IPPROTO_UDP) + (__u64)len;

	return sum +
	       (header_at == HEADER_AT_V4 ? csum_words(from - 8, 8) : csum_words(from - 32, 32));
}

/* Adds one piece of a datagram. The pieces are the powers of two in its length, so each has a
 * constant length, and the verifier can follow. Where a piece begins, all larger ones have
 * ended. */
#define ADD_PIECE(size, sum_of)                                       \
	if (len & (size)) {                                           \
		void *piece = at + (len & (0x7ff & ~(2 * (size)-1))); \
                                                                      \
		if (piece + (size) > end)                             \
			return 0;                                     \
		sum += sum_of;                                        \
	}
#define BY_HELPER(from, size) (__u32) bpf_csum_diff(NULL, 0, (from), (size), 0)

/* Returns the sum of less than 128 bytes of the packet from `at` on. If they aren't all there, the
 * result is some other sum. */
static __always_inline __u64 csum_short(void *at, void *end, __u32 len)
{
	__u64 sum = 0;

	ADD_PIECE(64, csum_words(piece, 64));
	if (len & 63) {
		ADD_PIECE(32, csum_words(piece, 32));
		ADD_PIECE(16, csum_words(piece, 16));
		ADD_PIECE(8, csum_words(piece, 8));
		if (len & 7) {
			ADD_PIECE(4, csum_words(piece, 4));
			ADD_PIECE(2, *(__u16 *)piece);
			ADD_PIECE(1, bpf_htons(*(__u8 *)piece << 8));
		}
	}
	return sum;
}

/* Returns the sum of any number of bytes, as `csum_short` does. */
SUBPROGRAM __u64 csum_long(void *at, void *end, __u32 len)
{
	__u64 sum = 0;

	ADD_PIECE(1024, BY_HELPER(piece, 512));
	ADD_PIECE(1024, BY_HELPER(piece + 512, 512));
	ADD_PIECE(512, BY_HELPER(piece, 512));
	ADD_PIECE(256, BY_HELPER(piece, 256));
	ADD_PIECE(128, BY_HELPER(piece, 128));
	return sum + csum_short(at + (len & 0x780), end, len & 127);
}

static __always_inline __u64 csum_packet(void *at, void *end, __u32 len)
{
	return len < 128 ? csum_short(at, end, len & 127) : csum_long(at, end, len);
}

/* Checks the checksum of the datagram, since a network card that has checked it doesn't tell.
 * Returns 0 or a reason. */
static __always_inline int verify_checksum(const struct message *m)
{
	const __u32 head = sizeof(struct udphdr) + HEADER_LEN;
	const struct udphdr *udp = udp_of(m->header);
	__u64 sum;

	if (!udp->check)
		/* IPv4 allows datagrams without a checksum, and IPv6 doesn't. */
		return m->header_at == HEADER_AT_V4 ? 0 : REASON_BAD_CHECKSUM;
	sum = csum_pseudo(udp, m->header_at, udp->len) + csum_words(udp, head) +
	      csum_packet(m->header + 1, m->end, bpf_ntohs(udp->len) - head);
	return csum_is_right(sum) ? 0 : REASON_BAD_CHECKSUM;
}

#endif
