// SPDX-License-Identifier: Apache-2.0
//! Figures of several runs.

/// Returns the median.
pub fn median(of: &[f64]) -> f64 {
    quantile(of, 0.5)
}

/// Returns the value that this share of all lies below.
pub fn quantile(of: &[f64], share: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() as f64 * share) as usize]
}

/// Returns the smallest number.
pub fn least(of: &[f64]) -> f64 {
    of.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Returns the largest number.
pub fn most(of: &[f64]) -> f64 {
    of.iter().copied().fold(0.0, f64::max)
}
