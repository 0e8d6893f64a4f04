// SPDX-License-Identifier: Apache-2.0
//! Tells systemd that a service is ready (`Type=notify`, sd_notify(3)). Elsewhere nothing happens.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable that names the socket of the service manager.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Says that this process is ready, if anybody wants to know.
pub fn tell() {
    let Some(socket) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(e) = send(&socket) {
        eprintln!("wirepaxos: can't tell {socket:?} ({VARIABLE}) that it is ready: {e}");
    }
}

/// A name that begins with `@` is one of the abstract namespace.
fn send(socket: &OsStr) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sent = UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    debug_assert!(sent > 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_by_either_kind_of_name() {
        let name = format!("wirepaxos-readiness-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).unwrap();
        let hidden = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&hidden).unwrap();
        send(path.as_os_str()).unwrap();
        send(OsStr::new(&format!("@{name}"))).unwrap();
        for manager in [by_path, by_name] {
            manager.set_nonblocking(true).unwrap();
            let mut said = [0; 16];
            let n = manager.recv(&mut said).unwrap();
            assert_eq!(&said[..n], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str()).is_err(), "nobody listens");
    }
}
