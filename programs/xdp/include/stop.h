/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Stops a program for a test, while another CPU does something that must not disturb it. The
 * objects in `stopping/` wait at the place that the map names until it names another one, or for
 * some tenths of a second. */
#ifndef WIREPAXOS_STOP_H
#define WIREPAXOS_STOP_H

enum stop_place {
	STOP_BEFORE_TAKING = 1,
	STOP_AFTER_TAKING = 2,
	STOP_AT_CONFIGURATION = 3,
	STOP_AT_REPORT = 4,
	STOP_AMONG_PLACES = 5,
};

#ifdef STOPPING
struct stop {
	__u32 place;
	__u32 reached;
};

SHARED_ARRAY(stops, 1, struct stop);

/* How often bpf_loop can look. */
#define STOP_LOOKS (1 << 23)

struct waiting {
	struct stop *stop;
	__u32 place;
};

static long look_again(__u32 unused __attribute__((unused)), struct waiting *waiting)
{
	return READ_ONCE(waiting->stop->place) != waiting->place;
}

/* Waits if the map names this place. As a global function it is verified once, and not on each way
 * to it. */
__noinline int stop_at(__u32 place)
{
	__u32 zero = 0;
	struct waiting waiting = { .stop = bpf_map_lookup_elem(&stops, &zero), .place = place };

	if (!waiting.stop || READ_ONCE(waiting.stop->place) != place)
		return 0;
	WRITE_ONCE(waiting.stop->reached, place);
	for (int i = 0; i < 4; i++)
		bpf_loop(STOP_LOOKS, look_again, &waiting, 0);
	return 0;
}
#else
static __always_inline void stop_at(__u32 place __attribute__((unused)))
{
}
#endif

#endif
