// SPDX-License-Identifier: Apache-2.0
//! Serves HTTP at a node's `metrics` address: metrics at all nodes, and at a controller a web page.
//!
//! Nothing here shares anything with the threads that do a node's work. A thread takes connections,
//! and a few more answer one request each. Requests are short and may only read, connections are
//! few and end in time, and the nodes are asked only so often, however many ask here.

mod answer;
mod cached_text;
mod request;
mod routes;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::host::Stop;
use crate::listen::{Connections, cannot_listen};
use crate::lock::lock;

use answer::Answer;
use request::Request;
use routes::Routes;

#[cfg(any(test, fuzzing))]
pub use request::parse as parse_request;

/// The most connections at once.
const MAX_CONNECTIONS: usize = 16;
/// The most connections at once from one address. A browser opens six.
const MAX_FROM_ONE: usize = 8;
/// The time limit for a request to arrive, and then for its answer to leave.
const TIMEOUT: Duration = Duration::from_secs(2);
const STACK_SIZE: usize = 512 << 10;

/// A server that runs until it is dropped.
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` for those who want to look at `node`.
    pub fn start(address: SocketAddr, cluster: &ClusterFile, node: &Node) -> Result<Server, Error> {
        let routes = Arc::new(Routes::new(cluster, node));
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let stop = Stop::new()?;
            let stopped = stop.clone();
            let thread = std::thread::Builder::new().name("metrics".to_owned());
            let thread = thread.spawn(move || serve(listener, &routes, &stopped))?;
            Ok(Server {
                stop,
                thread: Some(thread),
            })
        };
        listen().map_err(|e: io::Error| Error::new(cannot_listen(address, "TCP", "metrics", &e)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // The thread holds nothing that a panic could have damaged.
            let _ = thread.join();
        }
    }
}

fn serve(listener: TcpListener, routes: &Arc<Routes>, stop: &Stop) {
    let seats = Arc::new(Seats::default());
    for stream in Connections::new(listener, "metrics", stop) {
        let seat = stream.peer_addr().ok();
        let Some(seat) = seat.and_then(|from| Seat::take(&seats, from.ip())) else {
            // Whoever isn't ready for these few bytes only finds the connection closed.
            let _ = Answer::busy().send_at_once(&stream);
            continue;
        };
        let routes = routes.clone();
        let thread = std::thread::Builder::new()
            .name("metrics-answer".to_owned())
            .stack_size(STACK_SIZE);
        // Without a thread the connection is closed.
        let _ = thread.spawn(move || {
            // A reader that disconnects or is too slow misses its answer.
            let _ = answer(&stream, &routes);
            drop(stream);
            drop(seat);
        });
    }
}

fn answer(stream: &TcpStream, routes: &Routes) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let answer = match Request::receive(stream, Instant::now() + TIMEOUT)? {
        Ok(request) => routes.answer(&request),
        Err(refusal) => Answer::refusal(refusal),
    };
    answer.send(stream, Instant::now() + TIMEOUT)
}

/// The addresses from which connections are open.
type Seats = Mutex<Vec<IpAddr>>;

/// A connection that counts until this is dropped.
struct Seat {
    seats: Arc<Seats>,
    from: IpAddr,
}

impl Seat {
    fn take(seats: &Arc<Seats>, from: IpAddr) -> Option<Seat> {
        let mut all = lock(seats);
        let of_one = all.iter().filter(|ip| **ip == from).count();
        if all.len() >= MAX_CONNECTIONS || of_one >= MAX_FROM_ONE {
            return None;
        }
        all.push(from);
        Some(Seat {
            seats: seats.clone(),
            from,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = lock(&self.seats);
        if let Some(at) = all.iter().position(|ip| *ip == self.from) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_socket::ControlSocket;
    use crate::host::wait;
    use control::Message;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_scraper_gets_the_status_and_the_thread_ends() {
        let host = crate::loopback::draw().unwrap();
        let sample = include_str!("../../../testdata/cluster.toml");
        let sample = sample.replace("127.0.0.1", &host.to_string());
        let cluster = crate::cluster_file::parse(&sample, "test").unwrap();
        let leader = cluster.node("leader-1").unwrap();
        let free: SocketAddr = (host, 9999).into();
        let mut node = ControlSocket::bind(&cluster, leader).unwrap();
        let server = Server::start(free, &cluster, leader).unwrap();
        let mut scraper = TcpStream::connect(free).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut receive = || {
            wait(&[node.as_fd()], Some(Duration::from_secs(10))).unwrap();
            node.receive()
        };
        // The first message is answered with a challenge.
        let (message, from) = receive().or_else(receive).unwrap();
        let Message::StatusRequest { id, part: 0 } = message else {
            panic!("{message:?}");
        };
        node.keep_status(
            id,
            &json!({ "name": "leader-1", "role": "leader", "uptime_s": 12 }),
        );
        node.send_status(from, id, 0);
        let mut shown = String::new();
        scraper.read_to_string(&mut shown).unwrap();
        assert!(shown.starts_with("HTTP/1.1 200 OK\r\n"), "{shown}");
        let uptime = "wirepaxos_uptime_seconds{node=\"leader-1\",role=\"leader\"} 12\n";
        assert!(shown.contains(uptime), "{shown}");
        drop(server);
        assert!(TcpStream::connect(free).is_err());
    }
}
