// SPDX-License-Identifier: Apache-2.0
/*
 * A bank whose accounts are spread over four partitions, each of which is replicated by WirePaxos. A
 * transfer between two of them takes effect in both, or in neither.
 *
 *   replicated_bank CLUSTER.toml REPLICA DIRECTORY run TRANSFERS
 *   replicated_bank CLUSTER.toml REPLICA DIRECTORY watch SECONDS
 *
 * The process is the replica REPLICA of the cluster file, which says `partitions = 4`. `run` opens accounts,
 * moves money at random, and closes the bank; `watch` waits until somebody has done so. Both end with what
 * is in each account, which is the same on every replica.
 *
 * Values are text: `open NAME AMOUNT`, in the partition that NAME belongs to; `transfer FROM TO AMOUNT`, over
 * the partitions of both; `close`, over all.
 *
 * What changes is written to a file of its partition in DIRECTORY, a line for each instance, before anything
 * else happens there. So a kill at any moment neither repeats nor loses a transfer: what comes again from before the
 * end of the file is passed over. Only `prepare` must answer then, and as it did the first time, since
 * another partition of this replica may still need it. So these answers are lines, too. To keep this short, the
 * files are never shortened.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wirepaxos.h"

#define PARTITIONS 4
#define OPENING 100
#define MAX_TEXT 64

static const char *const names[] = {"ann", "bob", "cleo", "dora", "eve", "fred"};
#define ACCOUNTS ((int)(sizeof names / sizeof names[0]))

/* What `prepare` has answered at an instance. */
struct answer {
    uint64_t instance;
    char text[MAX_TEXT];
};

/* What this replica has stored of a partition. */
struct book {
    FILE *file;
    uint64_t next; /* what lies before it has changed all that it ever will */
    struct answer *answers; /* ascending */
    size_t count;
    int closed;
};

/* Callbacks come one at a time, but not in the thread of main. */
struct bank {
    pthread_mutex_t lock;
    int home[ACCOUNTS]; /* the partition of each account that is open, else -1 */
    long balance[ACCOUNTS];
    struct book books[PARTITIONS];
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

/* ---- What is stored */

static void stop(const char *what)
{
    perror(what);
    exit(1);
}

/* Appends a line in one piece. */
static void store(struct book *book, const char *line)
{
    if (fputs(line, book->file) == EOF || fflush(book->file) == EOF)
        stop("replicated_bank: a partition's file");
}

static void note_answer(struct book *book, uint64_t instance, const char *text)
{
    struct answer *answers = realloc(book->answers, (book->count + 1) * sizeof *answers);
    if (answers == NULL)
        stop("replicated_bank");
    book->answers = answers;
    answers[book->count].instance = instance;
    snprintf(answers[book->count].text, MAX_TEXT, "%s", text);
    book->count++;
}

static int by_instance(const void *left, const void *right)
{
    uint64_t a = ((const struct answer *)left)->instance, b = ((const struct answer *)right)->instance;
    return (a > b) - (a < b);
}

static const struct answer *answer_at(const struct book *book, uint64_t instance)
{
    struct answer sought = {.instance = instance};
    if (book->count == 0)
        return NULL;
    return bsearch(&sought, book->answers, book->count, sizeof sought, by_instance);
}

static void change(struct bank *bank, const char *name, long by)
{
    int n = account(name);
    if (n >= 0)
        bank->balance[n] += by;
}

/* A line is: its instance, a word, and what belongs to that. */
static void take_line(struct bank *bank, int pid, const char *line)
{
    struct book *book = &bank->books[pid];
    uint64_t instance;
    int at = 0;
    char word[MAX_TEXT], first[MAX_TEXT] = "", second[MAX_TEXT] = "";
    long amount = 0, more = 0;
    if (sscanf(line, "%" SCNu64 " %63s %n", &instance, word, &at) < 2)
        return;
    if (strcmp(word, "answered") == 0) {
        sscanf(line + at, "%63s", first);
        note_answer(book, instance, first);
        return;
    }
    sscanf(line + at, "%63s %ld %63s %ld", first, &amount, second, &more);
    if (strcmp(word, "opened") == 0 && account(first) >= 0)
        bank->home[account(first)] = pid;
    if (strcmp(word, "closed") == 0)
        book->closed = 1;
    change(bank, first, amount);
    change(bank, second, more);
    book->next = instance + 1;
}

/* Reads what is there, and goes on behind the last whole line: a kill may have cut one. */
static void open_book(struct bank *bank, int pid, const char *directory)
{
    char path[4096], line[4 * MAX_TEXT];
    long whole = 0;
    snprintf(path, sizeof path, "%s/partition-%d", directory, pid);
    FILE *file = fopen(path, "a+");
    if (file == NULL)
        stop(path);
    rewind(file);
    while (fgets(line, sizeof line, file) != NULL && strchr(line, '\n') != NULL) {
        take_line(bank, pid, line);
        whole = ftell(file);
    }
    if (ftruncate(fileno(file), whole) != 0)
        stop(path);
    bank->books[pid].file = file;
}

static void open_books(struct bank *bank, const char *directory)
{
    mkdir(directory, 0700);
    for (int pid = 0; pid < PARTITIONS; pid++)
        open_book(bank, pid, directory);
    /* Their names, too, survive a power failure. */
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd) != 0)
        stop(directory);
    close(fd);
}

