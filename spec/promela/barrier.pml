/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One acceptor on several CPUs: a PHASE2A of an older round runs at the same time as a range
 * PHASE1A. Each process is a CPU, each statement an access to shared memory; locks and atomic
 * operations keep their order, so sequential consistency is what remains to be looked at. [A-CPUS]
 *
 * INV-1 here: a vote that is cast below a promised round lies below the `end` that the promise
 * shows; else the candidate doesn't read it.
 */
byte floor, end, seen, shown_end;
bool locked, voted, promised;

#define OLD_ROUND 1
#define NEW_ROUND 2
#define INST 0

inline lock() { atomic { !locked -> locked = true } }
inline unlock() { locked = false }

/* Under the lock of the stripe that the slot belongs to. */
active proctype phase2a() {
    lock();
    seen = floor;
    if
    :: OLD_ROUND >= seen ->
        voted = true;
        end = INST + 1
    :: else
    fi;
    unlock()
}

/* Waits for whoever holds the lock, before it looks. */
active proctype range() {
#ifdef MUT_END_BEFORE_FLOOR
    shown_end = end;
#endif
    floor = NEW_ROUND;
#ifndef MUT_NO_LOCK
    lock();
    unlock();
#endif
#ifndef MUT_END_BEFORE_FLOOR
    shown_end = end;
#endif
    promised = true
}

/* Once both are done: ends where there is nothing to compare, too. */
active proctype check() {
    if
    :: (voted && promised) -> assert(shown_end > INST)
    :: timeout -> skip
    fi
}
