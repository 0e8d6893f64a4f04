// SPDX-License-Identifier: Apache-2.0
/*
 * A LevelDB that is replicated by WirePaxos: an unmodified library, the papers' submit, deliver and
 * recover (P4xos, Figures 3 and 4), and nothing else.
 *
 *   replicated_leveldb CLUSTER.toml REPLICA DIRECTORY put KEY VALUE [KEY VALUE ...]
 *   replicated_leveldb CLUSTER.toml REPLICA DIRECTORY fill COUNT
 *   replicated_leveldb CLUSTER.toml REPLICA DIRECTORY serve SECONDS
 *   replicated_leveldb CLUSTER.toml REPLICA DIRECTORY get KEY
 *
 * The process is the replica REPLICA of the cluster file. It submits what it was asked to, waits
 * until all of it is acknowledged, recovers instance 0 for show, and ends with a count and a sum of
 * its contents, which is the same on every replica. `serve` submits nothing and delivers what
 * others submit. `get` shows what everybody was told of a key before, without a place in the log.
 *
 * The instance number is written in the same batch as the data, so that a kill at any moment
 * neither repeats nor loses a put.
 */
#include <leveldb/c.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wirepaxos.h"

/* No put has an empty key, so it can't be anybody's. */
static const char position_key[] = "";

struct store {
    leveldb_t *db;
    leveldb_options_t *options;
    leveldb_readoptions_t *read;
    leveldb_writeoptions_t *write;
    leveldb_writeoptions_t *synced;
    uint64_t next; /* the first instance that is not in the store */
    atomic_int recovering;
};

static void check(char *error)
{
    if (error != NULL) {
        fprintf(stderr, "leveldb: %s\n", error);
        exit(1);
    }
}

/* A value is: one byte length of the key, the key, the data. */
static void deliver(struct paxos_ctx *ctx, uint64_t instance, char *value, int size)
{
    struct store *store = ctx->arg;
    char *error = NULL;
    if (instance < store->next) { /* recovered, or delivered again after a crash */
        if (store->recovering)
            printf("recovered instance %llu: %d bytes\n", (unsigned long long)instance, size);
        return;
    }
    int key_length = size > 0 ? (unsigned char)value[0] : 0;
    uint64_t next = instance + 1;
    leveldb_writebatch_t *batch = leveldb_writebatch_create();
    if (key_length > 0 && key_length < size)
        leveldb_writebatch_put(batch, value + 1, key_length, value + 1 + key_length,
                               size - 1 - key_length);
    leveldb_writebatch_put(batch, position_key, 0, (char *)&next, sizeof next);
    leveldb_write(store->db, store->write, batch, &error);
    leveldb_writebatch_destroy(batch);
    check(error);
    store->next = next;
}

/* The query is a key. What is asked for is shown, or nothing if there is no such key. */
static void answer(struct paxos_ctx *ctx, uint16_t pid, const char *key, int size,
                   struct paxos_bytes *answer)
{
    struct store *store = ctx->arg;
    char *error = NULL;
    size_t length;
    (void)pid; /* there is but one */
    char *data = leveldb_get(store->db, store->read, key, (size_t)size, &length, &error);
    check(error);
    if (data != NULL)
        paxos_append(answer, data, (int)length);
    leveldb_free(data);
}

/* Everything delivered so far is on disk when this returns. */
static int checkpoint(struct paxos_ctx *ctx, uint16_t pid)
{
    struct store *store = ctx->arg;
    char *error = NULL;
    (void)pid; /* there is but one */
    leveldb_put(store->db, store->synced, position_key, 0, (char *)&store->next,
                sizeof store->next, &error);
    if (error == NULL)
        return 0;
    fprintf(stderr, "leveldb: %s\n", error);
    leveldb_free(error);
    return -1;
}

static void store_open(struct store *store, const char *directory)
{
    char *error = NULL;
    size_t length;
    memset(store, 0, sizeof *store);
    store->options = leveldb_options_create();
    leveldb_options_set_create_if_missing(store->options, 1);
    store->read = leveldb_readoptions_create();
    store->write = leveldb_writeoptions_create();
    store->synced = leveldb_writeoptions_create();
    leveldb_writeoptions_set_sync(store->synced, 1);
    store->db = leveldb_open(store->options, directory, &error);
    check(error);
    char *position = leveldb_get(store->db, store->read, position_key, 0, &length, &error);
    check(error);
    if (position != NULL && length == sizeof store->next)
        memcpy(&store->next, position, length);
    leveldb_free(position);
}

