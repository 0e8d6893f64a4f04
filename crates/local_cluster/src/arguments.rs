// SPDX-License-Identifier: Apache-2.0
//! What several commands take as an argument.

use node::cluster_file::Plane;

/// Reads the name of a plane.
pub fn plane(name: &str) -> Result<Plane, String> {
    Plane::named(name).ok_or("take udp, xdp or auto".to_string())
}

/// Reads a share.
pub fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if (0.0..=unit).contains(&number) => Ok(number / unit),
        _ => Err("take a share such as 1% or 0.01".to_string()),
    }
}
