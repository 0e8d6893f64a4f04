// SPDX-License-Identifier: Apache-2.0
//! The roles of `programs/fpga/`, simulated by Verilator, against scripts and the roles in Rust.

#[allow(dead_code)]
#[path = "../../../loader/tests/fuzz/damage.rs"]
mod damage;
mod device;
mod differential;
mod frames;
mod model;
mod numbers;
#[path = "../../../loader/tests/common/random.rs"]
mod random;
#[path = "../common/role_state.rs"]
mod role_state;
mod scripts;
mod settings;
