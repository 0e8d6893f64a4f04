// SPDX-License-Identifier: Apache-2.0
//! Makes Prometheus metrics, which are numbers of a node's status document.

mod families;
mod text;

pub(crate) use text::text;
