/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One partition of NOPaxos: ordered multicast in two sessions of the sequencer, normal operation with
 * cumulative acknowledgements, gap agreement, view change, synchronisation, and a change of session in
 * which a member may be replaced. See README.md for the bounds, the abstractions and the mutations.
 *
 * A replica that never acts again has crashed: that needs no step of its own. A memory that was lost does
 * nothing from some moment on; its successor is another memory.
 *
 * Properties, checked where they could break:
 *   INV-10 committed stays   what is committed (the leader's reply and f acknowledgements of one view,
 *                            seen by anybody at any time) is in its slot in every later view that starts,
 *                            and in every one that has started (NOP-1); no slot is committed with two
 *                            contents (NOP-2)
 *   INV-11 one start         within a view the leader's log only grows (NOP-3)
 *   INV-12 stable            below a sync point that a replica knows, its log never changes (NOP-4, with
 *                            STABLE)
 *   NOP-5                    what a leader answers was computed on the log that it answers for (with APP)
 */
#include "common.pml"

/* ---- Bounds ------------------------------------------------------------------------------- */

#ifndef F
#define F 1
#endif
#define N (2 * F + 1)
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef VIEWS
#define VIEWS 3
#endif
#ifndef FIRST2
#define FIRST2 3              /* the first view of session 2 */
#endif
/* Leaders of the views 1.. , one decimal digit each, from the right. */
#ifndef LEADERS
#define LEADERS 10
#endif
#ifndef REPLACED
#define REPLACED N            /* which memory session 2 replaces by memory N; N = none */
#endif

#if REPLACED < N
#define MEM (N + 1)
#else
#define MEM N
#endif

#define SESSION(v) ((v) >= FIRST2 -> 2 : 1)
#define M1 ((1 << N) - 1)
#if REPLACED < N
#define M2 ((M1 & ~(1 << REPLACED)) | (1 << N))
#else
#define M2 M1
#endif
#define MEMBERS(v) ((v) >= FIRST2 -> M2 : M1)

/* Logs: two bits a slot, lowest slot lowest; slots are filled in order. */
#define NONE 0
#define NOOP 1
#define REQ(s) (1 + (s))      /* 2, 3 */
#define ENT(l, i) (((l) >> (2 * (i))) & 3)
#define LOW(n) ((1 << (2 * (n))) - 1)
#if SLOTS == 1
#define LEN(l) ((ENT(l,0) != 0))
#elif SLOTS == 2
#define LEN(l) ((ENT(l,0) != 0) + (ENT(l,1) != 0))
#else
#define LEN(l) ((ENT(l,0) != 0) + (ENT(l,1) != 0) + (ENT(l,2) != 0))
#endif

#define NORMAL 1
#define CHANGING 0

/* ---- Replicas (memories) */
byte view[MEM];
byte lastn[MEM];              /* the last view in which it was normal */
byte logs[MEM];
bit status[MEM];
byte gapwait;                 /* leaders that wait for a gap to be agreed: a bit a memory */

/* ---- Facts */
short vcm[(VIEWS + 1) * MEM];        /* VIEW_CHANGE: 1 | lastn << 1 | log << 4 | stable << (4 + 2 * SLOTS) */
#ifdef STABLE
byte stable[MEM];                    /* everything below is stable, known here */
byte synced[(VIEWS + 1) * MEM];      /* SYNC_REP: equal to the leader's log below */
byte point[VIEWS + 1];               /* SYNC_COMMIT */
#endif
byte start_[VIEWS + 1];              /* START_VIEW: log + 1 */
byte lead[VIEWS + 1];                /* what the leader's log in this view has been, gaps agreed */
byte ack[(VIEWS + 1) * MEM];         /* cumulative acknowledgement: slots filled in this view */
byte gapc[VIEWS + 1];                /* GAP_COMMIT: a bit a slot */
byte grep[(VIEWS + 1) * MEM];        /* GAP_COMMIT_REP: a bit a slot */
byte adopted[VIEWS + 1];             /* START_VIEW_REP: a bit a memory */
#define AT(v, m) ((v) * MEM + (m))

