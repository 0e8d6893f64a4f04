/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the models share.
 *
 * The network is a growing set of facts. A message, once sent, is a fact that stays true; a step
 * that receives it asks whether the fact is there. So every message may be lost (the step is never
 * taken), delayed without limit, delivered in any order and any number of times, and the state
 * doesn't pay for queues. No channel has a bound: the bounds are those of epochs, instances,
 * values, crashes and repairs.
 *
 * Each step of a role is one d_step: roles handle one packet at a time. All steps stand in one
 * process, because what interleaves are steps, not processes.
 */

/* How many of the lowest seven bits are set. */
#define COUNT(x) (((x) & 1) + (((x) >> 1) & 1) + (((x) >> 2) & 1) + (((x) >> 3) & 1) \
                  + (((x) >> 4) & 1) + (((x) >> 5) & 1) + (((x) >> 6) & 1))
#define HAS(mask, i) (((mask) >> (i)) & 1)
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* Says in a replayed trail what a step did. */
#define SAY printf
