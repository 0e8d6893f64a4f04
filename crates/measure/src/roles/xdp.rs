// SPDX-License-Identifier: Apache-2.0
//! The roles' programs in the kernel, alone and at links.

use local_cluster::Error;

use crate::stats::median;
use crate::xdp::several::Several;
use crate::xdp::{RoleMeasurement, live, roles};

/// The measurements of all roles.
pub struct Measured {
    /// True if packets were signed.
    pub signs: bool,
    /// Every role measured alone.
    pub alone: Vec<Alone>,
    /// The roles that were measured at links.
    pub live: Vec<live::Measured>,
}

/// One role, measured by test runs of its program.
pub struct Alone {
    /// Medians of all runs.
    pub median: RoleMeasurement,
    /// Nanoseconds a message, run by run.
    pub runs: Vec<f64>,
}

/// Measures all roles this often, alone and at links, this long each time.
pub fn measure(runs: usize, seconds: f64, signs: bool) -> Result<Measured, Error> {
    Ok(Measured {
        signs,
        alone: alone(runs, seconds, signs)?,
        live: live::roles(runs, seconds, signs).map_err(Error::new)?,
    })
}

fn alone(runs: usize, seconds: f64, signs: bool) -> Result<Vec<Alone>, Error> {
    let all = (0..runs).map(|_| roles(seconds, signs));
    let all = all.collect::<Result<Vec<_>, _>>().map_err(Error::new)?;
    let roles = 0..all[0].len();
    let with_runs = roles.map(|at| {
        let of = |pick: fn(&RoleMeasurement) -> f64| all.iter().map(|run| pick(&run[at])).collect();
        let ns: Vec<f64> = of(|m| m.ns_per_msg);
        let ns_per_msg = median(&ns);
        let mut role = all[0][at].clone();
        role.msgs_per_s = 1e9 / ns_per_msg;
        role.ns_per_msg = ns_per_msg;
        role.forwarding_ns_per_msg = median(&of(|m| m.forwarding_ns_per_msg));
        role.several = Several::median(all.iter().filter_map(|run| run[at].several.as_ref()));
        Alone {
            median: role,
            runs: ns,
        }
    });
    Ok(with_runs.collect())
}