/* ---- The store and sequencer 2 */
bit in_force;
byte by_view;                 /* the view by which session 2 became active */
byte E2;

/* ---- Ghosts: what was committed, and in which view first */
byte comm;
byte commv[SLOTS];

#ifdef APP
byte app[MEM];                /* the leader's speculative application state, as the log it ran on */
#endif
#ifdef CRASHES
byte crashes = CRASHES;
#endif
#if defined(MUT_RESEQ)
bit reseq;
#endif

hidden byte v_, w_, i_, k_, n_, q_, x_, y_, ln_, l_, c_;

#define LEADER1 (LEADERS % 10)
#define LEADER2 ((LEADERS / 10) % 10)
#define LEADER3 ((LEADERS / 100) % 10)
#define LEADER4 ((LEADERS / 1000) % 10)
#define LEADER(v) ((v) == 1 -> LEADER1 : ((v) == 2 -> LEADER2 : ((v) == 3 -> LEADER3 : LEADER4)))

/* Is content c of the first n slots committed: compare, remember, compare with later views. */
inline committed(v, log, n)
{
    i_ = 0;
    do
    :: i_ < n ->
        if
        :: i_ < LEN(comm) ->
            assert(ENT(comm, i_) == ENT(log, i_));            /* NOP-2 */
            if :: v < commv[i_] -> commv[i_] = v :: else fi
        :: else ->
            comm = comm | (ENT(log, i_) << (2 * i_));
            commv[i_] = v
        fi;
        i_++
    :: else -> break
    od;
    w_ = v + 1;
    do
    :: w_ <= VIEWS ->
        if
        :: start_[w_] -> assert(((start_[w_] - 1) & LOW(n)) == (log & LOW(n)))   /* NOP-1 */
        :: else
        fi;
        w_++
    :: else -> break
    od
}

/* What clients may have seen of view v: the leader's reply and F acknowledgements. */
inline look(v)
{
    n_ = LEN(lead[v]);
    do
    :: n_ > 0 ->
        c_ = 0;
        i_ = 0;
        do
        :: i_ < MEM ->
            if :: i_ != LEADER(v) && HAS(MEMBERS(v), i_) && ack[AT(v, i_)] >= n_ -> c_++ :: else fi;
            i_++
        :: else -> break
        od;
        if :: c_ >= F -> break :: else -> n_-- fi
    :: else -> break
    od;
    if :: n_ > 0 -> q_ = n_; committed(v, lead[v], q_) :: else fi
}

inline acknowledge(m)
{
    v_ = view[m];
    if
    :: m == LEADER(v_) ->
        if :: !HAS(gapwait, m) ->
            assert((logs[m] & LOW(LEN(lead[v_]))) == lead[v_]);    /* NOP-3 */
            lead[v_] = logs[m];
#ifdef APP
            /* It executes what it has not executed, and answers. */
            app[m] = app[m] | (logs[m] & ~LOW(LEN(app[m])));
            assert(app[m] == logs[m])                              /* NOP-5 */
#endif
        :: else fi
    :: else ->
        if :: LEN(logs[m]) > ack[AT(v_, m)] -> ack[AT(v_, m)] = LEN(logs[m]) :: else fi;
#ifdef MUT_NO_LEADER
        c_ = 0; i_ = 0; n_ = LEN(logs[m]);
        do
        :: i_ < MEM -> if :: i_ != LEADER(v_) && ack[AT(v_, i_)] >= n_ -> c_++ :: else fi; i_++
        :: else -> break
        od;
        if :: n_ > 0 && c_ > F -> q_ = n_; committed(v_, logs[m], q_) :: else fi
#endif
    fi;
    look(v_)
}

/* ---- Steps */

#define CAN_FILL(m) (status[m] == NORMAL && LEN(logs[m]) < SLOTS && !HAS(gapwait, m))
#define OF_SESSION2(m) (in_force && LEN(logs[m]) >= E2)
#ifdef MUT_OLD_SESSION
#define STAMPED1(m) (1)
#else
#define STAMPED1(m) (SESSION(view[m]) == 1)
#endif
#ifdef MUT_RESEQ
#define STAMPED2(m) (SESSION(view[m]) == 1 || OF_SESSION2(m))
#else
#define STAMPED2(m) (SESSION(view[m]) == 2 && OF_SESSION2(m))
#endif
#define STAMPED(m) (SESSION(view[m]) == 1 || OF_SESSION2(m))

