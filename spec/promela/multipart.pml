/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands over two partitions, stamped by [L-MULTI]: how replicas are to judge them (INV-5 in
 * docs/invariants.md), for two replicas with one worker a partition, over one change of epoch. What
 * each instance decides is drawn as the protocol of single.pml allows (see `DECIDE`), in any order:
 * whatever was stamped there, or a no-op of a candidate or repairer, and behind the marker even a
 * copy that an older leader stamped and a repair has found at an acceptor that no candidate asked.
 *
 * INV-5: a command takes effect in both partitions or in none, in all replicas alike; and replicas
 * don't wait for each other's partitions for ever, which a cyclic order would make them.
 */
#include "common.pml"

#ifndef LENGTH
#define LENGTH 4                  /* instances of a partition */
#endif
#ifndef VECTORS
#define VECTORS 3                 /* multi-partition commands stamped */
#endif
#ifndef REPLICAS
#define REPLICAS 2
#endif

#define NOTHING 0
#define NOOP 1
#define MARKER 2
#define COPY(v) (3 + (v))

byte log[2 * LENGTH];             /* what is decided, partition by partition */
byte sealed[2];                   /* E + 1 of each partition once epoch 2 is active, else 0 */
byte next[2];                     /* of the leader */
byte leader_epoch = 1;
byte stamped;                     /* vectors so far */
byte at[2 * VECTORS];             /* (pid, inst) of each vector */
byte epoch_of[VECTORS];

byte position[2 * REPLICAS];      /* of each worker */
byte executed, dead;              /* vectors, by anybody: for the checks */

hidden byte h_v, h_j;

#define LOG(p, i) log[(p) * LENGTH + (i)]
#define PLACE(v, p) at[(v) * 2 + (p)]
#define POSITION(k, p) position[(k) * 2 + (p)]

/* ---- Leader and log ----------------------------------------------------------------------- */

/* A vector takes its instances in one step; single-partition commands are instances in between. */
#ifdef MUT_NOT_ATOMIC
/* Each partition is stamped by itself: the places of two vectors may cross. */
#define STAMP \
    :: d_step { stamped + 1 < VECTORS && next[0] + 1 < LENGTH && next[1] + 1 < LENGTH -> \
        PLACE(stamped, 0) = next[0]; PLACE(stamped, 1) = next[1] + 1; epoch_of[stamped] = leader_epoch; \
        PLACE(stamped + 1, 0) = next[0] + 1; PLACE(stamped + 1, 1) = next[1]; \
        epoch_of[stamped + 1] = leader_epoch; \
        next[0] = next[0] + 2; next[1] = next[1] + 2; stamped = stamped + 2; \
        SAY("vectors are stamped crosswise\n"); skip }
#else
#define STAMP \
    :: d_step { stamped < VECTORS && next[0] < LENGTH && next[1] < LENGTH -> \
        PLACE(stamped, 0) = next[0]; PLACE(stamped, 1) = next[1]; epoch_of[stamped] = leader_epoch; \
        SAY("leader %d stamps vector %d: %d, %d\n", leader_epoch, stamped, next[0], next[1]); \
        next[0] = next[0] + 1; next[1] = next[1] + 1; stamped++; skip }
#endif
#define SINGLE(p) \
    :: d_step { next[p] < LENGTH -> next[p] = next[p] + 1; skip }

/* Epoch 2 with any E that lies behind what is decided: the rest was not chosen. */
#define SEAL(e0, e1) \
    :: d_step { leader_epoch == 1 && (e0) < LENGTH && (e1) < LENGTH && (e0) <= next[0] && (e1) <= next[1] \
                && none_decided(0, e0) && none_decided(1, e1) -> \
        leader_epoch = 2; sealed[0] = (e0) + 1; sealed[1] = (e1) + 1; \
        LOG(0, e0) = MARKER; LOG(1, e1) = MARKER; \
        next[0] = (e0) + 1; next[1] = (e1) + 1; \
        SAY("epoch 2, with markers at %d and %d\n", e0, e1); skip }
#define none_at(p, i, e) ((i) >= LENGTH || (i) < (e) || LOG(p, (i) % LENGTH) == NOTHING)
#define none_decided(p, e) (none_at(p, 0, e) && none_at(p, 1, e) && none_at(p, 2, e) && none_at(p, 3, e))

/* Copies: before the marker or, revived, behind it; those of epoch 2 only behind. */
#define may_decide(p, i, v) ((v) < stamped && PLACE(v, p) == (i))
#define DECIDE(p, i) \
    :: d_step { (i) < LENGTH && LOG(p, i) == NOTHING -> LOG(p, i) = NOOP; \
        SAY("partition %d, instance %d: no copy\n", p, i); skip } \
    DECIDE_COPY(p, i, 0) DECIDE_COPY(p, i, 1) DECIDE_COPY(p, i, 2)
