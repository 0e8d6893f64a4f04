// SPDX-License-Identifier: Apache-2.0
//! The roles as XDP programs: loads the objects that `programs/xdp/Makefile` builds, does the
//! control plane's writes to their maps, and drives them packet by packet for tests.
//!
//! The objects are loaded at run time, so building this crate needs neither clang nor libbpf. See
//! `programs/xdp/README.md` for what each map holds.
//!
//! # Why aya
//! The loader is [aya]: pure Rust, so there is no C library to build or to install beside the
//! binary (libbpf-rs wants libelf, zlib and libbpf's own build). It loads objects that plain clang
//! has made, with BTF map definitions, and has what is needed here: sizes of maps set when loading,
//! pinning, devmaps with programs, links. What it lacks stays out of the programs
//! (maps of maps: a learner has sixteen rings instead) or is small here: BPF_PROG_TEST_RUN, the
//! mapping of an array's memory and the one map of maps that is waited with in [`sys`], and a
//! reader of rings in [`ring`] (aya 0.13's own failed the test of a full ring in
//! `tests/frames.rs`).

pub mod acceptor;
pub mod attach;
mod banks;
pub mod clone;
pub mod features;
pub mod forwarder;
pub mod frame;
pub mod identity;
pub mod interface;
pub mod ip;
mod kernel_links;
pub mod keyring;
pub mod layout;
pub mod leader;
pub mod learner;
pub mod machine;
pub mod map_place;
pub mod members;
mod multicast_ports;
pub mod neighbour;
pub mod object;
pub mod occupant;
pub mod pins;
pub mod program_files;
pub mod receiver;
pub mod ring;
pub mod run;
mod saved_acceptor;
pub mod station;
pub mod switch;
pub mod sys;
pub mod tag_filter;
pub mod user_space_program;
pub mod veth;
