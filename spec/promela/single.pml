/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One partition: leader, acceptors, candidates over several epochs, repair, re-join and membership
 * change, trim with slot reuse. See README.md for the map to the code and for the bounds.
 *
 * Properties, checked where they could break:
 *   INV-1 agreement          no two quorums choose different values for an instance (`vote`)
 *   INV-2 votes remembered   a slot loses a vote only below `trim`; what an acceptor shows as its
 *                            vote is the last vote that it gave (`vote`, `shown`)
 *   INV-3 one value a round  no round of an instance gets two values (`propose`)
 *   INV-4 no gap             at hand-over everything below `next` is decided (`activate`)
 *   INV-6 nothing needed     only what is decided, and so may be in a checkpoint, is trimmed
 *                            (`trim_to`, `activate`)
 */
#include "common.pml"

/* ---- Bounds ------------------------------------------------------------------------------- */

#ifndef F
#define F 1             /* acceptors that may fail */
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif
#ifndef INSTANCES
#define INSTANCES 3     /* 0 .. INSTANCES-1, markers included */
#endif
#ifndef STAMPED
#define STAMPED 2       /* instances that leader 1 stamps */
#endif
#ifndef SLOTS
#define SLOTS 2         /* N */
#endif
#ifndef REPAIRS
#define REPAIRS 1       /* instances of `recover`, one round each */
#endif
#ifndef REPAIRED
#define REPAIRED 1      /* instances that may be repaired, from 0 on */
#endif
#ifndef TRIMS
#define TRIMS 1         /* how far trimming may go */
#endif
#ifndef FRESH
#define FRESH 1         /* memories that start as strangers and may join */
#endif

/*
 * Memories, not nodes: a node that restarts without its memory goes on as another memory. Memory i
 * of the fresh ones takes the place of memory OLD-1-i. With SAME_NODE it sits at the same address,
 * and begins when the old one is gone. Without, it is another node, and the old one lives on. A
 * memory that never acts again has crashed: that needs no step of its own.
 */
#define OLD (2 * F + 1)
#define MEMORIES (OLD + FRESH)
#define OLDS ((1 << OLD) - 1)
#define QUORUM (F + 1)

/* Rounds: the base round of epoch e, then one for each repairer's lane. */
#define PER_EPOCH (1 + REPAIRS)
#define BASE(e) (((e) - 1) * PER_EPOCH + 1)
#define EPOCH(r) (((r) - 1) / PER_EPOCH + 1)
#define ROUNDS (EPOCHS * PER_EPOCH)       /* 1 .. ROUNDS; 0 is none */
#ifdef MUT_SAME_LANE
#define LANE(e, k) (BASE(e) + 1)
#else
#define LANE(e, k) (BASE(e) + 1 + (k))
#endif

/* Values. */
#define NOTHING 0
#define NOOP 1
#define SKIPPED 2                 /* no proposal: f+1 that go on hold the vote already */
#define COMMAND(e) (2 + (e))      /* what leader e stamps: each has its own commands */
#define MARKER(e) (2 + EPOCHS + (e))
#define COMMAND_AGAIN(e) (2 + 2 * EPOCHS + (e))  /* of a leader that forgot what it stamped */

/* Phases of an epoch. In the store: ISSUED; READING and PROPOSING are *writing*; ACTIVE. */
#define ISSUED 1
#define READING 2
#define PROPOSING 3
#define ACTIVE 4

/* ---- State -------------------------------------------------------------------------------- */

/* The store. */
byte last = 1;
byte phase_[EPOCHS];
byte members_[EPOCHS];
byte needed_[EPOCHS - 1];         /* the epochs whose promises a candidate needs */

/* The candidate of each epoch. */
byte promised_[EPOCHS - 1];        /* whose range promises it has */
byte T_[EPOCHS - 1];
byte E_[EPOCHS - 1];

/* Acceptors. */
byte strangers = ((1 << FRESH) - 1) << OLD;
byte gone;                        /* memories that were lost before a fresh one took the place */
byte floor[MEMORIES];
byte trim[MEMORIES];
byte end[MEMORIES];
short slots[MEMORIES * SLOTS];    /* inst, rnd, vrnd: four bits each */

/* PHASE2A and PHASE2B as facts. */
byte proposal[INSTANCES * ROUNDS];
byte votes[INSTANCES * ROUNDS];