static void close_books(struct bank *bank)
{
    for (int pid = 0; pid < PARTITIONS; pid++) {
        fclose(bank->books[pid].file);
        free(bank->books[pid].answers);
    }
}

/* Everything of this partition is on disk when this returns. */
static int checkpoint(struct paxos_ctx *ctx, uint16_t pid)
{
    struct bank *bank = ctx->arg;
    return fdatasync(fileno(bank->books[pid].file));
}

/* ---- What replicas execute */

/* Stores a line and does what it says, unless it comes again. */
static void take(struct bank *bank, uint16_t pid, uint64_t instance, const char *rest)
{
    char line[4 * MAX_TEXT];
    if (instance < bank->books[pid].next)
        return;
    snprintf(line, sizeof line, "%" PRIu64 " %s\n", instance, rest);
    store(&bank->books[pid], line);
    take_line(bank, pid, line);
}

/* A value in one partition: an account opens there, or money stays within it. */
static void deliver_in(struct paxos_ctx *ctx, uint16_t pid, uint64_t instance, const char *value,
                       int size)
{
    struct bank *bank = ctx->arg;
    struct command command = parse(value, size);
    int from = account(command.first), to = account(command.second);
    char line[3 * MAX_TEXT];
    pthread_mutex_lock(&bank->lock);
    if (strcmp(command.word, "open") == 0 && from >= 0 && bank->home[from] < 0) {
        snprintf(line, sizeof line, "opened %s %ld", command.first, command.amount);
        take(bank, pid, instance, line);
    } else if (strcmp(command.word, "transfer") == 0 && from >= 0 && to >= 0 &&
               bank->balance[from] >= command.amount) {
        snprintf(line, sizeof line, "moved %s %ld %s %ld", command.first, -command.amount,
                 command.second, command.amount);
        take(bank, pid, instance, line);
    }
    pthread_mutex_unlock(&bank->lock);
}

/* First step, in each partition of the value: the one that has the account says its balance, and again the same
 * when it is asked again. */
static void prepare(struct paxos_ctx *ctx, uint16_t pid, uint64_t instance, const char *value,
                    int size, struct paxos_bytes *prepared)
{
    struct bank *bank = ctx->arg;
    struct book *book = &bank->books[pid];
    struct command command = parse(value, size);
    int from = account(command.first);
    char text[MAX_TEXT] = "", line[2 * MAX_TEXT];
    pthread_mutex_lock(&bank->lock);
    const struct answer *answer = answer_at(book, instance);
    if (answer != NULL) {
        snprintf(text, sizeof text, "%s", answer->text);
    } else {
        if (strcmp(command.word, "transfer") == 0 && from >= 0 && bank->home[from] == pid)
            snprintf(text, sizeof text, "%ld", bank->balance[from]);
        snprintf(line, sizeof line, "%" PRIu64 " answered %s\n", instance, text);
        store(book, line);
        note_answer(book, instance, text);
    }
    paxos_append(prepared, text, (int)strlen(text));
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

/* Second step, once: decides. An effect is whatever `apply` understands, here the rest of a line. */
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
            snprintf(text, sizeof text, "closed");
        else if (parts[n].prepared_size > 0)
            snprintf(text, sizeof text, "moved %s %ld", command.first, -command.amount);
        else
            snprintf(text, sizeof text, "moved %s %ld", command.second, command.amount);
        paxos_append(parts[n].effect, text, (int)strlen(text));
    }
}

/* Third step, in each partition that has an effect: changes. */
static void apply(struct paxos_ctx *ctx, uint16_t pid, uint64_t instance, const char *effect,
                  int size)
{
    struct bank *bank = ctx->arg;
    char rest[2 * MAX_TEXT + 32] = "";
    if (size < (int)sizeof rest)
        memcpy(rest, effect, (size_t)size);
    pthread_mutex_lock(&bank->lock);
    take(bank, pid, instance, rest);
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
        closed = closed && bank->books[pid].closed;
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
    if (argc != 6 || (strcmp(argv[4], "run") != 0 && strcmp(argv[4], "watch") != 0)) {
        fprintf(stderr, "usage: %s CLUSTER.toml REPLICA DIRECTORY run TRANSFERS | watch SECONDS\n",
                argv[0]);
        return 2;
    }
    for (int n = 0; n < ACCOUNTS; n++)
        bank.home[n] = -1;
    open_books(&bank, argv[3]);
    struct paxos_ctx *ctx = paxos_ctx_new(argv[1], argv[2]);
    if (ctx == NULL)
        return 1;
    ctx->deliver_in = deliver_in;
    ctx->prepare = prepare;
    ctx->combine = combine;
    ctx->apply = apply;
    ctx->checkpoint = checkpoint;
    ctx->arg = &bank;
    if (paxos_ctx_start(ctx) != 0)
        fail(ctx);
    if (strcmp(argv[4], "run") == 0)
        run(ctx, &bank, atol(argv[5]));
    else
        await(&bank, all_closed, atol(argv[5]));
    int result = paxos_ctx_free(ctx);
    close_books(&bank);
    return print(&bank) && result == 0 ? 0 : 1;
}
