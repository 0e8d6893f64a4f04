// SPDX-License-Identifier: Apache-2.0
//! Ordered unreliable multicast over real sockets.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use wirepaxos::oum::{Event, Group, Receiver, Sender, Sequencer};

const GROUP: Group = Group {
    cluster: 0xc1,
    group: 1,
    max_message: 16,
};
const PATIENCE: Duration = Duration::from_secs(20);
const NOW: Duration = Duration::from_millis(1);

struct World {
    sequencer: Sequencer,
    sender: Sender,
    /// The socket that gets the sequencer's packets; the test passes them on as it likes.
    link: UdpSocket,
    receiver: Receiver,
}

impl World {
    fn new() -> World {
        let link = UdpSocket::bind("127.0.0.1:0").unwrap();
        link.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut sequencer = Sequencer::bind("127.0.0.1:0", GROUP).unwrap();
        let to = link.local_addr().unwrap();
        sequencer.begin(3, 100, vec![to]).unwrap();
        let mut receiver = Receiver::bind("127.0.0.1:0", GROUP).unwrap();
        receiver.listen(3, 100, to).unwrap();
        World {
            sender: Sender::new(sequencer.address().unwrap(), GROUP).unwrap(),
            sequencer,
            link,
            receiver,
        }
    }

    /// Sends a message, and returns its packet on the way to the receiver.
    fn stamped(&mut self, message: &str) -> Vec<u8> {
        self.sender.send(message.as_bytes()).unwrap();
        assert_eq!(self.sequencer.serve(PATIENCE).unwrap(), 1);
        let mut buffer = [0; 2048];
        let len = self.link.recv(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    fn pass_on(&self, datagram: &[u8]) {
        self.link.send_to(datagram, self.to()).unwrap();
    }

    fn to(&self) -> SocketAddr {
        self.receiver.address().unwrap()
    }

    fn next(&mut self) -> String {
        match self.receiver.get_message(PATIENCE).unwrap() {
            Some(Event::Message { slot, message }) => {
                format!("{slot} {}", String::from_utf8(message).unwrap())
            }
            Some(Event::Dropped { slot }) => format!("{slot} dropped"),
            Some(Event::Terminated { session }) => format!("terminated {session}"),
            None => "nothing".into(),
        }
    }

    fn is_silent(&mut self) -> bool {
        self.receiver.get_message(NOW).unwrap().is_none()
    }
}

/// A receiver gets the messages in order, and a report of each one that it missed. [O-ONCE]
/// [O-WAIT]
#[test]
fn a_receiver_gets_the_order_and_what_it_missed() {
    let mut world = World::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|message| world.stamped(message));
    world.pass_on(&a);
    world.pass_on(&a);
    world.pass_on(&d);
    world.pass_on(&c);
    assert_eq!(world.next(), "100 a");
    assert_eq!(world.next(), "101 dropped");
    assert_eq!(world.next(), "102 c");
    assert_eq!(world.next(), "103 d");
    world.pass_on(&b);
    assert!(world.is_silent(), "its place was passed");
}

/// Packets of anybody but the session's sequencer are ignored. [O-SENDER] [O-LATER]
#[test]
fn nobody_else_is_heard() {
    let mut world = World::new();
    let a = world.stamped("a");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&a, world.to()).unwrap();
    let mut later = a.clone();
    // A base round is `session << 12`, from byte 16 on.
    later[16..20].copy_from_slice(&(4u32 << 12).to_be_bytes());
    world.pass_on(&later);
    world.pass_on(&a[..a.len() - 1]);
    world.pass_on(b"no packet");
    assert!(world.is_silent());
    assert_eq!(world.receiver.later_session(), Some(4));
    world.pass_on(&a);
    assert_eq!(world.next(), "100 a");
    world.receiver.terminate(4);
    assert_eq!(world.next(), "terminated 4");
    let link = world.link.local_addr().unwrap();
    world.receiver.listen(4, 100, link).unwrap();
    world.pass_on(&later);
    assert_eq!(world.next(), "100 a");
}

/// A sequencer accepts only later sessions, and stamps nothing before the first one. [Q-PROGRAM]
#[test]
fn sessions_only_grow_and_nothing_is_stamped_before_the_first() {
    let mut world = World::new();
    for session in [0, 2, 3, 1 << 20] {
        let refused = world.sequencer.begin(session, 0, Vec::new()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{session}");
    }
    world.stamped("as before");
    let mut new = Sequencer::bind("127.0.0.1:0", GROUP).unwrap();
    let mut sender = Sender::new(new.address().unwrap(), GROUP).unwrap();
    sender.send(b"too early").unwrap();
    assert_eq!(new.serve(PATIENCE).unwrap(), 0);
}

#[test]
fn what_is_too_long_is_refused_by_name() {
    let mut world = World::new();
    let refused = world.sender.send(&[0; 17]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a message of 17 bytes: this group's have at most 16"
    );
    let long = Group {
        max_message: 1409,
        ..GROUP
    };
    let refused = Receiver::bind("127.0.0.1:0", long).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "messages have at most 1400 bytes; choose that or less"
    );
    let refused = world
        .receiver
        .listen(0, 0, SocketAddr::from(([127, 0, 0, 1], 9)))
        .unwrap_err();
    assert_eq!(refused.to_string(), "sessions are 1 to 1048575");
}
