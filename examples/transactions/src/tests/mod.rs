// SPDX-License-Identifier: Apache-2.0
//! Tests without processes: of each part, and of all together in a simulated world.

mod checker;
mod dying;
mod random;
mod shard;
mod simulation;
mod world;
