// SPDX-License-Identifier: Apache-2.0
/*
 * What it costs a RocksDB that a bulk load in key order reaches it in another order.
 *
 *   load DIRECTORY MILLIONS --json
 *
 * writes so many millions of pairs (keys of 16 bytes, values of 64 random ones, 13 pairs a write, its log on) to a new store in
 * DIRECTORY, waits until nothing is left to compact, and removes the store: once with keys in their order, once with six
 * bytes of a hash before each, as WirePaxos's stores have them. It prints one JSON object a line: the order, seconds until all is
 * written and until all is compacted, seconds of CPU, and bytes that were written to disk.
 */
#include <rocksdb/c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* As in crates/apps/src/rocksdb.rs. */
#define WRITE_BUFFER_BYTES (64u << 20)
#define BLOOM_BITS_PER_KEY 10
/* As many as a commit has under load. */
#define PAIRS_OF_A_WRITE 13
#define HASH_LEN 6
#define KEY_LEN 16
#define VALUE_LEN 64

static void check(char *error)
{
	if (error) {
		fprintf(stderr, "load: %s\n", error);
		exit(1);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* What this process has had written to disks so far. */
static unsigned long long bytes_written(void)
{
	unsigned long long bytes = 0;
	char line[128];
	FILE *io = fopen("/proc/self/io", "r");

	while (io && fgets(line, sizeof(line), io))
		sscanf(line, "write_bytes: %llu", &bytes);
	if (io)
		fclose(io);
	return bytes;
}

/* Spreads numbers evenly (splitmix64): which hash it is doesn't matter here. */
static uint64_t mix(uint64_t n)
{
	n += 0x9e3779b97f4a7c15;
	n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9;
	n = (n ^ (n >> 27)) * 0x94d049bb133111eb;
	return n ^ (n >> 31);
}

static size_t make_key(char *key, uint64_t n, int hashed)
{
	uint64_t hash = mix(n);
	char number[KEY_LEN + 1];
	size_t len = 0;

	for (; hashed && len < HASH_LEN; len++)
		key[len] = (char)(hash >> (56 - 8 * len));
	snprintf(number, sizeof(number), "%016llx", (unsigned long long)n);
	memcpy(key + len, number, KEY_LEN);
	return len + KEY_LEN;
}

static void write_all(rocksdb_t *db, uint64_t pairs, int hashed)
{
	rocksdb_writeoptions_t *options = rocksdb_writeoptions_create();
	rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
	char key[HASH_LEN + KEY_LEN], *error = NULL;
	uint64_t value[VALUE_LEN / 8];

	for (uint64_t n = 0; n < pairs; n++) {
		for (size_t i = 0; i < VALUE_LEN / 8; i++)
			value[i] = mix(~(n * 8 + i));
		rocksdb_writebatch_put(batch, key, make_key(key, n, hashed), (char *)value, VALUE_LEN);
		if ((n + 1) % PAIRS_OF_A_WRITE && n + 1 < pairs)
			continue;
		rocksdb_write(db, options, batch, &error);
		check(error);
		rocksdb_writebatch_clear(batch);
	}
	rocksdb_writebatch_destroy(batch);
	rocksdb_writeoptions_destroy(options);
}

static int is_busy(rocksdb_t *db)
{
	static const char *const asked[] = {"rocksdb.num-running-flushes", "rocksdb.num-running-compactions",
					    "rocksdb.compaction-pending", "rocksdb.mem-table-flush-pending"};
	uint64_t busy = 0, one;

	for (size_t i = 0; i < sizeof(asked) / sizeof(*asked); i++)
		busy |= rocksdb_property_int(db, asked[i], &one) == 0 ? one : 0;
	return busy != 0;
}

static void measure(const char *path, uint64_t pairs, int hashed)
{
	rocksdb_options_t *options = rocksdb_options_create();
	rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
	char *error = NULL;

	rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS_PER_KEY));
	rocksdb_options_set_block_based_table_factory(options, table);
	rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES);
	rocksdb_options_set_create_if_missing(options, 1);
	rocksdb_options_set_error_if_exists(options, 1);
	rocksdb_t *db = rocksdb_open(options, path, &error);
	check(error);

	double start = seconds(), cpu = cpu_seconds();
	unsigned long long bytes = bytes_written();
	write_all(db, pairs, hashed);
	double written = seconds() - start;
	/* Between a flush and the compaction that it calls for there is a moment. */
	for (int idle = 0; idle < 5; idle = is_busy(db) ? 0 : idle + 1)
		usleep(20000);
	printf("{\"order\": \"%s\", \"pairs\": %llu, \"written_s\": %.2f, \"compacted_s\": %.2f, \"cpu_s\": %.2f, "
	       "\"mib_written\": %llu}\n",
	       hashed ? "hash" : "key", (unsigned long long)pairs, written, seconds() - start, cpu_seconds() - cpu,
	       (bytes_written() - bytes) >> 20);
	fflush(stdout);

	rocksdb_close(db);
	rocksdb_destroy_db(options, path, &error);
	check(error);
	rocksdb_options_destroy(options);
	rocksdb_block_based_options_destroy(table);
}

int main(int argc, char **argv)
{
	char path[4096];
	long long millions = argc > 2 ? atoll(argv[2]) : 0;

	if (argc != 4 || millions <= 0 || strcmp(argv[3], "--json") != 0) {
		fprintf(stderr, "load DIRECTORY MILLIONS --json\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/load.tmp", argv[1]);
	for (int hashed = 0; hashed < 2; hashed++)
		measure(path, (uint64_t)millions * 1000000, hashed);
	return 0;
}