inline append(m, what)
{
    logs[m] = logs[m] | ((what) << (2 * LEN(logs[m])));
    acknowledge(m)
}

/* The leader lacks a slot that was stamped, and puts a no-op there. */
inline gap_begin(m)
{
    i_ = LEN(logs[m]);
    gapc[view[m]] = gapc[view[m]] | (1 << i_);
    logs[m] = logs[m] | (NOOP << (2 * i_));
    gapwait = gapwait | (1 << m);
#ifdef MUT_GAP_NO_WAIT
    gapwait = gapwait & ~(1 << m);
    acknowledge(m)
#endif
}

#ifdef MUT_GAP_EARLY
#define FILLED_BELOW(m, i) (1)
#else
#define FILLED_BELOW(m, i) (LEN(logs[m]) >= i)
#endif
#define GAP_DUE(m, i) (status[m] == NORMAL && m != LEADER(view[m]) && HAS(gapc[view[m]], i) \
    && !HAS(grep[AT(view[m], m)], i) && FILLED_BELOW(m, i))

inline gap_take(m, i)
{
    if
    :: LEN(logs[m]) >= i -> logs[m] = (logs[m] & ~(3 << (2 * (i)))) | (NOOP << (2 * (i)))
    :: else
    fi;
    grep[AT(view[m], m)] = grep[AT(view[m], m)] | (1 << (i));
    acknowledge(m)
}

/* The no-op at the end of the leader's log has the answers of F others. */
#define REP(m, o) (o != m && HAS(MEMBERS(view[m]), o) && HAS(grep[AT(view[m], o)], LEN(logs[m]) - 1))
#define REPS3(m) (REP(m, 0) + REP(m, 1) + REP(m, 2))
#if MEM == 3
#define REPS(m) REPS3(m)
#elif MEM == 4
#define REPS(m) (REPS3(m) + REP(m, 3))
#else
#define REPS(m) (REPS3(m) + REP(m, 3) + REP(m, 4))
#endif

#ifdef STABLE
#define STABLE_OF(m) stable[m]
#else
#define STABLE_OF(m) 0
#endif

inline change_view(m, w)
{
    view[m] = w;
    status[m] = CHANGING;
    gapwait = gapwait & ~(1 << m);
    vcm[AT(w, m)] = 1 | (lastn[m] << 1) | (logs[m] << 4) | (STABLE_OF(m) << (4 + 2 * SLOTS))
}

#define VC_SENT(w, m) (vcm[AT(w, m)] & 1)
#define VC_LAST(w, m) ((vcm[AT(w, m)] >> 1) & 7)
#define VC_LOG(w, m) ((vcm[AT(w, m)] >> 4) & LOW(SLOTS))
#define VC_STABLE(w, m) (vcm[AT(w, m)] >> (4 + 2 * SLOTS))

/* Who of `q` has sent it. */
#define SENT3(w) (VC_SENT(w, 0) | (VC_SENT(w, 1) << 1) | (VC_SENT(w, 2) << 2))
#if MEM == 3
#define SENT(w) SENT3(w)
#elif MEM == 4
#define SENT(w) (SENT3(w) | (VC_SENT(w, 3) << 3))
#else
#define SENT(w) (SENT3(w) | (VC_SENT(w, 3) << 3) | (VC_SENT(w, 4) << 4))
#endif

