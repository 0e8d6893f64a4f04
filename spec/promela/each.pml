/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every step of single.pml with every argument within the bounds, as options of one loop. Guards
 * with constant arguments cost the checker far less than loops that draw the arguments.
 */

#if MEMORIES == 4
#define OF_M(X) X(0) X(1) X(2) X(3)
#define OF_1M(X, a) X(a, 0) X(a, 1) X(a, 2) X(a, 3)
#define OF_M2(X, a, b) X(0, a, b) X(1, a, b) X(2, a, b) X(3, a, b)
#define OF_1M1(X, a, b) X(a, 0, b) X(a, 1, b) X(a, 2, b) X(a, 3, b)
/* All sets of two, three and four memories. */
#define OF_MASK(X, a) \
    X(a, 3) X(a, 5) X(a, 6) X(a, 7) X(a, 9) X(a, 10) X(a, 11) \
    X(a, 12) X(a, 13) X(a, 14) X(a, 15)
#elif MEMORIES == 6
#define OF_M(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define OF_1M(X, a) X(a, 0) X(a, 1) X(a, 2) X(a, 3) X(a, 4) X(a, 5)
#define OF_M2(X, a, b) X(0, a, b) X(1, a, b) X(2, a, b) X(3, a, b) X(4, a, b) X(5, a, b)
#define OF_1M1(X, a, b) X(a, 0, b) X(a, 1, b) X(a, 2, b) X(a, 3, b) X(a, 4, b) X(a, 5, b)
/* All sets of three of the five old ones, and those with the fresh one; sets of four. */
#define OF_MASK(X, a) \
    X(a, 7) X(a, 11) X(a, 19) X(a, 35) X(a, 13) X(a, 21) X(a, 37) \
    X(a, 25) X(a, 41) X(a, 49) X(a, 14) X(a, 22) X(a, 38) X(a, 26) \
    X(a, 42) X(a, 50) X(a, 28) X(a, 44) X(a, 52) X(a, 56) X(a, 15) \
    X(a, 23) X(a, 39) X(a, 27) X(a, 43) X(a, 51) X(a, 29) X(a, 45) \
    X(a, 53) X(a, 57) X(a, 30) X(a, 46) X(a, 54) X(a, 58) X(a, 60)
#endif

#if INSTANCES == 2
#define OF_I(X, a) X(a, 0) X(a, 1)
#define OF_2I(X, a, b) X(a, b, 0) X(a, b, 1)
#elif INSTANCES == 3
#define OF_I(X, a) X(a, 0) X(a, 1) X(a, 2)
#define OF_2I(X, a, b) X(a, b, 0) X(a, b, 1) X(a, b, 2)
#elif INSTANCES == 4
#define OF_I(X, a) X(a, 0) X(a, 1) X(a, 2) X(a, 3)
#define OF_2I(X, a, b) X(a, b, 0) X(a, b, 1) X(a, b, 2) X(a, b, 3)
#endif

#define ROUND_VOTES(i, r) OF_M2(VOTE, i, r)
#if REPAIRS == 0
#define ALL_ROUNDS(i, e) ROUND_VOTES(i, BASE(e))
#elif REPAIRS == 1
#define ALL_ROUNDS(i, e) ROUND_VOTES(i, BASE(e)) ROUND_VOTES(i, BASE(e) + 1)
#else
#define ALL_ROUNDS(i, e) ROUND_VOTES(i, BASE(e)) ROUND_VOTES(i, BASE(e) + 1) ROUND_VOTES(i, BASE(e) + 2)
#endif

#define ASK_OF(k, i) OF_1M1(ASK, k, i)
/* Instances that repairers may begin. */
#if REPAIRED == 1
#define OF_REPAIRED(X, a, b) X(a, b, 0)
#elif REPAIRED == 2
#define OF_REPAIRED(X, a, b) X(a, b, 0) X(a, b, 1)
#else
#define OF_REPAIRED(X, a, b) OF_2I(X, a, b)
#endif

#if EPOCHS == 2
#define INST_VOTES(a, i) ALL_ROUNDS(i, 1) ALL_ROUNDS(i, 2)
#define CANDIDATE_STEPS EPOCH_STEPS(2) OF_1M(PROMISE, 2)
#define BEGINS(k) OF_REPAIRED(BEGIN, k, 1) OF_REPAIRED(BEGIN, k, 2)
#else
#define INST_VOTES(a, i) ALL_ROUNDS(i, 1) ALL_ROUNDS(i, 2) ALL_ROUNDS(i, 3)
#define CANDIDATE_STEPS EPOCH_STEPS(2) OF_1M(PROMISE, 2) \
                        EPOCH_STEPS(3) OF_1M(PROMISE, 3)
#define BEGINS(k) OF_REPAIRED(BEGIN, k, 1) OF_REPAIRED(BEGIN, k, 2) OF_REPAIRED(BEGIN, k, 3)
#endif

#if EPOCHS == 2
#define JOINS(m) JOIN(2, m)
#else
#define JOINS(m) JOIN(2, m) JOIN(3, m)
#endif
#if FRESH == 1
#define ALL_JOINS JOINS(OLD)
#else
#define ALL_JOINS JOINS(OLD) JOINS(OLD + 1)
#endif

#define REPAIRER(k) BEGINS(k) OF_I(ASK_OF, k) OF_I(REPAIR, k)
#if REPAIRS == 0
#define ALL_REPAIRS
#elif REPAIRS == 1
#define ALL_REPAIRS REPAIRER(0)
#else
#define ALL_REPAIRS REPAIRER(0) REPAIRER(1)
#endif

#if TRIMS == 0
#define ALL_TRIMS
#else
#define ALL_TRIMS OF_M(TRIM)
#endif

#define EACH_STEP ALL_REPAIRS OF_I(INST_VOTES, 0) ALL_TRIMS CANDIDATE_STEPS ALL_JOINS
