// SPDX-License-Identifier: Apache-2.0
/* What redis-benchmark can't do: commands in pipelines, of which each ends with WAIT 1 0.
 *
 *   wait HOST PORT CLIENTS PIPELINE COUNT WORD...
 *
 * Each client sends so many of the command and one WAIT, awaits all answers, and begins anew. Prints a JSON object: commands a
 * second without the WAITs, and how long a pipeline took.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM (1 << 20)

struct client {
	int fd;
	size_t answers;
	size_t have;
	double begun;
	char *input;
};

static char request[ROOM];
static size_t request_len;
static double *times;
static size_t time_count, pipelines_left, pipeline;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void add(int count, char **words)
{
	request_len += (size_t)sprintf(request + request_len, "*%d\r\n", count);
	for (int i = 0; i < count; i++)
		request_len += (size_t)sprintf(request + request_len, "$%zu\r\n%s\r\n",
					       strlen(words[i]), words[i]);
}

/* Where an answer ends, or NULL if not all of it is there. */
static char *end_of(char *at, char *end)
{
	char *line = memchr(at, '\n', (size_t)(end - at));
	long len;

	if (!line)
		return NULL;
	if (*at == '-') {
		fprintf(stderr, "refused: %.*s\n", (int)(line - at), at);
		exit(1);
	}
	len = atol(at + 1);
	line++;
	if (*at == '$' && len >= 0)
		return end - line >= len + 2 ? line + len + 2 : NULL;
	if (*at == '*')
		for (; len > 0 && line; len--)
			line = end_of(line, end);
	return line;
}

static void begin(struct client *client)
{
	if (pipelines_left == 0)
		return;
	pipelines_left--;
	client->answers = pipeline + 1;
	client->begun = now();
	if (write(client->fd, request, request_len) != (ssize_t)request_len)
		die("write");
}

static void take(struct client *client)
{
	ssize_t got = read(client->fd, client->input + client->have, ROOM - client->have);
	char *at = client->input, *end, *next;

	if (got <= 0)
		die("read");
	client->have += (size_t)got;
	end = at + client->have;
	while (client->answers > 0 && at < end && (next = end_of(at, end))) {
		at = next;
		client->answers--;
	}
	client->have = (size_t)(end - at);
	memmove(client->input, at, client->have);
	if (client->answers == 0) {
		times[time_count++] = now() - client->begun;
		begin(client);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static char *wait_words[] = { "WAIT", "1", "0" };
	struct sockaddr_in to = { .sin_family = AF_INET };
	size_t clients, all;
	struct client *client;
	double begun;
	int epoll = epoll_create1(0), one = 1;

	if (argc < 7) {
		fprintf(stderr, "usage: wait HOST PORT CLIENTS PIPELINE COUNT WORD...\n");
		return 2;
	}
	inet_pton(AF_INET, argv[1], &to.sin_addr);
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	clients = (size_t)atol(argv[3]);
	pipeline = (size_t)atol(argv[4]);
	all = pipelines_left = ((size_t)atol(argv[5]) + pipeline - 1) / pipeline;
	for (size_t i = 0; i < pipeline; i++)
		add(argc - 6, argv + 6);
	add(3, wait_words);
	times = calloc(all, sizeof(*times));
	client = calloc(clients, sizeof(*client));
	for (size_t i = 0; i < clients; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &client[i] };

		client[i].fd = socket(AF_INET, SOCK_STREAM, 0);
		client[i].input = malloc(ROOM);
		if (connect(client[i].fd, (struct sockaddr *)&to, sizeof(to)) != 0)
			die("connect");
		setsockopt(client[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		epoll_ctl(epoll, EPOLL_CTL_ADD, client[i].fd, &event);
	}
	begun = now();
	for (size_t i = 0; i < clients; i++)
		begin(&client[i]);
	while (time_count < all) {
		struct epoll_event events[64];
		int count = epoll_wait(epoll, events, 64, -1);

		for (int i = 0; i < count; i++)
			take(events[i].data.ptr);
	}
	begun = now() - begun;
	qsort(times, all, sizeof(*times), compare);
	printf("{\"ops_per_s\": %.0f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n",
	       (double)(all * pipeline) / begun, times[all / 2] * 1e3, times[all * 99 / 100] * 1e3);
	return 0;
}