static void store_close(struct store *store)
{
    leveldb_close(store->db);
    leveldb_writeoptions_destroy(store->synced);
    leveldb_writeoptions_destroy(store->write);
    leveldb_readoptions_destroy(store->read);
    leveldb_options_destroy(store->options);
}

static void store_print(struct store *store)
{
    unsigned long count = 0, sum = 0;
    leveldb_iterator_t *it = leveldb_create_iterator(store->db, store->read);
    for (leveldb_iter_seek_to_first(it); leveldb_iter_valid(it); leveldb_iter_next(it)) {
        size_t key_length, length, i;
        const char *key = leveldb_iter_key(it, &key_length);
        const char *data = leveldb_iter_value(it, &length);
        if (key_length == 0)
            continue; /* the position */
        count++;
        for (i = 0; i < key_length; i++)
            sum = sum * 31 + (unsigned char)key[i];
        for (i = 0; i < length; i++)
            sum = sum * 31 + (unsigned char)data[i];
    }
    leveldb_iter_destroy(it);
    printf("keys %lu sum %016lx\n", count, sum);
}

static void fail(struct paxos_ctx *ctx)
{
    fprintf(stderr, "replicated_leveldb: %s\n", paxos_ctx_error(ctx));
    if (paxos_ctx_outcome(ctx) == PAXOS_UNKNOWN)
        fprintf(stderr, "replicated_leveldb: some puts may be in the store, and some not\n");
    exit(1);
}

static void put(struct paxos_ctx *ctx, const char *key, const char *data)
{
    char value[1024];
    size_t key_length = strlen(key), length = strlen(data);
    if (key_length == 0 || key_length > 255 || 1 + key_length + length > sizeof value) {
        fprintf(stderr, "replicated_leveldb: %s: the key or the value is too long\n", key);
        exit(1);
    }
    value[0] = (char)key_length;
    memcpy(value + 1, key, key_length);
    memcpy(value + 1 + key_length, data, length);
    if (submit(ctx, value, (int)(1 + key_length + length)) != 0)
        fail(ctx);
}

static void fill(struct paxos_ctx *ctx, long count)
{
    char key[32], data[64];
    for (long n = 0; n < count; n++) {
        snprintf(key, sizeof key, "key-%06ld", n);
        snprintf(data, sizeof data, "value of key %ld", n);
        put(ctx, key, data);
    }
}

static void get(struct paxos_ctx *ctx, const char *key)
{
    const char *data;
    int length = paxos_read(ctx, 0, key, (int)strlen(key), PAXOS_LATEST, 30000, &data);
    if (length < 0)
        fail(ctx);
    printf("%s = %.*s\n", key, length, data);
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: %s CLUSTER.toml REPLICA DIRECTORY put KEY VALUE ... | fill COUNT | "
                        "serve SECONDS | get KEY\n", argv[0]);
        return 2;
    }
    struct store store;
    store_open(&store, argv[3]);
    struct paxos_ctx *ctx = paxos_ctx_new(argv[1], argv[2]);
    if (ctx == NULL)
        return 1;
    ctx->deliver = deliver;
    ctx->checkpoint = checkpoint;
    ctx->read = answer;
    ctx->arg = &store;
    if (paxos_ctx_start(ctx) != 0)
        fail(ctx);

    if (strcmp(argv[4], "serve") == 0) {
        sleep((unsigned)atoi(argv[5]));
    } else if (strcmp(argv[4], "get") == 0) {
        get(ctx, argv[5]);
    } else {
        if (strcmp(argv[4], "fill") == 0)
            fill(ctx, atol(argv[5]));
        else
            for (int i = 5; i + 1 < argc; i += 2)
                put(ctx, argv[i], argv[i + 1]);
        if (paxos_ctx_flush(ctx, 30000) != 0)
            fail(ctx);
        store.recovering = 1;
        if (recover(ctx, 0, "noop", 4) != 0)
            fail(ctx);
        store.recovering = 0;
    }
    int result = paxos_ctx_free(ctx);
    store_print(&store);
    store_close(&store);
    return result == 0 ? 0 : 1;
}
