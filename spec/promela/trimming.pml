/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints, TRIM and catching up with two partitions and no cut over them: 2g+1 = 3 replicas,
 * g = 1, that execute one living command over both partitions, and other ones in each. Every
 * partition of a replica is synced by itself and reported by itself, and is trimmed by g+1 reports
 * of its own ([T-CHECKPOINT], [T-QUORUM]). Replicas lose power; one may be lost for good. One that
 * is below a trim point takes another one's state over, all partitions together ([X-CATCHUP],
 * [X-HOLD], [X-INSTALL]); one transfer at a time.
 *
 * INV-6: whoever is lost, each partition's trim point is covered by a durable checkpoint of a
 * replica that is there. INV-5: no partition passes the command without effect. And whoever is
 * there gets to the end.
 */
#include "common.pml"

#ifndef LENGTH
#define LENGTH 2                  /* instances of a partition */
#endif
#define REPLICAS 3
#define NOBODY REPLICAS
#define G 1

byte place[2];                    /* of the command */

/* By replica and partition: position, what of it survives a power failure, and whether the command's
   outcome is on record. An outcome that may be forgotten is, from memory and disk at once: one that is
   kept longer only says what is true. */
byte next[2 * REPLICAS], synced[2 * REPLICAS];
bool kept[2 * REPLICAS];
byte trim[2];
byte lost = NOBODY;               /* for good */

/* The transfer: how far it is, between whom, and what was copied. */
#define IDLE 0
#define ONE_OPEN 1                /* the first partition's copy is open */
#define NOTED 2                   /* all is on the receiver's disk, and noted there */
byte stage;
byte source = NOBODY, receiver = NOBODY;
bool is_copied[2];
byte copy_next[2];
bool copy_kept[2];

hidden byte h_n;

#define NEXT(k, p) next[(k) * 2 + (p)]
#define SYNCED(k, p) synced[(k) * 2 + (p)]
#define KEPT(k, p) kept[(k) * 2 + (p)]
#define is_there(k) (lost != (k))
#define is_installing(k) (stage == NOTED && receiver == (k))

/* ---- Execution ------------------------------------------------------------------------------ */

#ifdef MUT_WORKS_ON
#define may_work(k) is_there(k)
#else
#define may_work(k) (is_there(k) && !is_installing(k))
#endif
/* What is trimmed can't be learned any more. */
#define is_next(k, p) (may_work(k) && NEXT(k, p) < LENGTH && NEXT(k, p) >= trim[p])
#define stands(k, p) (NEXT(k, p) == place[p])
#define has_passed(k, p) (NEXT(k, p) > place[p])

#define WORK(k, p) \
    :: d_step { is_next(k, p) && !stands(k, p) -> NEXT(k, p) = NEXT(k, p) + 1; skip } \
    :: d_step { is_next(k, p) && stands(k, p) && has_passed(k, 1 - (p)) -> \
        SAY("replica %d, partition %d: asks the other one\n", k, p); \
        /* INV-5: no outcome is on record, so the command would be dead */ \
        assert(KEPT(k, 1 - (p))); \
        KEPT(k, p) = true; NEXT(k, p) = NEXT(k, p) + 1; skip } \
    :: d_step { is_next(k, p) && (p) == 0 && stands(k, 0) && stands(k, 1) -> \
        SAY("replica %d executes the command\n", k); \
        KEPT(k, 0) = true; NEXT(k, 0) = NEXT(k, 0) + 1; skip }

/* [V-FORGET] */
#ifdef MUT_NO_HOLD
#define is_held(k) false
#else
#define is_held(k) (stage == ONE_OPEN && source == (k))
#endif
#define FORGET(k) \
    if \
    :: SYNCED(k, 0) > place[0] && SYNCED(k, 1) > place[1] && !is_held(k) -> \
        KEPT(k, 0) = false; KEPT(k, 1) = false \
    :: else \
    fi

#define SYNC(k, p) \
    :: d_step { is_there(k) && SYNCED(k, p) != NEXT(k, p) -> \
        SYNCED(k, p) = NEXT(k, p); FORGET(k); \
        SAY("replica %d, partition %d: synced at %d\n", k, p, NEXT(k, p)); skip }

/* ---- Faults --------------------------------------------------------------------------------- */

#define has_unsynced(k) (NEXT(k, 0) != SYNCED(k, 0) || NEXT(k, 1) != SYNCED(k, 1))
#define END_TRANSFER \
    stage = IDLE; source = NOBODY; receiver = NOBODY; is_copied[0] = false; is_copied[1] = false; \
    copy_next[0] = 0; copy_next[1] = 0; copy_kept[0] = false; copy_kept[1] = false
#ifdef MUT_NO_NOTE
#define breaks_off(k) (source == (k) || receiver == (k))
#else
#define breaks_off(k) (stage == ONE_OPEN && (source == (k) || receiver == (k)))
#endif
#define BREAK_OFF(k) \
    if \
    :: breaks_off(k) -> \
        h_n = source; END_TRANSFER; \
        if \
        :: h_n != NOBODY && is_there(h_n) -> FORGET(h_n) \
        :: else \
        fi \
    :: else \
    fi

#define FALL_BACK(k, p) \
    NEXT(k, p) = SYNCED(k, p); KEPT(k, p) = KEPT(k, p) && SYNCED(k, p) > place[p]
