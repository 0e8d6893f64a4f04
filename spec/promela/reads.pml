/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linearizable reads without the log: a range QUERY to f+1 acceptors of the active epoch, as the
 * reader knows it. One change of epoch with one changed member; instances and values don't matter
 * here, only whether an instance is decided.
 *
 * INV-7: the answer contains every write that was acknowledged, or seen by anybody, before the read
 * began.
 */
#include "common.pml"

#ifndef INSTANCES
#define INSTANCES 4
#endif
#ifndef STAMPED
#define STAMPED 2
#endif
#ifndef READS
#define READS 2
#endif
#define MEMORIES 4
#define QUORUM 2
#define FIRST 7                   /* members of epoch 1: 0, 1, 2 */
#define SECOND 11                 /* members of epoch 2: 0, 1, 3 */
#define MEMBERS(e) ((e) == 1 -> FIRST : SECOND)

#define ISSUED 1
#define PROPOSING 3
#define ACTIVE 4

byte phase2;                      /* of epoch 2; epoch 1 is active from the start */
byte promised, E;
byte floor[MEMORIES];             /* as an epoch */
byte end[MEMORIES];
byte votes1[INSTANCES], votes2[INSTANCES];
byte acknowledged;                /* everything below is executed and known to somebody */

/* The reader. */
byte reads, asks, answers, largest, begun_at;

hidden byte h_i;

#define decided(i) (COUNT(votes1[i] & FIRST) >= QUORUM || COUNT(votes2[i] & SECOND) >= QUORUM)

/* ---- Writes and the change of epoch ------------------------------------------------------- */

/* Behind the last instance nothing is modelled. */
#define proposed2(i) ((phase2 >= PROPOSING && (i) <= E) || phase2 == ACTIVE)
#ifdef MUT_VOTE_WITHOUT_END
#define raise_end(m, i)
#else
#define raise_end(m, i) end[m] = MAX(end[m], (i) + 1)
#endif
#define VOTE(m, i) \
    :: d_step { (i) < STAMPED && m < 3 && floor[m] == 1 && !HAS(votes1[i], m) -> \
        votes1[i] = votes1[i] | (1 << (m)); raise_end(m, i); \
        SAY("acceptor %d votes for instance %d in epoch 1\n", m, i); skip } \
    :: d_step { proposed2(i) && HAS(SECOND, m) && floor[m] != 0 && !HAS(votes2[i], m) -> \
        votes2[i] = votes2[i] | (1 << (m)); raise_end(m, i); \
        SAY("acceptor %d votes for instance %d in epoch 2\n", m, i); skip }

#define PROMISE(m) \
    :: d_step { phase2 == ISSUED && !HAS(promised, m) -> \
        floor[m] = 2; promised = promised | (1 << (m)); E = MAX(E, end[m]); \
        SAY("acceptor %d promises epoch 2, end %d\n", m, end[m]); skip }

#define ENABLE(m) \
    :: d_step { phase2 >= PROPOSING && floor[m] != 2 && HAS(SECOND, m) -> \
        floor[m] = 2; end[m] = MAX(end[m], E); \
        SAY("epoch 2 enables acceptor %d\n", m); skip }

inline activate() {
    h_i = 0;
    do
    :: h_i <= E && COUNT(votes2[h_i] & SECOND) >= QUORUM -> h_i++
    :: else -> break
    od;
    if
    :: h_i > E -> phase2 = ACTIVE; SAY("epoch 2 is active\n")
    :: else
    fi
}

/* ---- Reads -------------------------------------------------------------------------------- */

#ifdef MUT_READ_BEFORE_ACTIVE
#define is_in_force(e) ((e) == 1 || phase2 >= PROPOSING)
#else
#define is_in_force(e) ((e) == 1 || phase2 == ACTIVE)
#endif

/* `asks`: the epoch that the reader knows; an old view too. */
#define BEGIN(e) \
    :: d_step { asks == 0 && reads < READS && is_in_force(e) -> \
        asks = e; begun_at = acknowledged; reads++; \
        SAY("a read begins in epoch %d; acknowledged below %d\n", e, acknowledged); skip }

#ifdef MUT_FLOOR_IGNORED
#define is_later(m) false
#else
#define is_later(m) (floor[m] > asks)
#endif
/* An old answer, to a read that begins later, where answers don't name their question. */
#ifdef MUT_OLD_ANSWER_COUNTS
#define takes_answers (reads < READS)
#define answers_of (asks == 0 -> 1 : asks)
#else
#define takes_answers (asks != 0)
#define answers_of asks
#endif
#define ANSWER(m) \
    :: d_step { takes_answers && HAS(MEMBERS(answers_of), m) && !HAS(answers, m) && floor[m] != 0 -> \
        if \
        :: asks != 0 && is_later(m) -> asks = 0; answers = 0; largest = 0; begun_at = 0; \
            SAY("acceptor %d is in a later epoch: all is discarded\n", m) \
        :: else -> answers = answers | (1 << (m)); largest = MAX(largest, end[m]); \
            SAY("acceptor %d answers end %d\n", m, end[m]) \
        fi; skip }

#ifdef MUT_F_ANSWERS
#define ENOUGH (QUORUM - 1)
#else
#define ENOUGH QUORUM
#endif

/* Everything below `largest` is decided: it can be executed here; then the reader answers. */
#ifdef MUT_NO_WAIT
#define is_executed true
#define position 0
#else
#define is_executed ((largest < 1 || decided(0)) && (largest < 2 || decided(1)) \
                     && (largest < 3 || decided(2)) \
                     && (largest < INSTANCES || decided(INSTANCES - 1)))
#define position largest
#endif

init {
    d_step { floor[0] = 1; floor[1] = 1; floor[2] = 1 }
    do
    VOTE(0, 0) VOTE(1, 0) VOTE(2, 0) VOTE(3, 0) VOTE(0, 1) VOTE(1, 1) VOTE(2, 1) VOTE(3, 1)
    VOTE(0, 2) VOTE(1, 2) VOTE(2, 2) VOTE(3, 2)
#if INSTANCES > 3
    VOTE(0, 3) VOTE(1, 3) VOTE(2, 3) VOTE(3, 3)
#endif
    :: d_step { acknowledged < INSTANCES && decided(acknowledged) ->
        acknowledged++; SAY("instance %d is acknowledged\n", acknowledged - 1); skip }
    :: d_step { phase2 == 0 -> phase2 = ISSUED; SAY("epoch 2 is issued\n"); skip }
    PROMISE(0) PROMISE(1) PROMISE(2)
    :: d_step { phase2 == ISSUED && COUNT(promised) >= QUORUM -> phase2 = PROPOSING; skip }
    ENABLE(0) ENABLE(1) ENABLE(3)
    :: d_step { phase2 == PROPOSING -> activate(); skip }
    BEGIN(1) BEGIN(2)
    ANSWER(0) ANSWER(1) ANSWER(2) ANSWER(3)
    :: d_step { asks != 0 && COUNT(answers) >= ENOUGH && is_executed ->
        SAY("the read answers from everything below %d\n", position);
        /* INV-7 */
        assert(position >= begun_at);
        asks = 0; answers = 0; largest = 0; begun_at = 0; skip }
    :: break
    od
}
