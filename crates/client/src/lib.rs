// SPDX-License-Identifier: Apache-2.0
//! The client API of crate `wirepaxos`. [`Client`] submits commands and collects their answers, and
//! [`recover`](Recovery) finds out what an instance decided; [`replica::Application`] is the
//! replica's side, where commands are delivered.

mod completions;
mod control;
mod error;
mod final_answers;
mod home_replica;
mod outcome;
mod reads;
mod recovery;
mod session;

pub use self::completions::Completion;
pub use self::control::{ControlClient, NoAnswer};
pub use self::error::Error;
pub use self::home_replica::Home;
pub use self::outcome::{Doubt, Outcome, Refusal};
pub use self::reads::Freshness;
pub use self::recovery::{Decided, Recovery};
pub use self::session::{Client, ClientOptions, Counts, known_group};
