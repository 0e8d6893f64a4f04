/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The keys and hashes of tags. Both hashes of a tag are SipHash-2-4 with 64 bits (Aumasson and
 * Bernstein, "SipHash: a fast short-input PRF", 2012), or HalfSipHash-2-4. Keys are in the map
 * `keyring`; docs/protocol/authentication.md says which are good, and who signs with which. */
#ifndef WIREPAXOS_SIPHASH_H
#define WIREPAXOS_SIPHASH_H

#include "half_siphash.h"
#include "shared.h"
#include "wire.h"

/* ---- Types */

struct tag {
	__u8 key_id;
	__u8 alg;
	__be16 counter_hi;
	__be32 counter_lo;
	__be32 digest_hi;
	__be32 digest_lo;
	__be32 mac_hi;
	__be32 mac_lo;
};
_Static_assert(sizeof(struct tag) == TAG_LEN, "the tag has 24 bytes");
/* The mask of the counter in the first eight bytes, read as a number. */
#define COUNTER_MASK 0xffffffffffff

#define ALG_SIPHASH 1
#define ALG_HALF_SIPHASH 2
/* The fields of `key_id`: the lowest bit of the generation, and the number of the key's holder.
 * Other bits are 0. */
#define KEY_ODD 0x80
#define KEY_NUMBER 0x1f
/* The number of all nodes together. Clients have larger ones. */
#define KEY_OF_NODES 0

/* ---- State */

/* A holder's keys of one generation. Each is the two words that SipHash begins with; HalfSipHash's
 * key is in the first one. */
struct key_pair {
	__u64 mac[2];
	__u64 digest[2];
};

#define KEY_IDS 64
struct keys {
	/* Bit n is set if there is a key at place n. Only the cluster's hash has keys. */
	__u64 known;
	__u64 known_half;
	/* The `key_id` of the nodes' key that signs. */
	__u32 own;
	__u32 unused;
	struct key_pair pair[KEY_IDS];
};

/* The keys in two banks. Two generations are live at a time, so a bank is replaced while packets
 * pass. [M-BANK] */
struct keyring {
	__u32 bank;
	__u32 unused;
	struct keys banks[2];
};

SHARED_ARRAY(keyring, 1, struct keyring);

static __always_inline const struct keys *these_keys(void)
{
	__u32 zero = 0;
	struct keyring *all = bpf_map_lookup_elem(&keyring, &zero);

	return all ? &all->banks[READ_ONCE(all->bank) & 1] : NULL;
}

/* Returns a key, or NULL if there is no such key. */
static __always_inline const struct key_pair *key_of(const struct keys *keys, __u32 key_id,
						     __u32 alg)
{
	__u64 known = alg == ALG_SIPHASH ? keys->known : keys->known_half;
	__u32 place = (key_id & KEY_ODD) >> 2 | (key_id & KEY_NUMBER);
	const struct key_pair *pair;

	if (key_id & ~(KEY_ODD | KEY_NUMBER) || !(known >> place & 1))
		return NULL;
	_Static_assert(KEY_IDS == 64, "a place isn't changed by its mask");
	asm volatile("%0 &= 63" : "+r"(place));
	pair = &keys->pair[place];
	/* Without this the compiler may compute it again from numbers whose bounds verifiers before
	 * 6.11 have forgotten. */
	KEEP(pair);
	return pair;
}

/* ---- SipHash */

struct sip {
	__u64 v0, v1, v2, v3;
};

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = ROTATE(s->v1, 13) ^ s->v0;
	s->v3 = ROTATE(s->v3, 16) ^ s->v2;
	s->v0 = ROTATE(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = ROTATE(s->v1, 17) ^ s->v2;
	s->v3 = ROTATE(s->v3, 21) ^ s->v0;
	s->v2 = ROTATE(s->v2, 32);
}

