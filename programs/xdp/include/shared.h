/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The kinds of maps by which programs share data with each other and with user space. */
#ifndef WIREPAXOS_SHARED_H
#define WIREPAXOS_SHARED_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
/* Keeps the compiler from deriving a checked number anew, since the verifier knows registers. */
#define KEEP(x) asm volatile("" : "+r"(x))

/* Marks a function that stays a function of its own in every role that uses it. */
#define SUBPROGRAM static __noinline __attribute__((unused))

/* A map that outlives the process that loaded it, in the objects that nodes run (`kept/`). It is
 * found by its name where the process before left it pinned, so programs are replaced and keep
 * their state. Tests and measurements load objects whose maps go with them. */
#ifdef KEEP_MAPS
#define KEPT_MAP(map_type)      \
	__uint(type, map_type); \
	__uint(pinning, LIBBPF_PIN_BY_NAME)
#else
#define KEPT_MAP(map_type) __uint(type, map_type)
#endif

/* An array whose memory user space maps. The loader may change the number of entries. */
#define SHARED_ARRAY(name, entries, value_type)    \
	struct {                                   \
		KEPT_MAP(BPF_MAP_TYPE_ARRAY);      \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, entries);      \
		__type(key, __u32);                \
		__type(value, value_type);         \
	} name SEC(".maps")

#endif
