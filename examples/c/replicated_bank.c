// SPDX-License-Identifier: Apache-2.0
/*
 * A bank whose accounts are spread over four partitions, each of which is replicated by WirePaxos. A
 * transfer between two of them takes effect in both, or in neither.
 *
 *   replicated_bank CLUSTER.toml REPLICA run TRANSFERS
 *   replicated_bank CLUSTER.toml REPLICA watch SECONDS
 *
 * The process is the replica REPLICA of the cluster file, which says `partitions = 4`. `run` opens accounts,
 * moves money at random, and closes the bank; `watch` waits until somebody has done so. Both end with what
 * is in each account, which is the same on every replica.
 *
 * Values are text: `open NAME AMOUNT`, in the partition that NAME belongs to; `transfer FROM TO AMOUNT`, over
 * the partitions of both; `close`, over all. The accounts are in memory only, to keep this short: a replica
 * begins with an empty directory.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wirepaxos.h"

#define PARTITIONS 4
#define OPENING 100
#define MAX_TEXT 64

static const char *const names[] = {"ann", "bob", "cleo", "dora", "eve", "fred"};
#define ACCOUNTS ((int)(sizeof names / sizeof names[0]))

/* Callbacks come one at a time, but not in the thread of main. */
struct bank {
    pthread_mutex_t lock;
    int home[ACCOUNTS]; /* the partition of each account that is open, else -1 */
    long balance[ACCOUNTS];
    int closed[PARTITIONS];
};

/* A command of one word and up to three arguments. */
struct command {
    char word[MAX_TEXT], first[MAX_TEXT], second[MAX_TEXT];
    long amount;
};

static int account(const char *name)
{
    for (int n = 0; n < ACCOUNTS; n++)
        if (strcmp(names[n], name) == 0)
            return n;
    return -1;
}

static struct command parse(const char *value, int size)
{
    struct command command;
    char text[MAX_TEXT] = "";
    memset(&command, 0, sizeof command);
    if (size < MAX_TEXT)
        memcpy(text, value, (size_t)size);
    if (strncmp(text, "transfer", 8) == 0)
        sscanf(text, "%63s %63s %63s %ld", command.word, command.first, command.second,
               &command.amount);
    else
        sscanf(text, "%63s %63s %ld", command.word, command.first, &command.amount);
    return command;
}

/* ---- What replicas execute */

static void change(struct bank *bank, const char *name, long by)
{
    int n = account(name);
    if (n >= 0)
        bank->balance[n] += by;
}

/* A value in one partition: an account opens there, or money stays within it. */
static void deliver_in(struct paxos_ctx *ctx, uint16_t pid, uint64_t instance, const char *value,
                       int size)
{
    struct bank *bank = ctx->arg;
    struct command command = parse(value, size);
    int from = account(command.first), to = account(command.second);
    (void)instance;
    pthread_mutex_lock(&bank->lock);
    if (strcmp(command.word, "open") == 0 && from >= 0) {
        bank->home[from] = pid;
        bank->balance[from] = command.amount;
    } else if (strcmp(command.word, "transfer") == 0 && from >= 0 && to >= 0) {
        if (bank->balance[from] >= command.amount) {
            change(bank, command.first, -command.amount);
            change(bank, command.second, command.amount);
        }
    }
    pthread_mutex_unlock(&bank->lock);
}

/* First step, in each partition of the value: the one that has the account says its balance. */
static void prepare(struct paxos_ctx *ctx, uint16_t pid, const char *value, int size,
                    struct paxos_bytes *prepared)
{
    struct bank *bank = ctx->arg;
    struct command command = parse(value, size);
    int from = account(command.first);
    char text[MAX_TEXT];
    pthread_mutex_lock(&bank->lock);
    if (strcmp(command.word, "transfer") == 0 && from >= 0 && bank->home[from] == pid) {
        snprintf(text, sizeof text, "%ld", bank->balance[from]);
        paxos_append(prepared, text, (int)strlen(text));
    }
    pthread_mutex_unlock(&bank->lock);
}

static int is_covered(const struct paxos_part *parts, int count, long amount)
{
    for (int n = 0; n < count; n++) {
        char text[MAX_TEXT] = "";
        if (parts[n].prepared_size > 0 && parts[n].prepared_size < MAX_TEXT) {
            memcpy(text, parts[n].prepared, (size_t)parts[n].prepared_size);
            return atol(text) >= amount;
        }
    }
    return 0;
}

/* Second step, once: decides. An effect is whatever `apply` understands. */
static void combine(struct paxos_ctx *ctx, const char *value, int size, struct paxos_part *parts,
                    int count)
{
    struct command command = parse(value, size);
    int is_close = strcmp(command.word, "close") == 0;
    (void)ctx;
    if (!is_close && !is_covered(parts, count, command.amount))
        return; /* nothing changes anywhere */
    for (int n = 0; n < count; n++) {
        char text[2 * MAX_TEXT + 32];
        if (is_close)
            snprintf(text, sizeof text, "close");
        else if (parts[n].prepared_size > 0)
            snprintf(text, sizeof text, "%s %ld", command.first, -command.amount);
        else
            snprintf(text, sizeof text, "%s %ld", command.second, command.amount);
        paxos_append(parts[n].effect, text, (int)strlen(text));
    }
}

