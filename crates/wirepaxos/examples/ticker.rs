// SPDX-License-Identifier: Apache-2.0
//! A price feed on ordered unreliable multicast, without replication: every screen shows prices in
//! one order, and knows which ones it missed.
//!
//!     cargo run -p wirepaxos --no-default-features --example ticker
//!
//! Two exchanges send trades to a sequencer; three screens listen, the third behind a link that
//! loses one datagram of eight. It needs no privileges and runs on loopback.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use wirepaxos::oum::{Event, Group, Receiver, Sender, Sequencer};

const GROUP: Group = Group {
    cluster: 0x71c4e2,
    group: 1,
    max_message: 64,
};
const SESSION: u32 = 1;
const TRADES: usize = 400;

fn main() -> io::Result<()> {
    let mut screens = Vec::new();
    for _ in 0..3 {
        screens.push(Receiver::bind("127.0.0.1:0", GROUP)?);
    }
    let mut sequencer = Sequencer::bind("127.0.0.1:0", GROUP)?;
    let address = sequencer.address()?;
    let bad_link = BadLink::to(screens[2].address()?)?;
    let receivers = vec![
        screens[0].address()?,
        screens[1].address()?,
        bad_link.address()?,
    ];
    sequencer.begin(SESSION, 0, receivers)?;
    for screen in &mut screens[..2] {
        screen.listen(SESSION, 0, address)?;
    }
    screens[2].listen(SESSION, 0, bad_link.address()?)?;

    let done = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&done);
    let ordering = thread::spawn(move || -> io::Result<()> {
        while !ends.load(Relaxed) {
            sequencer.serve(Duration::from_millis(20))?;
        }
        Ok(())
    });
    let ends = Arc::clone(&done);
    let linking = thread::spawn(move || bad_link.run(&ends));
    let showing: Vec<_> = screens
        .into_iter()
        .map(|screen| thread::spawn(move || show(screen)))
        .collect();

    let exchanges = ["north", "south"].map(|name| thread::spawn(move || trade(name, address)));
    for exchange in exchanges {
        exchange.join().expect("it doesn't panic")?;
    }
    let mut shown = Vec::new();
    for screen in showing {
        shown.push(screen.join().expect("it doesn't panic")?);
    }
    done.store(true, Relaxed);
    ordering.join().expect("it doesn't panic")?;
    linking.join().expect("it doesn't panic")?;

    for (at, screen) in shown.iter().enumerate() {
        let missed = screen.iter().filter(|trade| trade.is_none()).count();
        println!("screen {at}: {} places, {missed} missed", screen.len());
    }
    let ends = shown.iter().map(Vec::len).min().unwrap_or(0);
    for place in 0..ends {
        let mut seen = shown.iter().filter_map(|screen| screen[place].as_ref());
        if let Some(first) = seen.next() {
            assert!(seen.all(|other| other == first), "at place {place}");
        }
    }
    println!("all screens agree on each place that they have");
    Ok(())
}

/// Runs an exchange, which sends a trade now and then.
fn trade(name: &str, sequencer: SocketAddr) -> io::Result<()> {
    let mut sender = Sender::new(sequencer, GROUP)?;
    for n in 0..TRADES {
        sender.send(format!("{name} {n}: {}", 100 + n * 7 % 23).as_bytes())?;
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Runs a screen, and returns what it shows at each place, until the feed has been silent for a
/// while.
fn show(mut screen: Receiver) -> io::Result<Vec<Option<String>>> {
    let mut shown = Vec::new();
    while let Some(event) = screen.get_message(Duration::from_secs(1))? {
        match event {
            Event::Message { message, .. } => {
                shown.push(Some(String::from_utf8_lossy(&message).into_owned()));
            }
            Event::Dropped { .. } => shown.push(None),
            Event::Terminated { .. } => break,
        }
    }
    Ok(shown)
}

/// Passes datagrams on, except every eighth.
struct BadLink {
    socket: UdpSocket,
    to: SocketAddr,
}

impl BadLink {
    fn to(to: SocketAddr) -> io::Result<BadLink> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(BadLink { socket, to })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn run(&self, done: &AtomicBool) -> io::Result<()> {
        let mut buffer = [0; 2048];
        let mut count = 0u32;
        while !done.load(Relaxed) {
            let Ok(len) = self.socket.recv(&mut buffer) else {
                continue;
            };
            count += 1;
            if count % 8 != 0 {
                self.socket.send_to(&buffer[..len], self.to)?;
            }
        }
        Ok(())
    }
}