/* Merge the logs of those in `q` that were normal in the latest view among them: into l_. */
inline merge(w, q)
{
    ln_ = 0; i_ = 0;
    do
    :: i_ < MEM ->
        if :: HAS(q, i_) && VC_LAST(w, i_) > ln_ -> ln_ = VC_LAST(w, i_) :: else fi;
        i_++
    :: else -> break
    od;
    l_ = 0; k_ = 0;
    do
    :: k_ < SLOTS ->
        x_ = NONE; i_ = 0;
        do
        :: i_ < MEM ->
            if
#ifdef MUT_MERGE_ALL
            :: HAS(q, i_) && ENT(VC_LOG(w, i_), k_) != NONE ->
#else
            :: HAS(q, i_) && VC_LAST(w, i_) == ln_ && ENT(VC_LOG(w, i_), k_) != NONE ->
#endif
                y_ = ENT(VC_LOG(w, i_), k_);
                if
                :: x_ == NONE -> x_ = y_
#ifdef MUT_REQUEST_WINS
                :: x_ == NOOP -> x_ = y_
                :: else
#else
                :: x_ != NONE && y_ == NOOP -> x_ = NOOP
                :: else
#endif
                fi
            :: else
            fi;
            i_++
        :: else -> break
        od;
#ifdef STABLE
        /* Lists of no-ops begin at `stable`. Below the largest one its reporter's log counts, alone. */
        i_ = 0; n_ = 0; y_ = 0;
        do
        :: i_ < MEM ->
            if :: HAS(q, i_) && VC_STABLE(w, i_) > n_ -> n_ = VC_STABLE(w, i_); y_ = i_ :: else fi;
            i_++
        :: else -> break
        od;
        if
        :: k_ < n_ ->
#ifdef MUT_STABLE_MERGED
            /* The reporter's list doesn't show the no-op: the new leader's own entry stays. */
            if :: ENT(VC_LOG(w, LEADER(w)), k_) != NONE -> x_ = ENT(VC_LOG(w, LEADER(w)), k_)
            :: else -> x_ = ENT(VC_LOG(w, y_), k_) fi
#else
            x_ = ENT(VC_LOG(w, y_), k_)
#endif
        :: else
        fi;
#endif
        l_ = l_ | (x_ << (2 * k_));
        k_++
    :: else -> break
    od
}

#ifdef MUT_VC_BY_F
#define VC_QUORUM F
#else
#define VC_QUORUM (F + 1)
#endif
#define OF1(q) (COUNT((q) & M1) >= VC_QUORUM)
#define OF2(q) (COUNT((q) & M2) >= VC_QUORUM)
#ifdef MUT_NEW_MEMBERS_ONLY
#define QUORUM(w, q) (SESSION(w) == 1 -> OF1(q) : OF2(q))
#elif defined(MUT_WRITING_NOT_ASKED)
#define QUORUM(w, q) (SESSION(w) == 1 -> OF1(q) : (in_force -> OF2(q) : OF1(q)))
#else
#ifdef MUT_ACTIVE_FOR_ALL
#define LATER_THAN_ACTIVE(w) (in_force)
#else
#define LATER_THAN_ACTIVE(w) (in_force && w > by_view)
#endif
#define QUORUM(w, q) (SESSION(w) == 1 -> OF1(q) \
    : ((LATER_THAN_ACTIVE(w) && OF2(q)) || (OF1(q) && (w == FIRST2 || OF2(q)))))
#endif

inline adopt(m, w, log)
{
#ifdef APP
#ifndef MUT_NO_ROLLBACK
    /* Speculative effects that the new log doesn't have are taken back, to the last commit. */
    if
    :: LEN(app[m]) > LEN(log) || app[m] != (log & LOW(LEN(app[m]))) -> app[m] = 0
    :: else
    fi;
#endif
#endif
#ifdef STABLE
    assert((logs[m] & LOW(stable[m])) == (log & LOW(stable[m])));    /* NOP-4 */
#endif
#ifdef MUT_KEEP_NOOP
    k_ = 0;
    do
    :: k_ < LEN(log) && ENT(logs[m], k_) == NOOP -> log = (log & ~(3 << (2 * k_))) | (NOOP << (2 * k_)); k_++
    :: k_ < LEN(log) && ENT(logs[m], k_) != NOOP -> k_++
    :: else -> break
    od;
#endif
    logs[m] = log;
    view[m] = w;
    lastn[m] = w;
    status[m] = NORMAL;
    adopted[w] = adopted[w] | (1 << m);
    gapwait = gapwait & ~(1 << m);
    acknowledge(m)
}

