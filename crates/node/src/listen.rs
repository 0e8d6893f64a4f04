//! Binds the sockets that the cluster file names.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use crate::Error;

/// A UDP socket that doesn't wait; `key` is the address's name in the cluster file.
pub(crate) fn udp(address: SocketAddr, key: &str) -> Result<UdpSocket, Error> {
    let bind = || {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    bind().map_err(|e| cannot_listen(address, key, &e))
}

/// Why there is no UDP socket, with what is most often the cause.
pub(crate) fn cannot_listen(address: SocketAddr, key: &str, why: &io::Error) -> Error {
    Error::new(format!(
        "can't listen on {address} (UDP, `{key}`): {why}; is the node running already?"
    ))
}
