// SPDX-License-Identifier: Apache-2.0
//! Figures of several runs.

/// The value in the middle.
pub fn median(of: &[f64]) -> f64 {
    quantile(of, 0.5)
}

/// The value that this share of all lies below.
pub fn quantile(of: &[f64], share: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() as f64 * share) as usize]
}

/// The smallest.
pub fn least(of: &[f64]) -> f64 {
    of.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The largest.
pub fn most(of: &[f64]) -> f64 {
    of.iter().copied().fold(0.0, f64::max)
}
