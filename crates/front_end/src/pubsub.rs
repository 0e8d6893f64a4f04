// SPDX-License-Identifier: Apache-2.0
//! Channels, their subscribers at all front ends, and the delivery of messages.

pub(crate) mod audience;
#[cfg(test)]
mod audience_tests;
pub(crate) mod blanks;
pub(crate) mod by_name;
pub(crate) mod channels;
pub(crate) mod jobs;
pub(crate) mod name_list;
pub(crate) mod survey;
pub(crate) mod task;