/* Third step, in each partition that has an effect: changes. */
static void apply(struct paxos_ctx *ctx, uint16_t pid, uint64_t instance, const char *effect,
                  int size)
{
    struct bank *bank = ctx->arg;
    struct command changed = parse(effect, size);
    (void)instance;
    pthread_mutex_lock(&bank->lock);
    if (strcmp(changed.word, "close") == 0 && pid < PARTITIONS)
        bank->closed[pid] = 1;
    else
        change(bank, changed.word, atol(changed.first));
    pthread_mutex_unlock(&bank->lock);
}

/* ---- What the program does */

static void fail(struct paxos_ctx *ctx)
{
    fprintf(stderr, "replicated_bank: %s\n", paxos_ctx_error(ctx));
    if (paxos_ctx_outcome(ctx) == PAXOS_UNKNOWN)
        fprintf(stderr, "replicated_bank: some of it may have taken effect, and some not\n");
    exit(1);
}

static int all_open(struct bank *bank)
{
    int open = 1;
    pthread_mutex_lock(&bank->lock);
    for (int n = 0; n < ACCOUNTS; n++)
        open = open && bank->home[n] >= 0;
    pthread_mutex_unlock(&bank->lock);
    return open;
}

static int all_closed(struct bank *bank)
{
    int closed = 1;
    pthread_mutex_lock(&bank->lock);
    for (int pid = 0; pid < PARTITIONS; pid++)
        closed = closed && bank->closed[pid];
    pthread_mutex_unlock(&bank->lock);
    return closed;
}

/* Until it is so on this replica. */
static void await(struct bank *bank, int (*is_so)(struct bank *), long seconds)
{
    for (long n = 0; n < seconds * 100; n++) {
        if (is_so(bank))
            return;
        usleep(10000);
    }
    fprintf(stderr, "replicated_bank: not in %ld s\n", seconds);
    exit(1);
}

static void flush(struct paxos_ctx *ctx)
{
    if (paxos_ctx_flush(ctx, 60000) != 0)
        fail(ctx);
}

static void transfer(struct paxos_ctx *ctx, struct bank *bank, int from, int to, long amount)
{
    char text[MAX_TEXT];
    /* One partition, if both accounts are in one. */
    uint16_t first = (uint16_t)bank->home[from], second = (uint16_t)bank->home[to];
    uint16_t pids[2] = {first, second};
    snprintf(text, sizeof text, "transfer %s %s %ld", names[from], names[to], amount);
    if (submit_to(ctx, pids, first == second ? 1 : 2, text, (int)strlen(text)) != 0)
        fail(ctx);
}

static void run(struct paxos_ctx *ctx, struct bank *bank, long transfers)
{
    static const uint16_t all[PARTITIONS] = {0, 1, 2, 3};
    char text[MAX_TEXT];
    for (int n = 0; n < ACCOUNTS; n++) {
        snprintf(text, sizeof text, "open %s %d", names[n], OPENING);
        if (submit_by_key(ctx, names[n], (int)strlen(names[n]), text, (int)strlen(text)) != 0)
            fail(ctx);
    }
    flush(ctx);
    await(bank, all_open, 30);
    for (long n = 0; n < transfers; n++) {
        int from = rand() % ACCOUNTS, to = rand() % ACCOUNTS;
        if (from != to)
            transfer(ctx, bank, from, to, rand() % 80);
    }
    flush(ctx);
    if (submit_to(ctx, all, PARTITIONS, "close", 5) != 0)
        fail(ctx);
    flush(ctx);
    await(bank, all_closed, 30);
}

static int print(struct bank *bank)
{
    long sum = 0;
    for (int n = 0; n < ACCOUNTS; n++) {
        printf("%s (partition %d): %ld\n", names[n], bank->home[n], bank->balance[n]);
        sum += bank->balance[n];
    }
    printf("%ld in all\n", sum);
    return sum == (long)ACCOUNTS * OPENING;
}

int main(int argc, char **argv)
{
    static struct bank bank = {.lock = PTHREAD_MUTEX_INITIALIZER};
    if (argc != 5 || (strcmp(argv[3], "run") != 0 && strcmp(argv[3], "watch") != 0)) {
        fprintf(stderr, "usage: %s CLUSTER.toml REPLICA run TRANSFERS | watch SECONDS\n", argv[0]);
        return 2;
    }
    for (int n = 0; n < ACCOUNTS; n++)
        bank.home[n] = -1;
    struct paxos_ctx *ctx = paxos_ctx_new(argv[1], argv[2]);
    if (ctx == NULL)
        return 1;
    ctx->deliver_in = deliver_in;
    ctx->prepare = prepare;
    ctx->combine = combine;
    ctx->apply = apply;
    ctx->arg = &bank;
    if (paxos_ctx_start(ctx) != 0)
        fail(ctx);
    if (strcmp(argv[3], "run") == 0)
        run(ctx, &bank, atol(argv[4]));
    else
        await(&bank, all_closed, atol(argv[4]));
    int result = paxos_ctx_free(ctx);
    return print(&bank) && result == 0 ? 0 : 1;
}