#define POWER(k) \
    :: d_step { is_there(k) && has_unsynced(k) -> \
        FALL_BACK(k, 0); FALL_BACK(k, 1); BREAK_OFF(k); \
        SAY("replica %d loses power: %d, %d\n", k, NEXT(k, 0), NEXT(k, 1)); skip }

/* What it had reported stays so. */
#define LOSE(k) \
    :: d_step { lost == NOBODY -> \
        NEXT(k, 0) = 0; NEXT(k, 1) = 0; KEPT(k, 0) = false; KEPT(k, 1) = false; \
        if \
        :: receiver == (k) -> stage = ONE_OPEN \
        :: else \
        fi; \
        lost = k; BREAK_OFF(k); SAY("replica %d is lost\n", k); skip }

/* ---- TRIM ----------------------------------------------------------------------------------- */

#ifdef MUT_TRIM_BY_G
#define NEEDED G
#else
#define NEEDED (G + 1)
#endif
#ifdef MUT_NOT_DURABLE
#define reports(k, p, t) ((is_there(k) -> NEXT(k, p) : SYNCED(k, p)) >= (t))
#else
#define reports(k, p, t) (SYNCED(k, p) >= (t))
#endif
#define reporters(p, t) (reports(0, p, t) + reports(1, p, t) + reports(2, p, t))
#define holds(k, p) (is_there(k) && SYNCED(k, p) >= trim[p])
#define is_held_by_somebody(p) (holds(0, p) || holds(1, p) || holds(2, p))
#define TRIM(p, t) \
    :: d_step { (t) > trim[p] && (t) <= LENGTH && reporters(p, t) >= NEEDED -> \
        trim[p] = t; SAY("partition %d is trimmed to %d\n", p, t); skip }

/* ---- Another replica's state ---------------------------------------------------------------- */

#define needs(k) (NEXT(k, 0) < trim[0] || NEXT(k, 1) < trim[1])
#define helps_in(k, j, p) (NEXT(k, p) < trim[p] && NEXT(j, p) >= trim[p])
/* First somebody who is far enough in all partitions, then somebody who is in some. */
#ifdef MUT_ASK_FOR_ALL
#define helps(k, j) (NEXT(j, 0) >= trim[0] && NEXT(j, 1) >= trim[1])
#else
#define helps(k, j) (helps_in(k, j, 0) || helps_in(k, j, 1))
#endif
#define COPY(j, p) \
    is_copied[p] = true; copy_next[p] = NEXT(j, p); copy_kept[p] = KEPT(j, p); \
    SAY("replica %d, partition %d: a copy of %d\n", j, p, NEXT(j, p))

#ifdef MUT_ALONE
#define NEXT_STAGE NOTED
#else
#define NEXT_STAGE ONE_OPEN
#endif
#define FETCH(k, j, p) \
    :: d_step { stage == IDLE && is_there(k) && is_there(j) && needs(k) && helps(k, j) -> \
        receiver = k; source = j; stage = NEXT_STAGE; COPY(j, p); skip }
/* Once all is at the receiver, the source doesn't matter any more. */
#define OPEN(j, p) \
    :: d_step { stage == ONE_OPEN && source == (j) && !is_copied[p] -> \
        COPY(j, p); stage = NOTED; source = NOBODY; FORGET(j); skip }

#ifdef MUT_GOES_BACK
#define is_put(k, p) (!is_copied[p] || NEXT(k, p) == copy_next[p])
#else
#define is_put(k, p) (!is_copied[p] || NEXT(k, p) >= copy_next[p])
#endif
#define PUT(k, p) \
    :: d_step { is_there(k) && is_installing(k) && !is_put(k, p) -> \
        NEXT(k, p) = copy_next[p]; KEPT(k, p) = copy_kept[p]; \
        SAY("replica %d puts partition %d at %d\n", k, p, copy_next[p]); skip }
#define END_INSTALL(k) \
    :: d_step { is_there(k) && is_installing(k) && is_put(k, 0) && is_put(k, 1) \
                && !has_unsynced(k) -> \
        END_TRANSFER; SAY("replica %d has installed it\n", k); skip }

#define OF(X) X(0) X(1) X(2)
#define OF_P(X) X(0, 0) X(0, 1) X(1, 0) X(1, 1) X(2, 0) X(2, 1)
#define FETCHES(p) FETCH(0, 1, p) FETCH(0, 2, p) FETCH(1, 0, p) FETCH(1, 2, p) FETCH(2, 0, p) FETCH(2, 1, p)

#define is_through(k) (!is_there(k) || NEXT(k, 0) == LENGTH && NEXT(k, 1) == LENGTH)

init {
    atomic {
        if
        :: place[0] = 0
        :: place[0] = LENGTH - 1
        fi;
        if
        :: place[1] = 0
        :: place[1] = LENGTH - 1
        fi
    }
    /* Stuck before all that are there are through: an invalid end state. */
    do
    OF_P(WORK) OF_P(SYNC) OF(POWER) OF(LOSE)
    TRIM(0, 1) TRIM(0, 2) TRIM(1, 1) TRIM(1, 2)
    FETCHES(0) FETCHES(1) OF_P(OPEN) OF_P(PUT) OF(END_INSTALL)
    /* INV-6 */
    :: d_step { !is_held_by_somebody(0) || !is_held_by_somebody(1) -> assert(false); skip }
    :: is_through(0) && is_through(1) && is_through(2) -> break
    od
}
