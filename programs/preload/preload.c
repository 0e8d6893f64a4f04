// SPDX-License-Identifier: Apache-2.0
/* Clock and dice of a replicated server: preloaded (LD_PRELOAD) into a program that asks the C library for the time, for
 * random numbers and for its process number, so that all replicas of it are told the same.
 *
 *   WIREPAXOS_CLOCK   a file of nine numbers, in the machine's byte order, and a text. Whoever runs the server writes the first five.
 *                       0  microseconds since 1970: the wall clock, which stands still in between
 *                       1  the same with all bits inverted
 *                       2  a step in microseconds, or 0
 *                       3  the number of the run that is under way, or 0
 *                       4  bytes that scripts may have in it, all together, or 0: as many as there are
 *                       5  the library's: the number of a run that took too many steps
 *                       6  the number of a run that took too much memory
 *                       7  bytes that scripts have
 *                       8  the number of a run that did what is refused it (scripts.h), and then why, up to a 0
 *                     What a file of two numbers leaves out is 0.
 *   WIREPAXOS_SEED    a number. All random bytes, and the process number, follow from it.
 *
 * Without them the library does nothing.
 *
 * Clocks that don't show the time of day are the system's own: timers go on. But with a step the server's main thread finds
 * CLOCK_MONOTONIC moved on by that much at each reading, and by a thousandth of it at each reading of the wall clock; by nothing
 * else. Redis reads the former in each 100,000 instructions of a script, and the latter twice in each command. So how far a script
 * comes before Redis finds that it lasts too long is the same everywhere. Redis then goes back to its event loop, deep in the
 * script's stack. In a run the library ends the server there, and says which run it was.
 *
 * The same happens where Lua takes more memory than a run may (arena.h), in a server that found a step when it was started.
 *
 * Standard input is the server's lifeline: once it ends, so does the server. Whoever started the server holds the other end, and
 * lets go of it however it dies. The server's children, which write snapshots, end with it. They have process numbers of their own,
 * so that no two write into one file, and hold none of its sockets: whoever talks to the server finds out at once that it is gone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "arena.h"

#define MICROSECONDS 1000000
/* What a reader of /dev/urandom finds before the end of it: more than any server takes at its start. */
#define RANDOM_FILE_LEN (64 << 10)
/* What a reading of the wall clock counts as, beside one of CLOCK_MONOTONIC. */
#define WALL_SHARE 1000
/* A wait for events so many bytes below the others is one within a script. */
#define NESTED 512
#define REFUSAL_LEN 184
enum { TIME, INVERTED, STEP, RUN, ROOM, OVER, FULL, HELD, REFUSED, REFUSAL, WORDS = REFUSAL + REFUSAL_LEN / 8 };

static uint64_t *clock_file;
static uint64_t seed;
static uint64_t drawn;

/* Where the program's own code lies: libraries read clocks, too, and as often as they like. */
static uintptr_t program_begin, program_end;
static __thread int is_main;
/* Only a server that begins with steps has scripts that are counted. */
static int counts_memory;

static void die(const char *what)
{
	fprintf(stderr, "wirepaxos preload: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static int real_open(const char *path, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void *hold_lifeline(void *unused)
{
	char byte;
	ssize_t got;

	do
		got = read(STDIN_FILENO, &byte, 1);
	while (got > 0 || (got < 0 && errno == EINTR));
	_exit(0);
	return unused;
}

static void start_lifeline(void)
{
	sigset_t all, before;
	pthread_t thread;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, NULL, hold_lifeline, NULL) != 0)
		die("no thread for the lifeline");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The first one is the program. */
static int find_program(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
			continue;
		program_begin = info->dlpi_addr + part->p_vaddr;
		program_end = program_begin + part->p_memsz;
	}
	return 1;
}

