/*
 * One acceptor on several CPUs: a PHASE2A of an older round runs at the same time as a range
 * PHASE1A. Each process is a CPU, each statement an access to shared memory; the full barriers keep
 * their order, so sequential consistency is what remains to be looked at.
 *
 * INV-1 here: a vote that is cast below a promised round lies below the `end` that the promise
 * shows; else the candidate doesn't read it.
 */
byte floor, end, seen, shown_end;
bool voted, promised;

#define OLD_ROUND 1
#define NEW_ROUND 2
#define INST 0

active proctype phase2a() {
#ifdef MUT_FLOOR_BEFORE_END
    seen = floor;
    end = INST + 1
#else
    end = INST + 1;
    seen = floor
#endif
    ;
    if
    :: OLD_ROUND >= seen -> voted = true
    :: else
    fi
}

active proctype range() {
#ifdef MUT_END_BEFORE_FLOOR
    shown_end = end;
    floor = NEW_ROUND
#else
    floor = NEW_ROUND;
    shown_end = end
#endif
    ;
    promised = true
}

/* Once both are done: ends where there is nothing to compare, too. */
active proctype check() {
    if
    :: (voted && promised) -> assert(shown_end > INST)
    :: timeout -> skip
    fi
}
