/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands over two partitions: how one replica judges and passes their copies ([V-ALIVE] to
 * [V-MARKER]), while it is killed and loses power. The logs are drawn first, as [L-MULTI] and the
 * change of an epoch allow them: whatever was stamped at a place, or a no-op, and behind a marker
 * also a copy that an older leader stamped and a repair has revived. Then two workers execute.
 * Each partition has a state in memory, one that survives a kill (a commit), and one that survives
 * a power failure (a sync). Answers between siblings are lost with the process.
 *
 * INV-5: each copy is judged as the logs alone say, whatever has failed before; so partitions, and
 * replicas, judge alike. And workers don't wait for each other for ever, nor keep outcomes for ever.
 */
#include "common.pml"

#ifndef LENGTH
#define LENGTH 3                  /* instances of a partition */
#endif
#ifndef VECTORS
#define VECTORS 2                 /* commands over both partitions */
#endif

#define NOOP 0
#define MARKER 1
#define COPY(v) (2 + (v))

#define ALIVE 1
#define DEAD 2

/* The logs. A marker at LENGTH: there is none. */
byte log[2 * LENGTH];
byte marker[2];                   /* of epoch 2 */
byte place[2 * VECTORS];          /* (pid, inst) of each vector */
bool late[VECTORS];               /* stamped in epoch 2 */
bool stray;                       /* a copy of vector 0 lies where its vector doesn't say */

/* The workers: position, outcomes on record (a bit a vector), whether epoch 2's marker is behind. */
byte next[2], kept[2];
byte stored_next[2], stored_kept[2];
byte synced_next[2], synced_kept[2];
bool marked[2];
byte told[2];                     /* what the sibling says of the copy that is met */

hidden byte h_i, h_p, h_v, h_draw;

#define LOG(p, i) log[(p) * LENGTH + (i)]
#define PLACE(v, p) place[(v) * 2 + (p)]

/* ---- The logs ------------------------------------------------------------------------------- */

inline draw(x, least, most) {
    x = least;
    do
    :: x < (most) -> x++
    :: break
    od
}

#define is_behind_marker(v) (PLACE(v, 0) > marker[0] || PLACE(v, 1) > marker[1])
#define is_at(v, p) (LOG(p, PLACE(v, p)) == COPY(v))
/* [V-ALIVE] */
#define is_alive(v) (is_at(v, 0) && is_at(v, 1) && (late[v] || !is_behind_marker(v)))

#if VECTORS == 1
#define in_order true
#else
#define ascends(p) (PLACE(0, p) < PLACE(1, p))
#ifdef MUT_CROSSED
/* Each partition is stamped by itself. */
#define in_order (late[0] <= late[1] && (late[0] != late[1] || PLACE(0, 0) < PLACE(1, 0)))
#else
/* [L-MULTI] An older leader may stamp as long as nobody tells it. */
#define in_order (late[0] <= late[1] && (late[0] != late[1] || ascends(0) && ascends(1)))
#endif
#endif
#define is_sound(v) (!late[v] || marker[0] < PLACE(v, 0) && marker[1] < PLACE(v, 1))
#if VECTORS == 1
#define all_sound is_sound(0)
#else
#define all_sound (is_sound(0) && is_sound(1))
#endif

inline draw_stamps() {
    draw(marker[0], 0, LENGTH);
    if
    :: marker[0] == LENGTH -> marker[1] = LENGTH
    :: else -> draw(marker[1], 0, LENGTH - 1)
    fi;
    h_v = 0;
    do
    :: h_v < VECTORS ->
        draw(PLACE(h_v, 0), 0, LENGTH - 1);
        draw(PLACE(h_v, 1), 0, LENGTH - 1);
        draw(late[h_v], 0, 1);
        h_v++
    :: else -> break
    od
}

