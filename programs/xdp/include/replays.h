/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Recognises requests that an observer of the network sends again, as
 * crates/paxos/src/auth/replays.rs does.
 *
 * Each bucket has a lock, since requests of one client may come to several CPUs. */
#ifndef WIREPAXOS_REPLAYS_H
#define WIREPAXOS_REPLAYS_H

#include "tags.h"

/* The number of buckets of each holder of a key, so that no client is forgotten because of another
 * holder's clients. */
#define BUCKETS 1024
#define HOLDERS (KEY_NUMBER + 1)
#define ALL_BUCKETS (HOLDERS * BUCKETS)
#define WAYS 4

/* The counters that came from a client. */
struct seen {
	__u64 client;
	__u64 highest;
	/* Bit n is set if the counter `highest` - n came. */
	__u64 window;
};

struct seen_clients {
	struct seen way[WAYS];
	/* The highest counter of any client that was forgotten here. */
	__u64 forgotten;
	__u32 lock;
	__u32 unused[5];
};
_Static_assert(sizeof(struct seen_clients) == 128, "a bucket is two cache lines");

struct {
	KEPT_MAP(BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ALL_BUCKETS);
	__type(key, __u32);
	__type(value, struct seen_clients);
} replays SEC(".maps");

static __always_inline struct seen_clients *bucket_of(__u32 holder, __u64 client)
{
	__u32 at = ((client * 0x9e3779b97f4a7c15) >> 32) % BUCKETS + holder % HOLDERS * BUCKETS;

	return bpf_map_lookup_elem(&replays, &at);
}

/* Returns the client's place, or NULL if it isn't remembered. The bucket is locked. */
static __always_inline struct seen *place_of(struct seen_clients *bucket, __u64 client)
{
#pragma clang loop unroll(full)
	for (int i = 0; i < WAYS; i++)
		if (bucket->way[i].client == client)
			return &bucket->way[i];
	return NULL;
}

/* Returns true if the counter is new. Counters may overtake one another on their way, but not by
 * more than 63. */
static __always_inline int admits(struct seen *seen, __u64 counter)
{
	__u64 bit;

	if (counter > seen->highest) {
		__u64 ahead = counter - seen->highest;

		seen->window = (ahead < 64 ? seen->window << (ahead & 63) : 0) | 1;
		seen->highest = counter;
		return 1;
	}
	if (seen->highest - counter >= 64)
		return 0;
	bit = 1ULL << ((seen->highest - counter) & 63);
	if (seen->window & bit)
		return 0;
	seen->window |= bit;
	return 1;
}

/* Replaces the client that has been silent longest: counters follow the time, so it has the
 * lowest. */
static __always_inline void replace_oldest(struct seen_clients *bucket, const struct seen *newcomer)
{
	struct seen *oldest = &bucket->way[0];

#pragma clang loop unroll(full)
	for (int i = 1; i < WAYS; i++)
		if (bucket->way[i].highest < oldest->highest)
			oldest = &bucket->way[i];
	if (oldest->highest > bucket->forgotten)
		bucket->forgotten = oldest->highest;
	*oldest = *newcomer;
}

static __always_inline int bucket_admits(struct seen_clients *bucket, __u64 client, __u64 counter)
{
	struct seen *seen = place_of(bucket, client);
	struct seen newcomer = {
		.client = client,
		.highest = bucket->forgotten,
		.window = ~0ULL,
	};

	if (seen)
		return admits(seen, counter);
	if (!admits(&newcomer, counter))
		return 0;
	replace_oldest(bucket, &newcomer);
	return 1;
}

/* Returns the counter in the message's tag, which was checked before. */
static __always_inline __u64 counter_of(struct xdp_md *ctx, const struct message *m)
{
	struct wire_header *h = (void *)(long)ctx->data + known_place(m->header_at);
	struct tag *tag = (void *)(h + 1);

	if ((void *)(tag + 1) > (void *)(long)ctx->data_end)
		return 0;
	return get64((void *)tag) & COUNTER_MASK;
}

/* Takes the counter of a request. Returns 0, or the reason to refuse the request. [M-REPLAYED] */
SUBPROGRAM int admit_counter(__u32 holder, __u64 client, __u64 counter)
{
	struct seen_clients *bucket = bucket_of(holder, client);
	int admitted;

	if (!bucket || !lock_soon(&bucket->lock))
		return REASON_BUSY;
	admitted = bucket_admits(bucket, client, counter);
	unlock(&bucket->lock);
	return admitted ? 0 : REASON_REPLAYED;
}

static __always_inline int admit(struct xdp_md *ctx, const struct device *device,
				 const struct message *m)
{
	if (!(device->flags & DEVICE_SIGNED) || m->msgtype != REQUEST)
		return 0;
	return admit_counter(m->signer, m->client, counter_of(ctx, m));
}

/* Forgets a counter, since the node's process will run the program once more on the same
 * request. */
SUBPROGRAM void expect_again(__u32 holder, __u64 client, __u64 counter)
{
	struct seen_clients *bucket = bucket_of(holder, client);
	struct seen *seen;

	if (!bucket || !lock_soon(&bucket->lock))
		return;
	seen = place_of(bucket, client);
	if (seen && counter <= seen->highest && seen->highest - counter < 64)
		seen->window &= ~(1ULL << ((seen->highest - counter) & 63));
	unlock(&bucket->lock);
}

#endif
