/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of scripts, in a place of its own. Lua asks for all of its blocks by realloc, the first time with nothing to begin with,
 * which Redis itself never does. So these blocks are known, and so is how much they come to: that depends on what Lua asks for, and on
 * nothing else. Where they lie depends on it, too: two servers that have asked for the same since they were started find the same
 * addresses.
 *
 *   the place: slabs of 64 KiB. Blocks of a size share slabs; one of more than 16 KiB has slabs of its own.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA ((uintptr_t)1 << 44)
#define ARENA_BYTES ((size_t)1 << 35)
#define SLAB ((size_t)1 << 16)
#define SLABS (ARENA_BYTES / SLAB)
/* So many become usable at a time. */
#define SLABS_AT_ONCE 1024
/* Larger blocks have slabs of their own. */
#define LARGEST_SHARED ((size_t)16 << 10)
/* Sizes of blocks: four for each doubling. */
#define UNIT ((size_t)16)
#define SIZES 36
#define NONE UINT32_MAX

struct slab {
	/* 0: it is free. Of a block of its own: how many slabs that has, at the first of them. */
	uint32_t slabs;
	/* Of shared slabs: which size, how many blocks are in use, how many were ever, and the first one that is free again. */
	uint8_t size;
	uint32_t used, touched, free;
	/* Others of this size with room. */
	uint32_t next, previous;
};

static struct slab slabs[SLABS];
static uint32_t with_room[SIZES];
/* No slab below it is free. */
static size_t first_free;
static size_t usable;
/* Bytes of all blocks that are in use, as they are rounded. */
static uint64_t arena_used;

static int in_arena(const void *block)
{
	return (uintptr_t)block - ARENA < ARENA_BYTES;
}

/* ---- Sizes */

static unsigned size_of(size_t len)
{
	size_t units = (len + UNIT - 1) / UNIT;
	unsigned shift = 0;

	if (units <= 8)
		return units ? (unsigned)units - 1 : 0;
	while ((units + ((size_t)1 << shift) - 1) >> shift > 8)
		shift++;
	return (unsigned)((units + ((size_t)1 << shift) - 1) >> shift) - 1 + 4 * shift;
}

static size_t len_of(unsigned size)
{
	unsigned shift = size < 8 ? 0 : (size - 4) / 4;

	return (((size_t)size - 4 * shift + 1) << shift) * UNIT;
}

static size_t slabs_for(size_t len)
{
	return (len + SLAB - 1) / SLAB;
}

/* What a block of this length counts. */
static size_t rounded(size_t len)
{
	return len <= LARGEST_SHARED ? len_of(size_of(len)) : slabs_for(len) * SLAB;
}

/* ---- Slabs */

static char *slab_at(size_t at)
{
	return (char *)ARENA + at * SLAB;
}

static int arena_begin(void)
{
	void *place = mmap((void *)ARENA, ARENA_BYTES, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
			   0);

	for (unsigned size = 0; size < SIZES; size++)
		with_room[size] = NONE;
	return place == (void *)ARENA;
}

static int make_usable(size_t end)
{
	while (usable < end) {
		if (mprotect(slab_at(usable), SLABS_AT_ONCE * SLAB, PROT_READ | PROT_WRITE) != 0)
			return 0;
		usable += SLABS_AT_ONCE;
	}
	return 1;
}

/* The first so many that are free, one behind the other. */
static size_t find_slabs(size_t count)
{
	size_t at = first_free, found = 0;

	while (found < count && at < SLABS) {
		if (slabs[at].slabs == 0) {
			found++;
			at++;
		} else {
			at += slabs[at].slabs;
			found = 0;
		}
	}
	return found == count ? at - count : SLABS;
}

static size_t take_slabs(size_t count)
{
	size_t at = find_slabs(count);

	if (at == SLABS || !make_usable(at + count))
		return SLABS;
	slabs[at].slabs = (uint32_t)count;
	if (at == first_free)
		first_free = at + count;
	return at;
}

