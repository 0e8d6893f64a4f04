/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Requests that somebody sends again who has seen them on their way: as crates/paxos/src/auth/replays.rs.
 *
 * A lock for each bucket, as requests of a client may come to several CPUs. */
#ifndef WIREPAXOS_REPLAYS_H
#define WIREPAXOS_REPLAYS_H

#include "siphash.h"

#define REMEMBERED_CLIENTS 65536
#define WAYS 4
#define BUCKETS (REMEMBERED_CLIENTS / WAYS)

/* Which counters there were of a client. */
struct seen {
	/* 0: the place is free. */
	__u64 client;
	__u64 highest;
	/* Bit n: `highest` - n was there. */
	__u64 window;
};

/* Those that came last stand in front. */
struct seen_clients {
	struct seen way[WAYS];
	__u32 lock;
	__u32 unused[7];
};
_Static_assert(sizeof(struct seen_clients) == 128, "a bucket is two cache lines");

struct {
	KEPT_MAP(BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, __u32);
	__type(value, struct seen_clients);
} replays SEC(".maps");

static __always_inline struct seen_clients *bucket_of(__u64 client)
{
	__u32 at = ((client * 0x9e3779b97f4a7c15) >> 32) % BUCKETS;

	return bpf_map_lookup_elem(&replays, &at);
}

/* The client's place; the one that was there longest gives way to a new client. The bucket is locked. */
static __always_inline struct seen *place_of(struct seen_clients *bucket, __u64 client)
{
#pragma clang loop unroll(full)
	for (int i = 0; i < WAYS; i++)
		if (bucket->way[i].client == client)
			return &bucket->way[i];
#pragma clang loop unroll(full)
	for (int i = WAYS - 1; i > 0; i--)
		bucket->way[i] = bucket->way[i - 1];
	bucket->way[0].client = client;
	bucket->way[0].highest = 0;
	bucket->way[0].window = 0;
	return &bucket->way[0];
}

/* Counters may overtake one another on their way, but not by far. */
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

/* Of the message's tag, which was found right. */
static __always_inline __u64 counter_of(struct xdp_md *ctx, const struct message *m)
{
	__be64 first = 0;

	bpf_xdp_load_bytes(ctx, m->header_at + HEADER_LEN, &first, sizeof(first));
	return bpf_be64_to_cpu(first) & 0xffffffffffff;
}

/* 0, or why a request isn't taken. [M-REPLAYED] */
SUBPROGRAM int admit_counter(__u64 client, __u64 counter)
{
	struct seen_clients *bucket = bucket_of(client);
	int admitted;

	if (!bucket || !lock_soon(&bucket->lock))
		return REASON_BUSY;
	admitted = admits(place_of(bucket, client), counter);
	unlock(&bucket->lock);
	return admitted ? 0 : REASON_REPLAYED;
}

static __always_inline int admit(struct xdp_md *ctx, const struct device *device,
				 const struct message *m)
{
	if (!(device->flags & DEVICE_SIGNED) || m->msgtype != REQUEST)
		return 0;
	return admit_counter(m->client, counter_of(ctx, m));
}

/* The node's process will run the program once more on the same request. */
SUBPROGRAM void expect_again(__u64 client, __u64 counter)
{
	struct seen_clients *bucket = bucket_of(client);
	struct seen *seen;

	if (!bucket || !lock_soon(&bucket->lock))
		return;
	seen = place_of(bucket, client);
	if (counter <= seen->highest && seen->highest - counter < 64)
		seen->window &= ~(1ULL << ((seen->highest - counter) & 63));
	unlock(&bucket->lock);
}

#endif