/* Repairers: epoch (0: not begun), instance, who promised, highest vote shown, whether proposed. */
#if REPAIRS > 0
byte repair_epoch[REPAIRS];
byte repair_inst[REPAIRS];
byte repair_promised[REPAIRS];
byte repair_best[REPAIRS];
byte repair_done[REPAIRS];
#endif

byte reading;                     /* the instance that a candidate reads; 0 between steps */

/* What was chosen first; for the checks alone. */
byte decided[INSTANCES];

/* Scratch of d_steps, never kept from one step to the next. */
hidden byte h_r, h_i, h_best, h_agreeing, h_v, h_m, h_ok;

#define AT(i, r) ((i) * ROUNDS + (r) - 1)
#define phase(e) phase_[(e) - 1]
#define members(e) members_[(e) - 1]
#define promised(e) promised_[(e) - 2]
#define T(e) T_[(e) - 2]
#define E(e) E_[(e) - 2]
#define slot(m, i) slots[(m) * SLOTS + (i) % SLOTS]
#define slot_inst(m, i) (slot(m, i) & 15)
#define slot_rnd(m, i) ((slot(m, i) >> 4) & 15)
#define slot_vrnd(m, i) (slot(m, i) >> 8)
#define SLOT(inst, rnd, vrnd) ((inst) | ((rnd) << 4) | ((vrnd) << 8))

/* ---- Who is who --------------------------------------------------------------------------- */

/* The old memory whose place a fresh one takes. */
#define PLACE(m) (2 * OLD - 1 - (m))
#ifdef SAME_NODE
/* Votes are counted by node: both memories of a node are one voter. */
#if FRESH == 1
#define NODES(mask) (((mask) & OLDS) | (HAS(mask, OLD) << PLACE(OLD)))
#else
#define NODES(mask) (((mask) & OLDS) | (HAS(mask, OLD) << PLACE(OLD)) | (HAS(mask, OLD + 1) << PLACE(OLD + 1)))
#endif
#else
#define NODES(mask) (mask)
#endif

#define acts(m) (!HAS(gone | strangers, m))

/* Votes in round r that a learner counts: of nodes in that epoch's configuration. */
#define COUNTED(i, r) COUNT(NODES(votes[AT(i, r)]) & NODES(members(EPOCH(r))))

/* ---- Acceptor ----------------------------------------------------------------------------- */

/* `locate`: whether the instance has a slot here. [A-WINDOW] */
#define in_window(m, i) (trim[m] <= (i) && (i) < trim[m] + SLOTS)
#ifdef MUT_SLOT_LOST
#define locate(m, i) (trim[m] <= (i) && slot_inst(m, i) <= (i))
#else
#define locate(m, i) (in_window(m, i) && slot_inst(m, i) <= (i))
#endif

/* `not_preempted`: in a slot taken over from an older instance `floor` alone holds. [A-PREEMPT] */
#ifdef MUT_SLOT_FORGETS_FLOOR
#define promise_of(m, i) \
    (slot_inst(m, i) == (i) -> MAX(slot_rnd(m, i), floor[m]) : 0)
#else
#define promise_of(m, i) \
    (slot_inst(m, i) == (i) -> MAX(slot_rnd(m, i), floor[m]) : floor[m])
#endif

#define vote_of(m, i) (slot_inst(m, i) == (i) -> slot_vrnd(m, i) : 0)

/* A PHASE2A is on its way: stamped, re-proposed after all was read, or of a repairer. */
#define sent(i, r) (proposal[AT(i, r)] != NOTHING && proposal[AT(i, r)] != SKIPPED \
                    && (r != BASE(EPOCH(r)) || phase(EPOCH(r)) >= PROPOSING))

#define can_vote(m, i, r) (sent(i, r) && !HAS(votes[AT(i, r)], m) && acts(m) \
                           && locate(m, i) && (r) >= promise_of(m, i))

inline vote(m, i, r) {
    SAY("acceptor %d votes for value %d of instance %d in round %d\n", m, proposal[AT(i, r)], i, r);
    /* INV-2: a slot is used again only for what was trimmed. */
    assert(slot_inst(m, i) == i || slot_vrnd(m, i) == 0
           || slot_inst(m, i) < trim[m]);
    slot(m, i) = SLOT(i, r, r);
    end[m] = MAX(end[m], i + 1);
    votes[AT(i, r)] = votes[AT(i, r)] | (1 << m);
    if
    :: COUNTED(i, r) >= QUORUM ->
        SAY("  instance %d is decided: value %d\n", i, proposal[AT(i, r)]);
        /* INV-1 */
        assert(decided[i] == NOTHING || decided[i] == proposal[AT(i, r)]);
        decided[i] = proposal[AT(i, r)]
    :: else
    fi
}