static uint64_t load(int word)
{
	return __atomic_load_n(&clock_file[word], __ATOMIC_ACQUIRE);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("WIREPAXOS_CLOCK");
	const char *text = getenv("WIREPAXOS_SEED");
	int fd;

	if (!path || !text)
		return;
	fd = real_open(path, O_RDWR | O_CLOEXEC, 0);
	if (fd < 0)
		die(path);
	seed = strtoull(text, NULL, 10);
	clock_file =
		mmap(NULL, WORDS * sizeof(*clock_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (clock_file == MAP_FAILED)
		die(path);
	close(fd);
	counts_memory = load(STEP) != 0;
	if (counts_memory && !arena_begin())
		die("no place for the memory of scripts");
	is_main = 1;
	dl_iterate_phdr(find_program, NULL);
	start_lifeline();
}

/* ---- The clock */

/* A write that is under way shows as two numbers that don't fit. */
static uint64_t now(void)
{
	uint64_t time, inverted;

	do {
		time = load(TIME);
		inverted = load(INVERTED);
	} while (time != ~inverted);
	return time;
}

static int real_clock(clockid_t id, struct timespec *out)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	return real(id, out);
}

static void put_time(uint64_t time, struct timespec *out)
{
	out->tv_sec = (time_t)(time / MICROSECONDS);
	out->tv_nsec = (long)(time % MICROSECONDS) * 1000;
}

/* CLOCK_MONOTONIC as the main thread sees it, in microseconds. */
static uint64_t shown;
/* What has to be added to the system's, so that it goes on behind steps from where they have led. */
static uint64_t offset;
static int stepped;

static int is_counted(const void *caller)
{
	return is_main && (uintptr_t)caller - program_begin < program_end - program_begin;
}

static void go_on(struct timespec *out)
{
	uint64_t step = load(STEP);

	if (step) {
		shown += step;
		stepped = 1;
	} else {
		uint64_t real;

		real_clock(CLOCK_MONOTONIC, out);
		real = (uint64_t)out->tv_sec * MICROSECONDS + (uint64_t)out->tv_nsec / 1000;
		if (stepped)
			offset = shown - real;
		stepped = 0;
		shown = real + offset;
	}
	put_time(shown, out);
}

static void read_wall(const void *caller, struct timespec *out)
{
	if (is_counted(caller))
		shown += load(STEP) / WALL_SHARE;
	put_time(now(), out);
}

int clock_gettime(clockid_t id, struct timespec *out)
{
	const void *caller = __builtin_return_address(0);

	if (!clock_file)
		return real_clock(id, out);
	if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI)
		read_wall(caller, out);
	else if (id == CLOCK_MONOTONIC && is_counted(caller))
		go_on(out);
	else
		return real_clock(id, out);
	return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	struct timespec time;

	(void)zone;
	if (clock_file)
		read_wall(__builtin_return_address(0), &time);
	else
		real_clock(CLOCK_REALTIME, &time);
	out->tv_sec = time.tv_sec;
	out->tv_usec = time.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out)
{
	struct timespec time;

	if (clock_file)
		read_wall(__builtin_return_address(0), &time);
	else
		real_clock(CLOCK_REALTIME, &time);
	if (out)
		*out = time.tv_sec;
	return time.tv_sec;
}

