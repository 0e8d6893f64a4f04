/* SPDX-License-Identifier: Apache-2.0 */
/* The sequencer: gives requests their slots (section 4 of the NOPaxos paper; docs/protocol/nopaxos.md).
 *
 * The rules of crates/paxos/src/nopaxos/sequencer.rs, in one pass. How it stamps is told in include/stamp.p4; what it leaves to
 * the node's process in README.md. */
#define STAMPED ORDERED
#include "include/stamp.p4"