/* What is decided at each place: any subset of the copies. */
inline draw_logs() {
    h_p = 0; h_i = 0;
    do
    :: h_p == 2 -> break
    :: h_p < 2 && marker[h_p] == h_i -> LOG(h_p, h_i) = MARKER; advance()
    :: h_p < 2 && marker[h_p] != h_i -> LOG(h_p, h_i) = NOOP; advance()
    :: h_p < 2 && marker[h_p] != h_i && PLACE(0, h_p) == h_i -> LOG(h_p, h_i) = COPY(0); advance()
    :: h_p < 2 && marker[h_p] != h_i && PLACE(0, h_p) != h_i && !stray ->
        stray = true; LOG(h_p, h_i) = COPY(0); advance()
#if VECTORS > 1
    :: h_p < 2 && marker[h_p] != h_i && PLACE(1, h_p) == h_i -> LOG(h_p, h_i) = COPY(1); advance()
#endif
    od
}
inline advance() {
    h_i++;
    if
    :: h_i == LENGTH -> h_i = 0; h_p++
    :: else
    fi
}

/* ---- Workers -------------------------------------------------------------------------------- */

#define here(p) LOG(p, next[p] % LENGTH)
#define is_copy(p) (next[p] < LENGTH && here(p) >= COPY(0))
#define met(p) (here(p) - COPY(0))
#ifdef MUT_ANYWHERE
#define is_misplaced(p) false
#else
#define is_misplaced(p) (PLACE(met(p), p) != next[p])
#endif
#ifdef MUT_MARKER_IGNORED
#define is_overtaken(v, p) false
#else
#define is_overtaken(v, p) (marked[p] && !late[v])
#endif
/* Dead by what the partition knows alone; otherwise it stands at its copy. */
#define is_dead_here(p) (is_misplaced(p) || is_overtaken(met(p), p))
#define stands(p) (is_copy(p) && !is_dead_here(p))
#define both_stand (stands(0) && stands(1) && met(0) == met(1))

/* What `q`, asked by `p`, answers of the copy that `p` has met. [V-JUDGE] */
#define asks(p) (stands(p) && told[p] == 0)
#define has_passed(p, q) (next[q] > PLACE(met(p), q))
#ifdef MUT_MARKER_FIRST
#define has_answer(p, q) (has_passed(p, q) && !is_overtaken(met(p), q))
#define is_too_late(p, q) is_overtaken(met(p), q)
#else
#define has_answer(p, q) has_passed(p, q)
#ifdef MUT_MARKER_SILENT
#define is_too_late(p, q) false
#else
#define is_too_late(p, q) (!has_passed(p, q) && is_overtaken(met(p), q))
#endif
#endif
#ifdef MUT_PASSED_SILENT
#define is_dead_for(p, q) false
#else
#define is_dead_for(p, q) (has_answer(p, q) && !HAS(kept[q], met(p)))
#endif
#ifdef MUT_STANDS_ELSEWHERE
#define is_at_another(p, q) false
#else
#define is_at_another(p, q) (stands(q) && next[q] == PLACE(met(p), q) && met(q) != met(p))
#endif

#define ANSWER(p, q) \
    :: d_step { asks(p) && has_answer(p, q) && HAS(kept[q], met(p)) -> told[p] = ALIVE; skip } \
    :: d_step { asks(p) && is_dead_for(p, q) -> told[p] = DEAD; skip } \
    :: d_step { asks(p) && is_too_late(p, q) -> told[p] = DEAD; skip } \
    :: d_step { asks(p) && !has_passed(p, q) && is_at_another(p, q) -> told[p] = DEAD; skip }

/* [V-RECORD] */
#if defined(MUT_NO_RECORD)
#define record(p) kept[p]
#elif defined(MUT_LOWEST_RECORDS)
#define record(p) ((p) == 0 -> kept[p] | (1 << met(p)) : kept[p])
#else
#define record(p) (kept[p] | (1 << met(p)))
#endif
/* The lowest partition combines what both have prepared. */
#ifdef MUT_JUDGED_ALONE
#define is_judged(p) (told[p] == ALIVE || (p) == 0)
#else
#define is_judged(p) (told[p] == ALIVE || (p) == 0 && both_stand)
#endif

#define PASS(p) next[p] = next[p] + 1; told[p] = 0
#define WORK(p) \
    :: d_step { next[p] < LENGTH && here(p) == NOOP -> PASS(p); skip } \
    :: d_step { next[p] < LENGTH && here(p) == MARKER -> marked[p] = true; PASS(p); skip } \
    :: d_step { is_copy(p) && is_dead_here(p) -> \
        SAY("partition %d: its copy of %d is dead there\n", p, met(p)); \
        assert(PLACE(met(p), p) != next[p] || !is_alive(met(p))); PASS(p); skip } \
    :: d_step { stands(p) && told[p] == DEAD -> \
        SAY("partition %d is told that %d is dead\n", p, met(p)); \
        assert(!is_alive(met(p))); PASS(p); skip } \
    :: d_step { stands(p) && is_judged(p) -> \
        SAY("partition %d executes %d\n", p, met(p)); \
        assert(PLACE(met(p), p) == next[p] && is_alive(met(p))); \
        kept[p] = record(p); PASS(p); skip }