/* TRIM: replicas have checkpoints of what was decided, and only of that (trimming.pml). */
#ifdef MUT_TRIM_UNDECIDED
#define can_trim(m) (acts(m) && trim[m] < TRIMS)
#else
#define can_trim(m) (acts(m) && trim[m] < TRIMS && decided[trim[m]] != NOTHING)
#endif

inline trim_to(m) {
    SAY("acceptor %d trims to %d\n", m, trim[m] + 1);
    trim[m] = trim[m] + 1;
    end[m] = MAX(end[m], trim[m]);
    /* INV-6 */
    assert(decided[trim[m] - 1] != NOTHING)
}

/*
 * What acceptor m tells a proposer in round r about instance i: the round of its vote. Where it
 * can't answer any more (it trimmed, crashed or promised a later round), it may have answered
 * before: then it told of its last vote below r. Sets h_v.
 */
inline shown(m, i, r) {
    h_v = 0;
    h_r = 1;
    do
    :: h_r < r ->
        if
        :: HAS(votes[AT(i, h_r)], m) -> h_v = h_r
        :: else
        fi;
        h_r++
    :: else -> break
    od;
    if
    :: acts(m) && locate(m, i) && promise_of(m, i) <= r && vote_of(m, i) < r ->
#ifdef MUT_FORGET
        h_v = vote_of(m, i)
#else
        /* INV-2 */
        assert(h_v == vote_of(m, i))
#endif
#ifdef MUT_REJECT_IS_NO_VOTE
    :: acts(m) && !locate(m, i) -> h_v = 0
#endif
    :: else
    fi;
    h_r = 0
}

/* ---- Any proposer ------------------------------------------------------------------------- */

inline propose(i, r, v) {
    /* INV-3 */
    assert(proposal[AT(i, r)] == NOTHING || proposal[AT(i, r)] == (v));
    proposal[AT(i, r)] = v
}

/* ---- Candidate ---------------------------------------------------------------------------- */

/*
 * Configurations that epoch e needs promises of: the last active one, every later one *writing*,
 * as the store had them when it issued the epoch. The compare-and-swaps keep them so. [C-PROMISE] [C-FENCE]
 */
#define active_after(c) (((c) < last && phase((c) + 1) == ACTIVE) \
                         || ((c) + 1 < last && phase((c) + 2) == ACTIVE))
#ifdef MUT_WRITING_NOT_NEEDED
#define is_needed(c) ((c) <= last && phase(c) == ACTIVE && !active_after(c))
#else
#define is_needed(c) ((c) <= last && phase(c) >= READING && !active_after(c))
#endif
#define needed(c, e) HAS(needed_[(e) - 2], c)

#ifdef MUT_CAS
#define is_last(e) true
#else
#define is_last(e) (last == (e))
#endif

/* Whether those in `mask` are f+1 of every configuration needed. */
#define enough_of(c, e, mask) (!needed(c, e) || COUNT((mask) & members(c)) >= QUORUM)
#if EPOCHS == 2
#define enough(e, mask) enough_of(1, e, mask)
#define needed_members(e) members(1)
#else
#define enough(e, mask) (enough_of(1, e, mask) && enough_of(2, e, mask))
#define needed_members(e) ((needed(1, e) -> members(1) : 0) | (needed(2, e) -> members(2) : 0))
#endif

/* Step 1. Counts for a configuration only if this very memory is its member. */
#ifdef MUT_OLD_NONCE_COUNTS
#define is_asked(e, m) ((HAS(needed_members(e), m) || (m >= OLD && HAS(needed_members(e), PLACE(m)))))
#define counted_as(e, m) (HAS(needed_members(e), m) -> m : PLACE(m))
#else
#define is_asked(e, m) (HAS(needed_members(e), m))
#define counted_as(e, m) (m)
#endif
#define can_promise(e, m) (phase(e) == ISSUED && is_last(e) && is_asked(e, m) \
                           && !HAS(promised(e), counted_as(e, m)) \
                           && acts(m) && floor[m] <= BASE(e))