/* Scripts can ask how much CPU time was used. */
clock_t clock(void)
{
	struct timespec time;

	if (clock_file)
		return (clock_t)now();
	real_clock(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (clock_t)(time.tv_sec * MICROSECONDS + time.tv_nsec / 1000);
}

/* ---- Runs */

int epoll_wait(int epoll, struct epoll_event *events, int max, int timeout)
{
	static char *outermost;

	if (clock_file && is_main) {
		char *frame = __builtin_frame_address(0);
		uint64_t run = load(RUN);

		if (frame > outermost)
			outermost = frame;
		if (run && outermost - frame > NESTED) {
			__atomic_store_n(&clock_file[OVER], run, __ATOMIC_RELEASE);
			_exit(0);
		}
	}
	return (int)syscall(SYS_epoll_pwait, epoll, events, max, timeout, NULL, (size_t)0);
}

/* ---- Memory of scripts */

/* Not only the main thread gives Lua's memory back. */
static int arena_lock;

static void lock_arena(void)
{
	while (__atomic_exchange_n(&arena_lock, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void unlock_arena(void)
{
	__atomic_store_n(&clock_file[HELD], arena_used, __ATOMIC_RELAXED);
	__atomic_store_n(&arena_lock, 0, __ATOMIC_RELEASE);
}

/* A script that is told of a lack of memory may go on, and do something else: so none is ever told. */
static void make_room(size_t len)
{
	uint64_t run = is_main ? load(RUN) : 0, room = load(ROOM);

	if (run && room && (len > room || arena_used + len > room)) {
		__atomic_store_n(&clock_file[FULL], run, __ATOMIC_RELEASE);
		_exit(0);
	}
}

static void *take_for_lua(void *old, size_t len)
{
	void *block;

	lock_arena();
	make_room(rounded(len));
	block = old ? arena_resize(old, len) : arena_take(len);
	unlock_arena();
	if (!block && is_main && load(RUN))
		die("no memory for a script");
	return block;
}

static void *real_function(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found)
		die(name);
	return found;
}

void free(void *block)
{
	static void (*real)(void *);

	if (in_arena(block)) {
		lock_arena();
		arena_give(block);
		unlock_arena();
		return;
	}
	if (!real)
		real = (void (*)(void *))real_function("free");
	real(block);
}

void *realloc(void *old, size_t len)
{
	static void *(*real)(void *, size_t);
	uintptr_t caller = (uintptr_t)__builtin_return_address(0);

	if (old ? in_arena(old) :
		  counts_memory && caller - program_begin < program_end - program_begin) {
		if (len)
			return take_for_lua(old, len);
		free(old);
		return NULL;
	}
	if (!real)
		real = (void *(*)(void *, size_t))real_function("realloc");
	return real(old, len);
}

/* Scripts can ask where a table lies. */
static int print_to(char *out, const char *format, va_list arguments)
{
	if (clock_file && strcmp(format, "%p") == 0)
		return vsprintf(out, "0x1", arguments);
	return vsprintf(out, format, arguments);
}

int sprintf(char *restrict out, const char *restrict format, ...)
{
	va_list arguments;
	int len;

	va_start(arguments, format);
	len = print_to(out, format, arguments);
	va_end(arguments);
	return len;
}

/* As the compiler calls it. */
int __sprintf_chk(char *restrict out, int flag, size_t size, const char *restrict format, ...);

int __sprintf_chk(char *restrict out, int flag, size_t size, const char *restrict format, ...)
{
	va_list arguments;
	int len;

	(void)flag;
	(void)size;
	va_start(arguments, format);
	len = print_to(out, format, arguments);
	va_end(arguments);
	return len;
}

/* ---- The dice */

/* SplitMix64. */
static uint64_t draw(void)
{
	uint64_t z = seed + 0x9e3779b97f4a7c15 * __atomic_add_fetch(&drawn, 1, __ATOMIC_RELAXED);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void fill(unsigned char *out, size_t len)
{
	uint64_t word = 0;

	for (size_t i = 0; i < len; i++, word >>= 8) {
		if (i % sizeof(word) == 0)
			word = draw();
		out[i] = (unsigned char)word;
	}
}

ssize_t getrandom(void *out, size_t len, unsigned int flags)
{
	if (!clock_file)
		return syscall(SYS_getrandom, out, len, flags);
	fill(out, len);
	return (ssize_t)len;
}

int getentropy(void *out, size_t len)
{
	if (len > 256) {
		errno = EIO;
		return -1;
	}
	return getrandom(out, len, 0) == (ssize_t)len ? 0 : -1;
}

/* Whether this process is a child of the server. */
static int is_child;

/* Redis mixes it into its seeds, and names a child's temporary files by it. */
pid_t getpid(void)
{
	if (!clock_file || is_child)
		return (pid_t)syscall(SYS_getpid);
	return (pid_t)(2 + seed % 30000);
}

/* ---- Children */

/* No server of a replica has more open files: it has a handful of connections. */
#define MOST_FILES 4096

static void close_sockets(void)
{
	struct stat of;

	for (int fd = 0; fd < MOST_FILES; fd++)
		if (fstat(fd, &of) == 0 && S_ISSOCK(of.st_mode))
			close(fd);
}

pid_t fork(void)
{
	static pid_t (*real)(void);
	pid_t server = (pid_t)syscall(SYS_getpid), child;

	if (!real)
		real = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
	child = real();
	if (child != 0 || !clock_file)
		return child;
	is_child = 1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* It may have died before that. */
	if ((pid_t)syscall(SYS_getppid) != server)
		_exit(1);
	close_sockets();
	return 0;
}

/* A file of random bytes, if this is the path of one; otherwise -1. */
static int open_random(const char *path)
{
	static const char *const paths[] = { "/dev/urandom", "/dev/random" };
	unsigned char *bytes;
	int fd = -1;

	if (!clock_file || (strcmp(path, paths[0]) != 0 && strcmp(path, paths[1]) != 0))
		return -1;
	bytes = malloc(RANDOM_FILE_LEN);
	if (bytes)
		fd = memfd_create("random", MFD_CLOEXEC);
	if (fd < 0)
		die("no file of random bytes");
	fill(bytes, RANDOM_FILE_LEN);
	if (write(fd, bytes, RANDOM_FILE_LEN) != RANDOM_FILE_LEN || lseek(fd, 0, SEEK_SET) != 0)
		die("no file of random bytes");
	free(bytes);
	return fd;
}

int open(const char *path, int flags, ...)
{
	int fd = open_random(path);
	mode_t mode = 0;

	if (fd >= 0)
		return fd;
	if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
		va_list rest;

		va_start(rest, flags);
		mode = va_arg(rest, mode_t);
		va_end(rest);
	}
	return real_open(path, flags, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode)
{
	static FILE *(*real)(const char *restrict, const char *restrict);
	int fd = open_random(path);

	if (fd >= 0)
		return fdopen(fd, mode);
	if (!real)
		real = (FILE * (*)(const char *restrict, const char *restrict))
			dlsym(RTLD_NEXT, "fopen");
	return real(path, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
FILE *fopen64(const char *restrict path, const char *restrict mode) __attribute__((alias("fopen")));

/* ---- Scripts */

#include "scripts.h"
