// SPDX-License-Identifier: Apache-2.0
/*
 * How long it takes to get a frame onto the disk, by every way that a log could take.
 *
 *   syncs DIRECTORY --json
 *
 * prints one JSON object a line: the way, what the file holds before, bytes of a frame, and microseconds. It makes a file of
 * 32 MiB in the directory and removes it. `cpu_us` is this process's own, kernel threads' isn't in it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (32u << 20)
#define FRAMES 300

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double cpu_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}

/* ---- The ways */

struct frame {
	int fd;
	const char *bytes;
	size_t size;
	off_t offset;
};

static void plain(const struct frame *f)
{
	must(pwrite(f->fd, f->bytes, f->size, f->offset) == (ssize_t)f->size, "pwrite");
	must(fdatasync(f->fd) == 0, "fdatasync");
}

static void dsync(const struct frame *f)
{
	struct iovec iov = { (void *)f->bytes, f->size };

	must(pwritev2(f->fd, &iov, 1, f->offset, RWF_DSYNC) == (ssize_t)f->size, "pwritev2");
}

/* A thread of our own writes and syncs; we are woken by an eventfd. */
static struct {
	sem_t job;
	int done;
	const struct frame *frame;
} helper;

static void *help(void *unused)
{
	uint64_t one = 1;

	for (;;) {
		sem_wait(&helper.job);
		plain(helper.frame);
		must(write(helper.done, &one, 8) == 8, "write");
	}
	return unused;
}

static void by_thread(const struct frame *f)
{
	uint64_t count;
	pthread_t thread;

	if (!helper.done) {
		helper.done = eventfd(0, 0);
		sem_init(&helper.job, 0, 0);
		must(pthread_create(&thread, NULL, help, NULL) == 0, "pthread_create");
	}
	helper.frame = f;
	sem_post(&helper.job);
	must(read(helper.done, &count, 8) == 8, "read");
}

/* io_uring: a write and a linked fdatasync. */
static struct {
	int fd;
	unsigned *sq_tail, *sq_mask, *array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
} ring;

static void open_ring(void)
{
	struct io_uring_params p = { 0 };
	char *sq, *cq;
	int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;

	ring.fd = syscall(__NR_io_uring_setup, 8, &p);
	must(ring.fd >= 0, "io_uring_setup");
	sq = mmap(0, p.sq_off.array + p.sq_entries * 4, prot, flags, ring.fd, IORING_OFF_SQ_RING);
	cq = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(*ring.cqes), prot, flags, ring.fd, IORING_OFF_CQ_RING);
	ring.sqes = mmap(0, p.sq_entries * sizeof(*ring.sqes), prot, flags, ring.fd, IORING_OFF_SQES);
	must(sq != MAP_FAILED && cq != MAP_FAILED && (void *)ring.sqes != MAP_FAILED, "mmap");
	ring.sq_tail = (unsigned *)(sq + p.sq_off.tail);
	ring.sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	ring.array = (unsigned *)(sq + p.sq_off.array);
	ring.cq_head = (unsigned *)(cq + p.cq_off.head);
	ring.cq_tail = (unsigned *)(cq + p.cq_off.tail);
	ring.cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
	ring.cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

static struct io_uring_sqe *next_sqe(unsigned at)
{
	unsigned index = (*ring.sq_tail + at) & *ring.sq_mask;

	memset(&ring.sqes[index], 0, sizeof(*ring.sqes));
	ring.array[index] = index;
	return &ring.sqes[index];
}

static void submit(unsigned n)
{
	unsigned head;

	__atomic_store_n(ring.sq_tail, *ring.sq_tail + n, __ATOMIC_RELEASE);
	must(syscall(__NR_io_uring_enter, ring.fd, n, n, IORING_ENTER_GETEVENTS, NULL, 0) == (int)n, "io_uring_enter");
	head = *ring.cq_head;
	while (head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) {
		errno = -ring.cqes[head & *ring.cq_mask].res;
		must(ring.cqes[head & *ring.cq_mask].res >= 0, "io_uring");
		head++;
	}
	__atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
}