inline promise(e, m) {
    SAY("acceptor %d promises epoch %d: trim %d, end %d\n", m, e, trim[m], end[m]);
#ifndef MUT_NO_FLOOR
    floor[m] = BASE(e);
#endif
    promised(e) = promised(e) | (1 << counted_as(e, m));
    T(e) = MAX(T(e), trim[m]);
#ifdef MUT_END_OF_ONE
    E(e) = end[m]
#else
    E(e) = MAX(E(e), MAX(end[m], trim[m]))
#endif
}

/* One that promised late: another can stand in for it. E stays, T may grow (`raise_T`). */
#define can_promise_late(e, m) (phase(e) == READING && is_asked(e, m) \
                                && !HAS(promised(e), counted_as(e, m)) \
                                && acts(m) && floor[m] <= BASE(e))

inline promise_late(e, m) {
    SAY("acceptor %d promises epoch %d late\n", m, e);
#ifndef MUT_NO_FLOOR
    floor[m] = BASE(e);
#endif
    promised(e) = promised(e) | (1 << counted_as(e, m))
}

/* Step 2: compare-and-swap, fails once a later epoch exists. [E-ISSUE] */
#define can_mark_writing(e) (phase(e) == ISSUED && is_last(e) && enough(e, promised(e)))

inline mark_writing(e) {
    SAY("epoch %d is writing: T %d, E %d\n", e, T(e), E(e));
    phase(e) = READING
}

/* A REJECT(trimmed), a late promise or a report: T grows, up to behind the marker. */
#define can_raise_T(e, m) ((phase(e) == READING || phase(e) == PROPOSING) \
                           && trim[m] > T(e) && trim[m] <= E(e) + 1 && acts(m))

inline raise_T(e, m) {
    SAY("candidate %d raises T to %d\n", e, trim[m]);
    T(e) = trim[m]
}

/*
 * All is read in one step: no acceptor sees the difference before the end, and what was voted below
 * the round promised doesn't change. `mask`: whose answers about this instance came first. [C-READ]
 */
#ifdef MUT_QUERY_IS_PROMISE
#define asked(e) (((1 << MEMORIES) - 1) & ~(gone | strangers) & needed_members(e))
#else
#define asked(e) (promised(e))
#endif
#define can_read(e, mask) (((mask) & ~asked(e)) == 0 && enough(e, mask))

#ifdef MUT_SKIP_WITH_F
#define SKIP_QUORUM F
#else
#define SKIP_QUORUM QUORUM
#endif
#ifdef MUT_SKIP_NOT_CONTINUING
#define continuing(e) (promised(e))
#else
#define continuing(e) (promised(e) & members(e))
#endif

/* The memory that answers now at the place of an old one. */
#define FRESH_OF(m) (2 * OLD - 1 - (m))
#define is_replaced(m) ((m) < OLD && FRESH_OF(m) < MEMORIES && HAS(gone, m))

inline read(e, i, mask) {
    h_best = 0;
    h_agreeing = 0;
    h_m = 0;
    do
    :: h_m < MEMORIES ->
        if
        :: HAS(mask, h_m) ->
#ifdef MUT_OLD_NONCE_COUNTS
            if
            :: is_replaced(h_m) -> shown(FRESH_OF(h_m), i, BASE(e))
            :: else -> shown(h_m, i, BASE(e))
            fi;
#else
            shown(h_m, i, BASE(e));
#endif
            if
            :: h_v > h_best -> h_best = h_v; h_agreeing = 1 << h_m
            :: h_v == h_best -> h_agreeing = h_agreeing | (1 << h_m)
            :: else
            fi
        :: else
        fi;
        h_m++
    :: else -> break
    od;
    if
    :: h_best != 0 && COUNT(h_agreeing & continuing(e)) >= SKIP_QUORUM ->
        SAY("candidate %d skips instance %d\n", e, i);
        proposal[AT(i, BASE(e))] = SKIPPED
    :: else ->
        proposal[AT(i, BASE(e))] = (h_best == 0 -> NOOP : proposal[AT(i, h_best)]);
        SAY("candidate %d will propose value %d for instance %d\n", e, proposal[AT(i, BASE(e))], i)
    fi
}

/* Steps 3 and 4: all proposals go out, the marker behind them. */

/* The last epoch's marker may lie behind the last instance: then it isn't modelled. */
#define has_place(e) (E(e) < INSTANCES || (e) == EPOCHS)

inline finish_reads(e) {
    SAY("candidate %d proposes, with its marker at %d\n", e, E(e));
    phase(e) = PROPOSING;
    if
    :: E(e) >= T(e) && E(e) < INSTANCES -> propose(E(e), BASE(e), MARKER(e))
    :: else
    fi
}