#define DECIDE_COPY(p, i, v) \
    :: d_step { (v) < VECTORS && LOG(p, i) == NOTHING && may_decide(p, i, v) -> LOG(p, i) = COPY(v); \
        SAY("partition %d, instance %d: copy of vector %d\n", p, i, v); skip }

/* ---- Workers ------------------------------------------------------------------------------ */

#define here(k, p) LOG(p, POSITION(k, p) % LENGTH)
#define meets(k, p, v) (POSITION(k, p) < LENGTH && here(k, p) == COPY(v))

/* The copy, or its sibling, lies behind the marker of a later epoch than the one that stamped it. */
#ifdef MUT_MARKER_IGNORED
#define behind_marker(v, p) false
#else
#define behind_marker(v, p) (epoch_of[v] == 1 && sealed[p] != 0 && PLACE(v, p) >= sealed[p])
#endif
/* A worker knows of the markers below its own position, and of those decided in the other one. */
#define is_lost(v, q) (LOG(q, PLACE(v, q)) != NOTHING && LOG(q, PLACE(v, q)) != COPY(v))
#define has_passed(k, v, q) (POSITION(k, q) > PLACE(v, q))
#ifdef MUT_PASSED_IGNORED
#define is_dead(k, p, v) (behind_marker(v, p) || behind_marker(v, 1 - (p)) || is_lost(v, 1 - (p)))
#else
#define is_dead(k, p, v) (behind_marker(v, p) || behind_marker(v, 1 - (p)) || is_lost(v, 1 - (p)) \
                          || has_passed(k, v, 1 - (p)))
#endif

#define WORK(k, p) \
    :: d_step { POSITION(k, p) < LENGTH && (here(k, p) == NOOP || here(k, p) == MARKER) -> \
        POSITION(k, p) = POSITION(k, p) + 1; skip } \
    MEET(k, p, 0) MEET(k, p, 1) MEET(k, p, 2)
#define MEET(k, p, v) \
    :: d_step { (v) < VECTORS && meets(k, p, v) && is_dead(k, p, v) -> \
        POSITION(k, p) = POSITION(k, p) + 1; dead = dead | (1 << (v)); \
        SAY("replica %d, worker %d: vector %d is dead\n", k, p, v); \
        assert(!HAS(executed, v)); skip }

/* Both wait at the barrier: the lowest executes, for both. */
#ifdef MUT_NO_BARRIER
#define EXECUTE(k, v) EXECUTE_ALONE(k, 0, v) EXECUTE_ALONE(k, 1, v)
#define EXECUTE_ALONE(k, p, v) \
    :: d_step { (v) < VECTORS && meets(k, p, v) && !is_dead(k, p, v) -> \
        POSITION(k, p) = POSITION(k, p) + 1; executed = executed | (1 << (v)); \
        assert(!HAS(dead, v)); skip }
#else
#define EXECUTE(k, v) \
    :: d_step { (v) < VECTORS && meets(k, 0, v) && meets(k, 1, v) \
                && !is_dead(k, 0, v) && !is_dead(k, 1, v) -> \
        POSITION(k, 0) = POSITION(k, 0) + 1; POSITION(k, 1) = POSITION(k, 1) + 1; \
        executed = executed | (1 << (v)); \
        SAY("replica %d executes vector %d\n", k, v); \
        /* INV-5 */ \
        assert(!HAS(dead, v)); skip }
#endif

#define REPLICA(k) WORK(k, 0) WORK(k, 1) EXECUTE(k, 0) EXECUTE(k, 1) EXECUTE(k, 2)

#define all_done(k) (POSITION(k, 0) == LENGTH && POSITION(k, 1) == LENGTH)

init {
    /* Stuck before every worker is through: an invalid end state. */
    do
    STAMP SINGLE(0) SINGLE(1)
    SEAL(0, 0) SEAL(0, 1) SEAL(0, 2) SEAL(1, 0) SEAL(1, 1) SEAL(1, 2) SEAL(2, 0) SEAL(2, 1) SEAL(2, 2)
    DECIDE(0, 0) DECIDE(0, 1) DECIDE(0, 2) DECIDE(1, 0) DECIDE(1, 1) DECIDE(1, 2)
#if LENGTH > 3
    DECIDE(0, 3) DECIDE(1, 3)
#endif
    REPLICA(0)
#if REPLICAS > 1
    REPLICA(1)
#endif
    :: all_done(0) && all_done(REPLICAS - 1) -> break
    od
}