inline start_view(m, q)
{
    v_ = view[m];
    merge(v_, q);
    /* NOP-1: nothing committed in an earlier view is missing or different. */
    i_ = 0;
    do
    :: i_ < LEN(comm) ->
        if :: commv[i_] < v_ -> assert(ENT(l_, i_) == ENT(comm, i_)) :: else fi;
        i_++
    :: else -> break
    od;
#ifdef MUT_TWO_STARTS
    if
    :: start_[v_] -> start_[v_] = l_ + 1
    :: else -> start_[v_] = l_ + 1; x_ = l_; y_ = v_; adopt(m, y_, x_)
    fi
#else
    start_[v_] = l_ + 1;
    x_ = l_; y_ = v_;
    adopt(m, y_, x_)
#endif
}

#ifdef MUT_TWO_STARTS
#define MAY_START(m, q) (view[m] > 1 && LEADER(view[m]) == m && ((status[m] == CHANGING && !start_[view[m]]) \
    || (status[m] == NORMAL && start_[view[m]])) \
    && (SENT(view[m]) & (q)) == (q) && QUORUM(view[m], q))
#else
#define MAY_START(m, q) (status[m] == CHANGING && view[m] > 1 && LEADER(view[m]) == m && !start_[view[m]] \
    && (SENT(view[m]) & (q)) == (q) && QUORUM(view[m], q))
#endif

#ifdef MUT_DUP_START
#define NEWS(m, w) (w > view[m] || (w == view[m] && logs[m] != start_[w] - 1))
#else
#define NEWS(m, w) (w > view[m] || (w == view[m] && status[m] == CHANGING))
#endif
#define MAY_ADOPT(m, w) (start_[w] && m != LEADER(w) && HAS(MEMBERS(w), m) && NEWS(m, w))

/* SYNC_PREPARE, GAP_REPLY of the leader: a prefix of its log replaces, and fills, the follower's. */
#ifdef STABLE
#define TELLS(m, n) (synced[AT(view[m], m)] < n)
#else
#define TELLS(m, n) ((logs[m] & LOW(n)) != (lead[view[m]] & LOW(n)))
#endif
#define MAY_SYNC(m, n) (status[m] == NORMAL && m != LEADER(view[m]) && LEN(lead[view[m]]) >= n && TELLS(m, n))

inline sync_take(m, n)
{
    v_ = view[m];
#ifdef MUT_SYNC_LIST
    /* What lies below the leader's sync point is taken for right, though the list doesn't reach there. */
    x_ = point[v_];
    if :: x_ > n || LEN(logs[m]) < x_ -> x_ = 0 :: else fi;
    logs[m] = (logs[m] & LOW(x_)) | (lead[v_] & LOW(n) & ~LOW(x_)) | (logs[m] & ~LOW(n));
#else
    logs[m] = (lead[v_] & LOW(n)) | (logs[m] & ~LOW(n));
#endif
#ifdef STABLE
    synced[AT(v_, m)] = n;
#endif
    acknowledge(m)
}
#ifdef STABLE
#define EQ(m, o, n) (o != m && HAS(MEMBERS(view[m]), o) && synced[AT(view[m], o)] >= n)
#define EQS3(m, n) (EQ(m, 0, n) + EQ(m, 1, n) + EQ(m, 2, n))
#if MEM == 3
#define EQS(m, n) EQS3(m, n)
#elif MEM == 4
#define EQS(m, n) (EQS3(m, n) + EQ(m, 3, n))
#else
#define EQS(m, n) (EQS3(m, n) + EQ(m, 3, n) + EQ(m, 4, n))
#endif
#define POINT(m, n) \
    :: d_step { status[m] == NORMAL && m == LEADER(view[m]) && point[view[m]] < n && LEN(lead[view[m]]) >= n \
        && EQS(m, n) >= F -> point[view[m]] = n; stable[m] = n } \
    :: d_step { status[m] == NORMAL && m != LEADER(view[m]) && point[view[m]] >= n \
        && synced[AT(view[m], m)] >= n && stable[m] < n -> stable[m] = n }