/* ENABLE, delayed or repeated at will; names the memory. Only raises. [A-ENABLE] [C-LATE] */
#ifdef MUT_ENABLE_BEFORE_READ
#define may_enable(e) (phase(e) >= READING)
#else
#define may_enable(e) (phase(e) >= PROPOSING)
#endif
#define can_enable(e, m) (may_enable(e) && HAS(members(e), m) && !HAS(gone, m) \
                          && (HAS(strangers, m) || floor[m] < BASE(e) || trim[m] < T(e) \
                              || end[m] < E(e)))

inline enable(e, m) {
    SAY("epoch %d enables acceptor %d\n", e, m);
    strangers = strangers & ~(1 << m);
    floor[m] = MAX(floor[m], BASE(e));
    trim[m] = MAX(trim[m], T(e));
    end[m] = MAX(end[m], MAX(E(e), trim[m]))
}

/* Step 4: held, skipped or trimmed, up to and including the marker, by f+1 members. [C-SEAL] [C-TRIMMED] */
#ifdef MUT_ACTIVE_TOO_EARLY
#define CONFIRMED F
#else
#define CONFIRMED QUORUM
#endif
#define is_confirmed(e, i) ((i) < T(e) || (i) > E(e) || proposal[AT(i, BASE(e))] == SKIPPED \
                            || COUNTED(i, BASE(e)) >= CONFIRMED)
#define has_trimmed(e, m) (HAS(members(e), m) && trim[m] >= T(e))

/* Whether everything is confirmed; sets h_ok. */
inline confirmed(e) {
    h_ok = true;
    h_i = 0;
    do
    :: h_i < INSTANCES -> h_ok = h_ok && is_confirmed(e, h_i); h_i++
    :: else -> break
    od;
    h_v = 0;
    h_m = 0;
    do
    :: h_m < MEMORIES ->
        if
        :: has_trimmed(e, h_m) -> h_v++
        :: else
        fi;
        h_m++
    :: else -> break
    od;
#ifndef MUT_NO_TRIM_WAIT
    h_ok = h_ok && h_v >= QUORUM;
#endif
}

/* Step 5 in the same step: the leader stamps from E + 1 on, whatever it will ever stamp. [C-HANDOVER] */
inline activate(e) {
    confirmed(e);
    if
    :: h_ok ->
        SAY("epoch %d is active\n", e);
        phase(e) = ACTIVE;
        h_i = 0;
        do
        :: h_i <= E(e) && h_i < INSTANCES ->
            /* INV-4, INV-6 */
            assert(decided[h_i] != NOTHING);
            h_i++
        :: else -> break
        od;
#ifdef MUT_NEXT_IS_E
        h_i = E(e);
#endif
        do
        :: h_i < INSTANCES && (e < EPOCHS || h_i <= E(e)) ->
            propose(h_i, BASE(e), COMMAND(e));
            h_i++
        :: else -> break
        od
    :: else
    fi
}

#define can_activate(e) (phase(e) == PROPOSING && is_last(e) \
                         && (E(e) < T(e) || E(e) == INSTANCES || COUNTED(E(e), BASE(e)) >= CONFIRMED))

/* Issues the next epoch. The controller names each memory as it knows it: perhaps an old one. */
#define can_issue(e) (last + 1 == (e))
#define can_join(m) (!HAS(members(last), m))

inline issue(e, who) {
    members(e) = who;
    needed_[e - 2] = (is_needed(1) -> 2 : 0) | (is_needed(2) -> 4 : 0);
    SAY("epoch %d is issued, members %d\n", e, members(e));
#ifdef SAME_NODE
    gone = gone | NODES(members(e) >> OLD << OLD);
#endif
    last = e;
    phase(e) = ISSUED
}

/* ---- Recover ------------------------------------------------------------------------------ */

/* In an epoch that is active, or was when its host last heard. [R-ACTIVE] */
#define can_begin(k, e) (repair_epoch[k] == 0 && phase(e) == ACTIVE)

inline begin(k, e, i) {
    SAY("repairer %d begins instance %d in epoch %d\n", k, i, e);
    repair_epoch[k] = e;
    repair_inst[k] = i
}

