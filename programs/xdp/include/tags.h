/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tags, by which packets prove their sender. They are checked and made as in
 * crates/paxos/src/auth.rs. [M-SIGNED]
 *
 * Tags are checked and made in the frame, so an answer is first written and then signed. The parts
 * that the verifier must walk are functions of their own, which it looks at once. */
#ifndef WIREPAXOS_TAGS_H
#define WIREPAXOS_TAGS_H

#include "checksum.h"
#include "siphash.h"

/* ---- Checking */

/* Checks the tag of the packet at `header_at` (`Keyring::check`), which must have a tag and right
 * lengths. Returns a reason in the lower 8 bits, or 0 there and the number of the signer above. */
static __always_inline int check_by(struct xdp_md *ctx, __u32 header_at, __u32 alg)
{
	struct wire_header *h = (void *)(long)ctx->data + known_place(header_at);
	void *end = (void *)(long)ctx->data_end;
	const struct keys *keys = these_keys();
	const struct tag *tag = (void *)(h + 1);
	const struct key_pair *pair;
	__u64 digest;
	__u32 id;

	if (!keys || (void *)(tag + 1) > end)
		return REASON_TRUNCATED;
	id = tag->key_id;
	pair = key_of(keys, id, alg);
	if (!pair || tag->alg != alg)
		return REASON_UNKNOWN_KEY;
	if (mac_of(h, pair, alg) != get64(&tag->mac_hi))
		return REASON_BAD_MAC;
	if ((id & KEY_NUMBER) != KEY_OF_NODES && !is_of_anybody(h->msgtype))
		return REASON_FOREIGN_KEY;
	if (!digest_of(h, end, bpf_ntohs(h->value_len), pair, alg, &digest))
		return REASON_VALUE_TOO_LARGE;
	if (digest != get64(&tag->digest_hi))
		return REASON_BAD_DIGEST;
	return (id & KEY_NUMBER) << 8;
}

__noinline int check_tag(struct xdp_md *ctx, __u32 header_at)
{
	return check_by(ctx, header_at, ALG_SIPHASH);
}

__noinline int check_half_tag(struct xdp_md *ctx, __u32 header_at)
{
	return check_by(ctx, header_at, ALG_HALF_SIPHASH);
}

/* Checks a packet's tag, and notes its signer in the message. Returns 0 or a reason. */
static __always_inline int check_signed(struct xdp_md *ctx, const struct device *device,
					struct message *m)
{
	int checked;

	m->signer = KEY_OF_NODES;
	if (!(device->flags & DEVICE_SIGNED))
		return 0;
	if (!(m->flags & FLAG_TAG))
		return because(REASON_UNSIGNED);
	checked = check_tag(ctx, m->header_at);
	if (checked == REASON_UNKNOWN_KEY)
		checked = check_half_tag(ctx, m->header_at);
	m->signer = checked >> 8 & KEY_NUMBER;
	return checked & 0xff;
}

/* ---- Making */

/* Makes the tag of the packet at `header_at` for a reader. `same_value` says that the packet's old
 * tag was for the same value. Returns by how much the sum of the datagram has grown, or 0 if it
 * can't be signed. */
static __always_inline __u64 sign(void *data, void *end, __u32 header_at, __u32 reader,
				  __u32 same_value, __u64 counter, __u32 alg)
{
	struct wire_header *h = data + known_place(header_at);
	struct tag *tag = (void *)(h + 1);
	const struct keys *keys = these_keys();
	const struct key_pair *pair;
	__u64 digest, grown = 0;
	__u32 id;

	if (!keys || (void *)(tag + 1) > end)
		return 0;
	id = (keys->own & KEY_ODD) | (reader & KEY_NUMBER);
	pair = key_of(keys, id, alg);
	if (!pair)
		return 0;
	if (!same_value || tag->key_id != id || tag->alg != alg) {
		if (!digest_of(h, end, bpf_ntohs(h->value_len), pair, alg, &digest))
			return 0;
		grown = csum_set64(&tag->digest_hi, digest);
	}
	grown += csum_set64((void *)tag, (__u64)id << 56 | (__u64)alg << 48 | counter);
	return grown + csum_set64(&tag->mac_hi, mac_of(h, pair, alg));
}

__noinline __u64 sign_whole(struct xdp_md *ctx, __u32 header_at, __u32 reader, __u32 same_value,
			    __u64 counter)
{
	return sign((void *)(long)ctx->data, (void *)(long)ctx->data_end, header_at, reader,
		    same_value, counter, ALG_SIPHASH);
}

__noinline __u64 sign_half(struct xdp_md *ctx, __u32 header_at, __u32 reader, __u32 same_value,
			   __u64 counter)
{
	return sign((void *)(long)ctx->data, (void *)(long)ctx->data_end, header_at, reader,
		    same_value, counter, ALG_HALF_SIPHASH);
}

/* Makes the tag by whichever hash has keys, and returns what `sign` does. */
static __always_inline __u64 make_tag(struct xdp_md *ctx, __u32 header_at, __u32 reader,
				      __u32 same_value, __u64 counter)
{
	__u64 grown = sign_whole(ctx, header_at, reader, same_value, counter);

	return grown ? grown : sign_half(ctx, header_at, reader, same_value, counter);
}

/* The counter of packets that nodes send to each other and to clients, which no receiver looks
 * at. */
#define UNCOUNTED 0

#endif