#if SLOTS == 1
#define POINTS(m) POINT(m, 1)
#elif SLOTS == 2
#define POINTS(m) POINT(m, 1) POINT(m, 2)
#else
#define POINTS(m) POINT(m, 1) POINT(m, 2) POINT(m, 3)
#endif
#else
#define POINTS(m)
#endif

#ifdef MUT_ACTIVE_EARLY
#define MAY_ACT(w) (!in_force && start_[w])
#else
#define MAY_ACT(w) (!in_force && start_[w] && COUNT(adopted[w] & M2) >= F + 1)
#endif

/* ---- The steps of one memory, and for each */

#define GAP(m, i) :: d_step { GAP_DUE(m, i) -> \
        SAY("%d takes GAP_COMMIT of slot %d in view %d\n", m, i, view[m]); gap_take(m, i) }
#define CHANGE(m, w) :: d_step { view[m] < w && (HAS(M1, m) || HAS(MEMBERS(w), m)) -> \
    SAY("%d sends VIEW_CHANGE %d, last normal %d, log %d\n", m, w, lastn[m], logs[m]); change_view(m, w) }
#define ADOPT(m, w) :: d_step { MAY_ADOPT(m, w) -> \
        SAY("%d takes START_VIEW %d, log %d\n", m, w, start_[w] - 1); \
        x_ = start_[w] - 1; adopt(m, w, x_) }
#define SYNC(m, n) :: d_step { MAY_SYNC(m, n) -> \
        SAY("%d takes the leader's first %d slots of view %d\n", m, n, view[m]); sync_take(m, n) }
#define START(m, q) :: d_step { HAS(q, m) && MAY_START(m, q) -> \
        SAY("%d starts view %d by the VIEW_CHANGEs of %d\n", m, view[m], q); start_view(m, q) }
#define ACT(w) :: d_step { SESSION(w) == 2 && MAY_ACT(w) -> \
        SAY("session 2 is active by view %d\n", w); \
        in_force = 1; by_view = w; E2 = LEN(start_[w] - 1) }

#ifdef MUT_VC_BY_F
#define STARTS3(m) START(m, 1) START(m, 2) START(m, 4) START(m, 3) START(m, 5) START(m, 6) START(m, 7)
#else
#define STARTS3(m) START(m, 3) START(m, 5) START(m, 6) START(m, 7)
#endif
#if F == 2
#define STARTS(m) START(m, 7) START(m, 11) START(m, 13) START(m, 14) START(m, 19) START(m, 21) START(m, 22) \
    START(m, 25) START(m, 26) START(m, 28) START(m, 15) START(m, 23) START(m, 27) START(m, 29) START(m, 30) \
    START(m, 31)
#elif MEM == 3
#define STARTS(m) STARTS3(m)
#else
#define STARTS(m) STARTS3(m) START(m, 9) START(m, 10) START(m, 11) START(m, 12) START(m, 13) \
    START(m, 14) START(m, 15)
#endif

#if VIEWS == 2
#define VIEWSOF(S, m) S(m, 2)
#define ACTS ACT(2)
#elif VIEWS == 3
#define VIEWSOF(S, m) S(m, 2) S(m, 3)
#define ACTS ACT(2) ACT(3)
#else
#define VIEWSOF(S, m) S(m, 2) S(m, 3) S(m, 4)
#define ACTS ACT(2) ACT(3) ACT(4)
#endif

#if SLOTS == 1
#define GAPS(m) GAP(m, 0)
#define SYNCS(m) SYNC(m, 1)
#elif SLOTS == 2
#define GAPS(m) GAP(m, 0) GAP(m, 1)
#define SYNCS(m) SYNC(m, 1) SYNC(m, 2)
#else
#define GAPS(m) GAP(m, 0) GAP(m, 1) GAP(m, 2)
#define SYNCS(m) SYNC(m, 1) SYNC(m, 2) SYNC(m, 3)
#endif