#define REPAIR_ROUND(k) LANE(repair_epoch[k], k)
#define can_promise_repair(k, m, i) \
    (repair_epoch[k] != 0 && !repair_done[k] && repair_inst[k] == (i) && acts(m) \
     && !HAS(repair_promised[k], m) && COUNT(repair_promised[k]) < QUORUM \
     && HAS(NODES(members(repair_epoch[k])), m) && locate(m, i) \
     && promise_of(m, i) <= REPAIR_ROUND(k) && vote_of(m, i) < REPAIR_ROUND(k))

inline promise_repair(k, m, i) {
    shown(m, i, REPAIR_ROUND(k));
    SAY("acceptor %d promises round %d for instance %d, and shows round %d\n",
        m, REPAIR_ROUND(k), i, h_v);
    slot(m, i) = SLOT(i, REPAIR_ROUND(k), vote_of(m, i));
    repair_promised[k] = repair_promised[k] | (1 << m);
    repair_best[k] = MAX(repair_best[k], h_v)
}

#define can_repair(k, i) (repair_epoch[k] != 0 && repair_inst[k] == (i) && !repair_done[k] \
                          && COUNT(repair_promised[k]) >= QUORUM)

inline repair(k, i) {
    SAY("repairer %d proposes for instance %d, best round %d\n", k, i, repair_best[k]);
    repair_done[k] = 1;
    propose(i, REPAIR_ROUND(k), (repair_best[k] == 0 -> NOOP : proposal[AT(i, repair_best[k])]));
    repair_best[k] = 0
}

/* ---- All steps ---------------------------------------------------------------------------- */

#define VOTE(m, i, r) :: d_step { can_vote(m, i, r) -> vote(m, i, r); skip }
#define TRIM(m) :: d_step { can_trim(m) -> trim_to(m); skip }
#define PROMISE(e, m) :: d_step { can_promise(e, m) -> promise(e, m); skip } \
                      :: d_step { can_promise_late(e, m) -> promise_late(e, m); skip } \
                      :: d_step { can_raise_T(e, m) -> raise_T(e, m); skip } \
                      :: d_step { can_enable(e, m) -> enable(e, m); skip }
#define READ(e, mask) :: d_step { can_read(e, mask) -> read(e, reading, mask); skip }
#define EPOCH_STEPS(e) :: d_step { can_mark_writing(e) -> mark_writing(e); skip } \
                       :: atomic { phase(e) == READING && has_place(e) -> reading = T(e); \
                              do \
                              :: reading < E(e) -> if OF_MASK(READ, e) fi; reading++ \
                              :: else -> break \
                              od; \
                              finish_reads(e); reading = 0 } \
                       :: d_step { can_activate(e) -> activate(e); skip } \
                       :: d_step { can_issue(e) -> issue(e, members(last)); skip }
#define JOIN(e, m) :: d_step { can_issue(e) && can_join(m) -> \
                               issue(e, (members(last) & ~(1 << PLACE(m))) | (1 << (m))) }
#define BEGIN(k, e, i) :: d_step { can_begin(k, e) -> begin(k, e, i); skip }
#define ASK(k, m, i) :: d_step { can_promise_repair(k, m, i) -> promise_repair(k, m, i); skip }
#define REPAIR(k, i) :: d_step { can_repair(k, i) -> repair(k, i); skip }

#include "each.pml"

init {
    d_step {
        h_m = 0;
        phase(1) = ACTIVE;
        members(1) = OLDS;
        do
        :: h_m < OLD -> floor[h_m] = BASE(1); h_m++
        :: else -> break
        od;
        h_i = 0;
        do
        :: h_i < STAMPED -> proposal[AT(h_i, BASE(1))] = COMMAND(1); h_i++
        :: else -> break
        od
    }
    do
    EACH_STEP
#ifdef MUT_FORGET
    /* The memory is lost, and the node goes on as if nothing had happened. */
    :: d_step { end[1] != 0 ->
        SAY("acceptor 1 loses its memory and goes on\n");
        floor[1] = 0; trim[1] = 0; end[1] = 0;
        h_i = 0;
        do
        :: h_i < SLOTS -> slot(1, h_i) = 0; h_i++
        :: else -> break
        od;
        skip }
#endif
#ifdef MUT_REPROGRAM
    /* A leader that restarts begins again with what it remembers: its program. */
    :: d_step { proposal[AT(0, BASE(1))] == COMMAND(1) ->
        SAY("leader 1 restarts and stamps instance 0 again\n");
        propose(0, BASE(1), COMMAND_AGAIN(1)) }
#endif
    :: break
    od
}
