// SPDX-License-Identifier: Apache-2.0
//! Finds out what a server is, for its [fingerprint](super::fingerprint).

use std::fs;
use std::io::{self, BufRead};
use std::sync::OnceLock;

use super::catalogue::Catalogue;
use super::fingerprint::{Fact, Fingerprint};
use super::preload;
use super::resp::Value;
use super::server::Server;

/// A library with a function that computes as GEOADD and scripts do, 5,000 times each, and returns
/// one number. Where a processor multiplies and adds in one step, seven of ten thousand sines
/// differ, and as many of the others.
const ARITHMETIC: &[u8] = b"#!lua name=wirepaxos_arithmetic
redis.register_function{function_name='wirepaxos_arithmetic',flags={'no-writes'},callback=function()
  local sum, seed = 1, 20261127
  local function add(value)
    local mantissa, exponent = math.frexp(value)
    local high = math.floor(mantissa * 67108864)
    local low = (mantissa * 67108864 - high) * 134217728
    sum = (sum * 1103 + high + exponent) % 2147483647
    sum = (sum * 1103 + low) % 2147483647
  end
  for _ = 1, 5000 do
    seed = seed * 16807 % 2147483647
    local x = seed / 2147483647
    local angle = (x - 0.5) * 12.6
    add(math.sin(angle)) add(math.cos(angle)) add(math.tan(angle))
    add(math.asin(x)) add(math.acos(x)) add(math.atan(angle))
    add(math.exp(angle)) add(math.log(x)) add(math.pow(x, angle)) add(math.sqrt(x))
  end
  return string.format('%d', sum)
end}";
const ARITHMETIC_NAME: &[u8] = b"wirepaxos_arithmetic";

/// The text with which the GNU C library's name begins.
const LIBC_TEXT: &[u8] = b"GNU C Library ";

/// What all servers of this machine have in common.
struct Surroundings {
    arithmetic: String,
    libc: String,
}

impl Server {
    /// Makes the server's fingerprint, before the library's module is loaded.
    pub(super) fn identify(&mut self, catalogue: &Catalogue) -> io::Result<Fingerprint> {
        let info = self.info(b"server")?;
        let says = |name: &str| info.field(name).unwrap_or_default().to_owned();
        let surroundings = self.surroundings()?;
        let is_valkey = !says("valkey_version").is_empty();
        let fact = |of: Fact| match of {
            Fact::Product if is_valkey => "valkey".into(),
            Fact::Product => "redis".into(),
            Fact::Version if is_valkey => says("valkey_version"),
            Fact::Version => says("redis_version"),
            Fact::Build => {
                let parts = ["redis_build_id", "redis_git_sha1", "gcc_version"].map(says);
                parts.join(" ")
            }
            Fact::Libc => surroundings.libc.clone(),
            Fact::Architecture => {
                format!("{} of {} bits", std::env::consts::ARCH, says("arch_bits"))
            }
            Fact::Arithmetic => surroundings.arithmetic.clone(),
            Fact::Preload => shown(&preload::digest()),
        };
        Ok(Fingerprint::new(fact, catalogue))
    }

    /// Returns what doesn't depend on the server's build. Only the first server of this process is
    /// asked, so that those that judge scripts later have nothing of it in their memory.
    fn surroundings(&mut self) -> io::Result<&'static Surroundings> {
        static FOUND: OnceLock<Surroundings> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let found = Surroundings {
            arithmetic: self.arithmetic()?,
            libc: libc_of(self.process()),
        };
        Ok(FOUND.get_or_init(|| found))
    }

    fn arithmetic(&mut self) -> io::Result<String> {
        self.order(&[b"FUNCTION", b"LOAD", b"REPLACE", ARITHMETIC])?;
        let answer = self.order(&[b"FCALL", ARITHMETIC_NAME, b"0"])?;
        self.order(&[b"FUNCTION", b"DELETE", ARITHMETIC_NAME])?;
        let value = Value::parse(&answer).ok();
        let text = value.as_ref().and_then(Value::text).unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

/// Returns how the C library names itself that a process has in memory, or the length of its file
/// if that is another one.
fn libc_of(process: u32) -> String {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let files = maps
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5));
    let mut files = files.filter(|file| {
        let name = file.rsplit('/').next().unwrap_or_default();
        name.starts_with("libc.so") || name.starts_with("libc-") || name.starts_with("ld-musl-")
    });
    let Some(bytes) = files.next().and_then(|file| fs::read(file).ok()) else {
        return "unknown".into();
    };
    let len = bytes.len();
    name_in(bytes).unwrap_or_else(|| format!("{len} bytes"))
}

/// Finds the line in a GNU C library by which it names itself: it ends with a full stop, as few do.
fn name_in(bytes: Vec<u8>) -> Option<String> {
    let mut rest = &bytes[..];
    let mut line = Vec::new();
    while rest.read_until(b'\n', &mut line).ok()? > 0 {
        if line.ends_with(b".\n") {
            let mut at = line.windows(LIBC_TEXT.len());
            if let Some(at) = at.rposition(|at| at == LIBC_TEXT) {
                let text = line[at + LIBC_TEXT.len()..].trim_ascii_end();
                return Some(String::from_utf8_lossy(text).into_owned());
            }
        }
        line.clear();
    }
    None
}

/// Returns the beginning of a digest as text.
fn shown(digest: &[u8]) -> String {
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gnu_c_library_names_itself() {
        let file = b"\x7fELF\nx.\n\0GNU C Library (Debian GLIBC 2.36-9) stable release version \
                     2.36.\nCopyright";
        let named = "(Debian GLIBC 2.36-9) stable release version 2.36.";
        assert_eq!(name_in(file.to_vec()).as_deref(), Some(named));
        assert_eq!(name_in(b"another.\nlibrary".to_vec()), None);
    }

    #[test]
    fn this_process_has_a_c_library() {
        assert_ne!(libc_of(std::process::id()), "unknown");
    }
}
