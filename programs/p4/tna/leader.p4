/* SPDX-License-Identifier: Apache-2.0 */
/* The leader: puts requests in order (Algorithm 1 of both papers; docs/protocol/leader.md).
 *
 * The rules of crates/paxos/src/leader.rs, in one pass. How it stamps is told in include/stamp.p4; what it leaves to the node's
 * process in README.md. */
#define STAMPED PHASE2A
#include "include/stamp.p4"