static void describe_write(struct io_uring_sqe *sqe, const struct frame *f)
{
	sqe->opcode = IORING_OP_WRITE;
	sqe->fd = f->fd;
	sqe->addr = (uintptr_t)f->bytes;
	sqe->len = f->size;
	sqe->off = f->offset;
}

static void uring(const struct frame *f)
{
	struct io_uring_sqe *sqe;

	if (!ring.fd)
		open_ring();
	sqe = next_sqe(0);
	describe_write(sqe, f);
	sqe->flags = IOSQE_IO_LINK;
	sqe = next_sqe(1);
	sqe->opcode = IORING_OP_FSYNC;
	sqe->fd = f->fd;
	sqe->fsync_flags = IORING_FSYNC_DATASYNC;
	submit(2);
}

static void uring_dsync(const struct frame *f)
{
	struct io_uring_sqe *sqe;

	if (!ring.fd)
		open_ring();
	sqe = next_sqe(0);
	describe_write(sqe, f);
	sqe->rw_flags = RWF_DSYNC;
	submit(1);
}

/* ---- */

static const struct way {
	const char *name;
	void (*store)(const struct frame *);
	int flags;
} WAYS[] = {
	{ "write, fdatasync", plain, 0 },
	{ "write with RWF_DSYNC", dsync, 0 },
	{ "direct write with RWF_DSYNC", dsync, O_DIRECT },
	{ "write, fdatasync in a thread", by_thread, 0 },
	{ "io_uring: write, fdatasync", uring, 0 },
	{ "io_uring: direct write with RWF_DSYNC", uring_dsync, O_DIRECT },
};

static int prepared(const char *path, int written)
{
	char *zeros = calloc(1, 1 << 20);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	must(fd >= 0, path);
	must(fallocate(fd, 0, 0, FILE_BYTES) == 0, "fallocate");
	for (off_t at = 0; written && at < FILE_BYTES; at += 1 << 20)
		must(pwrite(fd, zeros, 1 << 20, at) == 1 << 20, "pwrite");
	must(fsync(fd) == 0, "fsync");
	free(zeros);
	return fd;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(const char *path, const struct way *way, int written, size_t size)
{
	double us[FRAMES], cpu;
	struct frame f = { .size = size };
	char *bytes;

	close(prepared(path, written));
	f.fd = open(path, O_RDWR | way->flags);
	must(f.fd >= 0, path);
	must(posix_memalign((void **)&bytes, 4096, size) == 0, "posix_memalign");
	memset(bytes, 'x', size);
	f.bytes = bytes;
	cpu = cpu_us();
	for (int i = 0; i < FRAMES; i++) {
		double begun = now_us();

		way->store(&f);
		us[i] = now_us() - begun;
		f.offset += size;
	}
	cpu = (cpu_us() - cpu) / FRAMES;
	qsort(us, FRAMES, sizeof(*us), by_size);
	printf("{\"way\": \"%s\", \"file\": \"%s\", \"bytes\": %zu, \"p50_us\": %.0f, \"p90_us\": %.0f, \"p99_us\": %.0f, \"cpu_us\": %.0f}\n",
	       way->name, written ? "written" : "allocated", size, us[FRAMES / 2], us[FRAMES * 9 / 10],
	       us[FRAMES * 99 / 100], cpu);
	fflush(stdout);
	free(bytes);
	close(f.fd);
	unlink(path);
}

int main(int argc, char **argv)
{
	static const size_t SIZES[] = { 4096, 65536 };
	char path[4096];

	if (argc != 3 || strcmp(argv[2], "--json") != 0) {
		fprintf(stderr, "syncs DIRECTORY --json\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/syncs.tmp", argv[1]);
	for (size_t s = 0; s < 2; s++)
		for (int written = 0; written < 2; written++)
			for (size_t w = 0; w < sizeof(WAYS) / sizeof(*WAYS); w++)
				measure(path, &WAYS[w], written, SIZES[s]);
	return 0;
}
