// SPDX-License-Identifier: Apache-2.0
//! Behind crate `wirepaxos`: the API of a client: [`Client`] submits commands and collects their answers,
//! [`recover`](Recovery) finds out what an instance decided. Delivery is the replica's side: see
//! [`replica::Application`].

mod completions;
mod control;
mod counted;
mod error;
mod home;
mod outcome;
mod reads;
mod recovery;
mod session;

pub use self::completions::Completion;
pub use self::control::{ControlClient, NoAnswer};
pub use self::error::Error;
pub use self::home::Home;
pub use self::outcome::{Doubt, Outcome, Refusal};
pub use self::reads::Freshness;
pub use self::recovery::{Decided, Recovery};
pub use self::session::{Client, ClientOptions, Counts, known_group};
