// SPDX-License-Identifier: Apache-2.0
//! Tests of the replica and the client's quorum.
//!
//! | file | what |
//! |---|---|
//! | [`scripts`] | one packet after the other: what others leave open or get wrong, and each rule |
//! | [`random`] | whole groups on a network that does everything, over sessions, views and lost memories; and the same with each [`mutation`] |
//! | [`world`] | such a group |

mod mutation;
mod random;
mod scripts;
mod stored;
mod world;