/* What they held is given back to the system. */
static void give_slabs(size_t at, size_t count)
{
	madvise(slab_at(at), count * SLAB, MADV_DONTNEED);
	for (size_t i = at; i < at + count; i++)
		slabs[i].slabs = 0;
	if (at < first_free)
		first_free = at;
}

/* ---- Shared slabs */

static void link_slab(uint32_t at)
{
	unsigned size = slabs[at].size;

	slabs[at].previous = NONE;
	slabs[at].next = with_room[size];
	if (with_room[size] != NONE)
		slabs[with_room[size]].previous = at;
	with_room[size] = at;
}

static void unlink_slab(uint32_t at)
{
	struct slab *slab = &slabs[at];

	if (slab->previous != NONE)
		slabs[slab->previous].next = slab->next;
	else
		with_room[slab->size] = slab->next;
	if (slab->next != NONE)
		slabs[slab->next].previous = slab->previous;
}

static void *take_shared(unsigned size)
{
	size_t len = len_of(size);
	uint32_t at = with_room[size];
	struct slab *slab;
	char *block;

	if (at == NONE) {
		size_t taken = take_slabs(1);

		if (taken == SLABS)
			return NULL;
		at = (uint32_t)taken;
		slabs[at] = (struct slab){ .slabs = 1, .size = (uint8_t)size, .free = NONE };
		link_slab(at);
	}
	slab = &slabs[at];
	if (slab->free != NONE) {
		block = slab_at(at) + slab->free;
		memcpy(&slab->free, block, sizeof(slab->free));
	} else {
		block = slab_at(at) + slab->touched++ * len;
	}
	slab->used++;
	if (slab->free == NONE && (slab->touched + 1) * len > SLAB)
		unlink_slab(at);
	return block;
}

static void give_shared(char *block)
{
	uint32_t at = (uint32_t)(((uintptr_t)block - ARENA) / SLAB);
	struct slab *slab = &slabs[at];
	size_t len = len_of(slab->size);
	int was_full = slab->free == NONE && (slab->touched + 1) * len > SLAB;

	memcpy(block, &slab->free, sizeof(slab->free));
	slab->free = (uint32_t)(block - slab_at(at));
	slab->used--;
	if (was_full)
		link_slab(at);
	/* The last one with room stays. */
	if (slab->used == 0 && (slab->next != NONE || slab->previous != NONE)) {
		unlink_slab(at);
		give_slabs(at, 1);
	}
}

/* ---- Blocks */

static int is_shared(const struct slab *slab)
{
	return slab->touched > 0;
}

static struct slab *slab_of(const void *block)
{
	return &slabs[((uintptr_t)block - ARENA) / SLAB];
}

static size_t arena_len(const void *block)
{
	const struct slab *slab = slab_of(block);

	return is_shared(slab) ? len_of(slab->size) : slab->slabs * SLAB;
}

static void *arena_take(size_t len)
{
	void *block = NULL;

	if (len <= LARGEST_SHARED) {
		block = take_shared(size_of(len));
	} else {
		size_t at = take_slabs(slabs_for(len));

		if (at != SLABS) {
			slabs[at].touched = 0;
			block = slab_at(at);
		}
	}
	if (block)
		arena_used += rounded(len);
	return block;
}

static void arena_give(void *block)
{
	struct slab *slab = slab_of(block);

	arena_used -= arena_len(block);
	if (is_shared(slab))
		give_shared(block);
	else
		give_slabs((size_t)(slab - slabs), slab->slabs);
}

static void *arena_resize(void *old, size_t len)
{
	size_t before = arena_len(old);
	void *block;

	if (rounded(len) == before && (len <= LARGEST_SHARED) == is_shared(slab_of(old)))
		return old;
	block = arena_take(len);
	if (!block)
		return NULL;
	memcpy(block, old, before < len ? before : len);
	arena_give(old);
	return block;
}
