/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader on several CPUs stamps two commands over two partitions, while a client has a command of
 * its own stamped in one partition, is answered, and then asks in the other one. Each process is a
 * CPU or the client, each statement an access to shared memory. A command over several partitions
 * locks `next` of each, from the lowest on, and takes its places once all are locked; whoever wants
 * an instance of a locked partition waits. [L-MULTI]
 *
 * INV-5: both commands lie in the same order in both partitions, and none of them lies before what
 * was answered and behind what was asked after that.
 */
#define VECTORS 2

byte next[2];
bool locked[2];
byte place[2 * VECTORS];          /* (pid, inst) */
byte first, second;               /* of the client's commands, in partitions `in` and 1 - `in` */
byte in;
byte done;

#define PLACE(v, p) place[(v) * 2 + (p)]
#define stamp(p, to) to = next[p]; next[p] = next[p] + 1

#if defined(MUT_NOT_ATOMIC)
/* Each partition by itself. */
inline lock(p) { skip }
inline unlock(p) { skip }
#define is_open(p) true
#elif defined(MUT_VECTORS_ALONE)
/* Commands over several partitions keep one another out, and nobody else. */
inline lock(p) { atomic { !locked[p] -> locked[p] = true } }
inline unlock(p) { locked[p] = false }
#define is_open(p) true
#else
inline lock(p) { atomic { !locked[p] -> locked[p] = true } }
inline unlock(p) { locked[p] = false }
#define is_open(p) (!locked[p])
#endif

active [VECTORS] proctype vector() {
    lock(0);
#ifndef MUT_LOCKED_LATE
    lock(1);
#endif
    d_step { stamp(0, PLACE(_pid, 0)) }
#ifdef MUT_LOCKED_LATE
    unlock(0);
    lock(1);
#endif
    d_step { stamp(1, PLACE(_pid, 1)) }
#ifndef MUT_LOCKED_LATE
    unlock(0);
#endif
    unlock(1);
    done++
}

active proctype client() {
    if
    :: in = 0
    :: in = 1
    fi;
    atomic { is_open(in) -> stamp(in, first) }
    atomic { is_open(1 - in) -> stamp(1 - in, second) }
    done++
}

#define lies_between(v) (PLACE(v, in) < first && second < PLACE(v, 1 - in))

active proctype check() {
    done == VECTORS + 1;
    assert((PLACE(0, 0) < PLACE(1, 0)) == (PLACE(0, 1) < PLACE(1, 1)));
    assert(!lies_between(0) && !lies_between(1))
}
