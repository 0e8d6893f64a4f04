/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints and TRIM over two partitions: 2g+1 = 3 replicas, g = 1. A replica executes both
 * partitions, one command of which takes effect in both at once; makes checkpoints, first in
 * memory and then durable; reports them; may be killed, and comes back from its durable one; one of
 * them may be lost for good. Acceptors and leader trim by the reports. [T-CHECKPOINT] [T-QUORUM]
 *
 * INV-6: whoever is lost, a replica that is there has a durable checkpoint that covers all that is
 * trimmed, in both partitions. INV-5: no checkpoint holds half of a command.
 */
#include "common.pml"

#ifndef LENGTH
#define LENGTH 2                  /* instances of a partition */
#endif
#define REPLICAS 3
#define G 1

/* The command over both partitions: its instance in each. */
#define FIRST_PLACE 1
#define SECOND_PLACE 1

byte done[2 * REPLICAS];          /* executed */
byte durable[2 * REPLICAS];       /* the durable cut */
byte report[2 * REPLICAS];        /* the largest that acceptors have heard of */
byte trim[2];
byte lost = REPLICAS;             /* who is lost for good; REPLICAS: nobody */

hidden byte h_a, h_b, h_c, h_n;

#define DONE(k, p) done[(k) * 2 + (p)]
#define DURABLE(k, p) durable[(k) * 2 + (p)]
#define REPORT(k, p) report[(k) * 2 + (p)]
#define straddled(a, b) (((a) > FIRST_PLACE) != ((b) > SECOND_PLACE))
#define covers(k, a, b) (DURABLE(k, 0) >= (a) && DURABLE(k, 1) >= (b))
#define reported(k, a, b) (REPORT(k, 0) >= (a) && REPORT(k, 1) >= (b))
#define is_there(k) (lost != (k))

/* A command of one partition, or the one of both: together or, a worker after the other. */
#define EXECUTE(k) \
    :: d_step { is_there(k) && DONE(k, 0) < LENGTH && DONE(k, 0) != FIRST_PLACE -> \
        DONE(k, 0) = DONE(k, 0) + 1; skip } \
    :: d_step { is_there(k) && DONE(k, 1) < LENGTH && DONE(k, 1) != SECOND_PLACE -> \
        DONE(k, 1) = DONE(k, 1) + 1; skip } \
    EXECUTE_BOTH(k)
#ifdef MUT_STRADDLE
/* Workers pass the barrier one after the other, and a checkpoint may be taken in between. */
#define EXECUTE_BOTH(k) \
    :: d_step { is_there(k) && DONE(k, 0) == FIRST_PLACE && DONE(k, 1) == SECOND_PLACE -> \
        DONE(k, 0) = FIRST_PLACE + 1; skip } \
    :: d_step { is_there(k) && DONE(k, 0) == FIRST_PLACE + 1 && DONE(k, 1) == SECOND_PLACE -> \
        DONE(k, 1) = SECOND_PLACE + 1; skip }
#else
#define EXECUTE_BOTH(k) \
    :: d_step { is_there(k) && DONE(k, 0) == FIRST_PLACE && DONE(k, 1) == SECOND_PLACE -> \
        DONE(k, 0) = FIRST_PLACE + 1; DONE(k, 1) = SECOND_PLACE + 1; skip }
#endif

#define CHECKPOINT(k) \
    :: d_step { is_there(k) && !(DURABLE(k, 0) == DONE(k, 0) && DURABLE(k, 1) == DONE(k, 1)) -> \
        DURABLE(k, 0) = DONE(k, 0); DURABLE(k, 1) = DONE(k, 1); \
        SAY("replica %d makes the cut %d, %d\n", k, DONE(k, 0), DONE(k, 1)); \
        assert(!straddled(DURABLE(k, 0), DURABLE(k, 1))); skip }

