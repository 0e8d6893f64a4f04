// SPDX-License-Identifier: Apache-2.0
//! Measurements, as ratios against a yardstick of the same run where there is one. Never part of
//! the tests: these only try that everything can be measured.

mod application;
mod by_process;
pub mod catch_up;
mod destinations;
pub mod e2e;
pub mod generator;
pub mod memory;
pub mod network;
pub mod peers;
pub mod retwis;
pub mod roles;
pub mod stats;
pub mod stubs;
pub mod unreplicated;
pub mod xdp;
