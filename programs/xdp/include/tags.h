/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tags, by which packets prove where they come from: checked and made as in crates/paxos/src/auth.rs. [M-SIGNED]
 *
 * What is checked and made here lies in the frame, so an answer is written first and signed then. All that the
 * verifier must walk is in functions of their own, which it looks at once. */
#ifndef WIREPAXOS_TAGS_H
#define WIREPAXOS_TAGS_H

#include "checksum.h"
#include "siphash.h"

/* ---- Checking */

/* 0, or why the tag of the packet at `header_at` isn't good (`Keyring::check`); above these 8 bits the number of who
 * has signed it. It has a tag, and its lengths are right. */
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

/* 0 or a reason. Notes in the message who has signed it. */
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

/* Makes the tag of the packet at `header_at`, for a reader: of its header, and of a value that is the one which its old
 * tag was for (`same_value`) or another one. Gives back by how much the sum of the datagram has grown; 0 = it can't be
 * signed. */
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

/* By the hash that has keys. */
static __always_inline __u64 make_tag(struct xdp_md *ctx, __u32 header_at, __u32 reader,
				      __u32 same_value, __u64 counter)
{
	__u64 grown = sign_whole(ctx, header_at, reader, same_value, counter);

	return grown ? grown : sign_half(ctx, header_at, reader, same_value, counter);
}

/* What nodes send to each other, and to clients: nobody looks at its counter. */
#define UNCOUNTED 0

#endif