/* TRIM of each partition is a message of its own. */
#ifdef MUT_NOT_DURABLE
#define SHOWN(k, p) DONE(k, p)
#else
#define SHOWN(k, p) DURABLE(k, p)
#endif
#ifdef MUT_TRIM_PER_PARTITION
#define TELL(k) TELL_ONE(k, 0) TELL_ONE(k, 1)
#define TELL_ONE(k, p) \
    :: d_step { is_there(k) && REPORT(k, p) < SHOWN(k, p) -> REPORT(k, p) = SHOWN(k, p); skip }
#else
#define TELL(k) \
    :: d_step { is_there(k) && (REPORT(k, 0) < SHOWN(k, 0) || REPORT(k, 1) < SHOWN(k, 1)) -> \
        REPORT(k, 0) = SHOWN(k, 0); REPORT(k, 1) = SHOWN(k, 1); skip }
#endif

/* A replica is killed, and comes back with what is durable. */
#define RESTART(k) \
    :: d_step { is_there(k) && !(DURABLE(k, 0) == DONE(k, 0) && DURABLE(k, 1) == DONE(k, 1)) -> \
        DONE(k, 0) = DURABLE(k, 0); DONE(k, 1) = DURABLE(k, 1); \
        SAY("replica %d restarts\n", k); skip }
#define LOSE(k) :: d_step { lost == REPLICAS -> lost = k; SAY("replica %d is lost\n", k); skip }

/* A replica that is behind what is trimmed fetches a checkpoint. */
#define FETCH(k, from) \
    :: d_step { is_there(k) && is_there(from) && (DONE(k, 0) < trim[0] || DONE(k, 1) < trim[1]) \
                && covers(from, DONE(k, 0), DONE(k, 1)) && covers(from, trim[0], trim[1]) -> \
        DONE(k, 0) = DURABLE(from, 0); DONE(k, 1) = DURABLE(from, 1); \
        DURABLE(k, 0) = DONE(k, 0); DURABLE(k, 1) = DONE(k, 1); \
        SAY("replica %d fetches the checkpoint of %d\n", k, from); skip }

#ifdef MUT_TRIM_BY_G
#define NEEDED G
#else
#define NEEDED (G + 1)
#endif
#define standing(a, b) (reported(0, a, b) + reported(1, a, b) + reported(2, a, b))
#define standing0(a) ((REPORT(0, 0) >= (a)) + (REPORT(1, 0) >= (a)) + (REPORT(2, 0) >= (a)))
#define standing1(b) ((REPORT(0, 1) >= (b)) + (REPORT(1, 1) >= (b)) + (REPORT(2, 1) >= (b)))
#ifdef MUT_TRIM_PER_PARTITION
#define may_trim(a, b) (standing0(a) >= NEEDED && standing1(b) >= NEEDED)
#else
#define may_trim(a, b) (standing(a, b) >= NEEDED)
#endif
#define TRIM(a, b) \
    :: d_step { (a) >= trim[0] && (b) >= trim[1] && (a) + (b) > trim[0] + trim[1] && may_trim(a, b) -> \
        trim[0] = a; trim[1] = b; SAY("trimmed to %d, %d\n", a, b); skip }

/* Whether a replica that is there, and was not killed since, can give what is trimmed. */
#define is_covered ((is_there(0) && covers(0, trim[0], trim[1])) \
                    || (is_there(1) && covers(1, trim[0], trim[1])) \
                    || (is_there(2) && covers(2, trim[0], trim[1])))

#define EACH(X) X(0) X(1) X(2)

init {
    do
    EACH(EXECUTE) EACH(CHECKPOINT) EACH(TELL) EACH(RESTART) EACH(LOSE)
    FETCH(0, 1) FETCH(0, 2) FETCH(1, 0) FETCH(1, 2) FETCH(2, 0) FETCH(2, 1)
    TRIM(0, 1) TRIM(0, 2) TRIM(1, 0) TRIM(1, 1) TRIM(1, 2) TRIM(2, 0) TRIM(2, 1) TRIM(2, 2)
    /* INV-6 */
    :: d_step { !is_covered -> assert(false); skip }
    :: break
    od
}