#ifdef MUT_DESTRUCTIVE
/* A new leader makes room for a later log before it has it; so does a follower for START_VIEW's. */
#define LATER(m, o) (VC_SENT(view[m], o) && VC_LAST(view[m], o) > lastn[m])
#define MORE(m) :: d_step { status[m] == CHANGING && view[m] > 0 && logs[m] && ((LEADER(view[m]) == m \
    && (LATER(m, 0) || LATER(m, 1) || LATER(m, 2))) || (LEADER(view[m]) != m && start_[view[m]])) -> \
        SAY("%d makes room, view %d\n", m, view[m]); logs[m] = 0 }
#elif defined(MUT_DESTRUCTIVE_FOLLOWER)
#define MORE(m) :: d_step { status[m] == CHANGING && view[m] > 0 && logs[m] && LEADER(view[m]) != m && start_[view[m]] -> \
    SAY("%d makes room, view %d\n", m, view[m]); logs[m] = 0 }
#elif defined(MUT_EARLY_NORMAL)
/* The new view is its last normal one before it has all of its log. */
#define MORE(m) :: d_step { status[m] == CHANGING && view[m] > 0 && start_[view[m]] && LEADER(view[m]) != m \
    && lastn[m] < view[m] && HAS(MEMBERS(view[m]), m) -> lastn[m] = view[m]; logs[m] = 0 }
#elif defined(MUT_FORGETS_LOG)
/* A memory is lost, and the replica goes on under its name. */
#define MORE(m) :: d_step { crashes > 0 && view[m] > 0 -> crashes--; logs[m] = 0; view[m] = 0; lastn[m] = 0; \
    status[m] = CHANGING; gapwait = gapwait & ~(1 << m) }
#elif defined(MUT_VR_RECOVERY)
/* VR's recovery, the paper's 5.2.5: all is lost; view and log come from F+1 others, one of them the leader
 * of the latest view among them, both normal, all in one moment. */
#define FROM(m, a, b) (status[a] == NORMAL && status[b] == NORMAL && view[a] >= view[b] && LEADER(view[a]) == a)
#define RECOVER(m, a, b) :: d_step { crashes > 0 && FROM(m, a, b) -> \
        SAY("%d recovers from %d and %d, view %d\n", m, a, b, view[a]); crashes--; \
        gapwait = gapwait & ~(1 << m); logs[m] = lead[view[a]]; \
        view[m] = view[a]; lastn[m] = view[a]; status[m] = NORMAL; acknowledge(m) }
#define MORE(m) RECOVER(m, ((m + 1) % 3), ((m + 2) % 3)) RECOVER(m, ((m + 2) % 3), ((m + 1) % 3))
#else
#define MORE(m)
#endif

#define STEPS(m) \
    :: d_step { CAN_FILL(m) && STAMPED1(m) -> \
        SAY("%d appends from session 1, view %d\n", m, view[m]); append(m, REQ(1)) } \
    :: d_step { CAN_FILL(m) && STAMPED2(m) -> \
        SAY("%d appends from session 2, view %d\n", m, view[m]); append(m, REQ(2)) } \
    :: d_step { CAN_FILL(m) && m == LEADER(view[m]) && STAMPED(m) -> \
        SAY("leader %d puts a no-op, view %d\n", m, view[m]); gap_begin(m) } \
    :: d_step { HAS(gapwait, m) && status[m] == NORMAL && REPS(m) >= F -> \
        SAY("leader %d: the no-op is agreed, view %d\n", m, view[m]); \
        gapwait = gapwait & ~(1 << m); acknowledge(m) } \
    GAPS(m) VIEWSOF(CHANGE, m) VIEWSOF(ADOPT, m) SYNCS(m) POINTS(m) STARTS(m) MORE(m)

active proctype steps()
{
    d_step {
        i_ = 0;
        do
        :: i_ < N -> view[i_] = 1; lastn[i_] = 1; status[i_] = NORMAL; i_++
        :: else -> break
        od;
        start_[1] = 1
    }
end:    do
    STEPS(0)
    STEPS(1)
    STEPS(2)
#if MEM > 3
    STEPS(3)
#endif
#if MEM > 4
    STEPS(4)
#endif
    ACTS
    od
}
