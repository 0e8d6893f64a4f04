// SPDX-License-Identifier: Apache-2.0
//! Tests of the replica and the client's quorum.
//!
//! | file | what |
//! |---|---|
//! | [`scripts`] | one packet after the other: what others leave open or get wrong, and each rule |
//! | [`random`] | groups on a network that does everything, over sessions, views, lost memories |
//! | [`mutation`] | the same with each mistake |
//! | [`world`] | such a group |

mod mutation;
mod random;
mod scripts;
mod stored;
mod world;