/* ---- What survives -------------------------------------------------------------------------- */

#ifdef MUT_RECORD_APART
#define COMMIT(p) \
    :: d_step { stored_next[p] != next[p] -> stored_next[p] = next[p]; skip } \
    :: d_step { stored_kept[p] != kept[p] -> stored_kept[p] = kept[p]; skip }
#else
#define COMMIT(p) \
    :: d_step { stored_next[p] != next[p] || stored_kept[p] != kept[p] -> \
        stored_next[p] = next[p]; stored_kept[p] = kept[p]; skip }
#endif
#define SYNC(p) \
    :: d_step { synced_next[p] != stored_next[p] || synced_kept[p] != stored_kept[p] -> \
        synced_next[p] = stored_next[p]; synced_kept[p] = stored_kept[p]; \
        SAY("partition %d is synced at %d\n", p, stored_next[p]); skip }

/* [V-FORGET] */
#if defined(MUT_FORGET_AT_COMMIT)
#define may_forget(p, v) (stored_next[0] > PLACE(v, 0) && stored_next[1] > PLACE(v, 1))
#elif defined(MUT_OWN_SYNC_ALONE)
#define may_forget(p, v) (synced_next[p] > PLACE(v, p))
#else
#define may_forget(p, v) (synced_next[0] > PLACE(v, 0) && synced_next[1] > PLACE(v, 1))
#endif
#define FORGET(p, v) \
    :: d_step { (v) < VECTORS && HAS(kept[p], v) && may_forget(p, v) -> \
        kept[p] = kept[p] & ~(1 << (v)); SAY("partition %d forgets what came of %d\n", p, v); skip }

/* [V-MARKER] */
#ifdef MUT_MARKER_NOT_STORED
#define marker_passed(p) false
#else
#define marker_passed(p) (next[p] > marker[p])
#endif
#define RESTART(p) marked[p] = marker_passed(p); told[p] = 0

#define lost_by_kill(p) (next[p] != stored_next[p] || kept[p] != stored_kept[p] || told[p] != 0)
#define lost_by_power(p) (lost_by_kill(p) || next[p] != synced_next[p] || kept[p] != synced_kept[p])

/* A partition whose tail survives the power failure was synced just before. */
#define FAIL \
    :: d_step { lost_by_kill(0) || lost_by_kill(1) -> \
        next[0] = stored_next[0]; kept[0] = stored_kept[0]; RESTART(0); \
        next[1] = stored_next[1]; kept[1] = stored_kept[1]; RESTART(1); \
        SAY("a kill takes the replica back to %d, %d\n", next[0], next[1]); skip } \
    :: d_step { lost_by_power(0) || lost_by_power(1) -> \
        next[0] = synced_next[0]; kept[0] = synced_kept[0]; RESTART(0); \
        next[1] = synced_next[1]; kept[1] = synced_kept[1]; RESTART(1); \
        stored_next[0] = next[0]; stored_kept[0] = kept[0]; \
        stored_next[1] = next[1]; stored_kept[1] = kept[1]; \
        SAY("power fails: the replica is back at %d, %d\n", next[0], next[1]); skip }

#define is_done(p) (next[p] == LENGTH && kept[p] == 0)

init {
    atomic {
        draw_stamps();
        if
        :: in_order && all_sound -> draw_logs()
        :: else -> goto undrawn
        fi
    }
    /* Stuck before both workers are through, or with an outcome kept: an invalid end state. */
    do
    WORK(0) WORK(1) ANSWER(0, 1) ANSWER(1, 0) COMMIT(0) COMMIT(1) SYNC(0) SYNC(1)
    FORGET(0, 0) FORGET(0, 1) FORGET(1, 0) FORGET(1, 1)
    FAIL
    :: is_done(0) && is_done(1) -> break
    od;
undrawn:
    skip
}