static __always_inline struct sip sip_begin(const __u64 *key)
{
	struct sip s = {
		.v0 = key[0] ^ 0x736f6d6570736575,
		.v1 = key[1] ^ 0x646f72616e646f6d,
		.v2 = key[0] ^ 0x6c7967656e657261,
		.v3 = key[1] ^ 0x7465646279746573,
	};

	return s;
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

/* The rounds are in loops, here and below: unrolled, the code is three times as long, and a leader
 * takes a fifth longer. */
static __always_inline __u64 sip_end(struct sip *s)
{
	s->v2 ^= 0xff;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 2; i++) {
		sip_round(s);
		sip_round(s);
	}
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* Loads a word; SipHash's words are little-endian. */
static __always_inline __u64 sip_load(const void *at)
{
	return __builtin_bswap64(get64(at));
}

/* ---- Either hash: which one, the compiler knows */

struct hash {
	struct sip sip;
	struct half_sip half;
};

static __always_inline void hash_begin(struct hash *hash, const __u64 *key, __u32 alg)
{
	if (alg == ALG_SIPHASH)
		hash->sip = sip_begin(key);
	else
		hash->half = half_begin(key[0]);
}

static __always_inline void hash_word(struct hash *hash, __u64 word, __u32 alg)
{
	if (alg == ALG_SIPHASH) {
		sip_word(&hash->sip, word);
	} else {
		half_word(&hash->half, word);
		half_word(&hash->half, word >> 32);
	}
}

/* Ends a hash of `len` bytes, of which `rest` has the ones behind the last whole word. */
static __always_inline __u64 hash_end(struct hash *hash, __u64 rest, __u32 len, __u32 alg)
{
	if (alg == ALG_SIPHASH) {
		sip_word(&hash->sip, rest | (__u64)len << 56);
		return sip_end(&hash->sip);
	}
	if (len & 4) {
		half_word(&hash->half, rest);
		rest >>= 32;
	}
	half_word(&hash->half, rest | len << 24);
	return half_end(&hash->half);
}

/* ---- Hashes of a packet whose header lies at `h`, and the tag behind it; all of both is there. */

static __always_inline __u64 mac_of(const struct wire_header *h, const struct key_pair *pair,
				    __u32 alg)
{
	const void *at = h;
	struct hash hash;

	hash_begin(&hash, pair->mac, alg);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < (HEADER_LEN + TAG_LEN) / 8 - 1; i++) {
		hash_word(&hash, sip_load(at), alg);
		at += 8;
		KEEP(at);
	}
	return hash_end(&hash, 0, HEADER_LEN + TAG_LEN - 8, alg);
}

/* The number of words in the largest value. */
#define VALUE_WORDS (MAX_VALUE_LEN / 8)
_Static_assert(MAX_VALUE_LEN <= 2047, "a length isn't changed by its mask");

/* Hashes instance and value, and returns false if the value isn't whole up to `end`. The bytes
 * behind the last whole word are read first, together with bytes before them, so that the verifier
 * has no address to keep behind the loop. */
static __always_inline int digest_of(const struct wire_header *h, void *end, __u32 len,
				     const struct key_pair *pair, __u32 alg, __u64 *digest)
{
	void *at = (void *)(h + 1) + TAG_LEN;
	__u32 words = len / 8, over = len % 8;
	void *last = at - 8;
	struct hash hash;
	__u64 rest = 0;

	KEEP(len);
	if (len > MAX_VALUE_LEN)
		return 0;
	/* The length is less than that. Verifiers before 6.11 have forgotten it if the compiler had
	 * put a copy aside. */
	asm volatile("%0 &= 2047" : "+r"(len));
	last += len;
	if (last + 8 > end)
		return 0;
	if (over)
		rest = sip_load(last) >> (64 - 8 * over);
	hash_begin(&hash, pair->digest, alg);
	hash_word(&hash, sip_load(&h->inst_hi), alg);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < VALUE_WORDS; i++) {
		if (i >= words)
			break;
		at += 8;
		/* Without this the compiler subtracts from `end`, which the verifier forbids. */
		KEEP(at);
		if (at > end)
			return 0;
		hash_word(&hash, sip_load(at - 8), alg);
	}
	*digest = hash_end(&hash, rest, 8 + len, alg);
	return 1;
}

#endif
