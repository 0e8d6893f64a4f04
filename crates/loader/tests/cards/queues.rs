// SPDX-License-Identifier: Apache-2.0
//! Tests of cards' queues, checksums and drivers.

use super::*;

/// Requests by all queues at once: each is stamped once, and each member gets each proposal once.
#[test]
fn every_queue_of_a_card_serves() {
    const FLOWS: u16 = 64;
    const ROUNDS: u64 = 8;
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let number = pairs
        .iter()
        .position(|pair| pair.expected() == Mode::Native);
    let number = number.expect("one of them is native");
    let pairs = Rc::new(RefCell::new(pairs));
    let setup = Setup::new(script::Role::Leader, deployment(), 1, 7);
    let attached = Attached::default();
    let at = (&pairs, number);
    let leader = AtCard::new(&dir, &setup, at, &attached, Multicast::Egress, false);
    let mut leader = leader.expect("it loads");
    let program = Program {
        epoch: 1,
        nonce: 7,
        next: vec![0],
        trimmed: vec![0],
        window: u64::MAX,
        acceptors: vec![11],
        f: 0,
        replicas: vec![31],
        g: 0,
    };
    assert_eq!(leader.order(&Order::Program(program)), Ok(true));
    let request = Header {
        cluster: deployment().cluster,
        group: deployment().group,
        client: 7,
        request: 1,
        ..Header::new(MsgType::Request)
    };
    let request = request.datagram(b"a value");
    let mut got = BTreeMap::new();
    {
        let all = pairs.borrow();
        let pair = &all[number];
        for round in 0..ROUNDS * u64::from(FLOWS) / 8 {
            for flow in 0..8 {
                let port = 9001 + (round * 8 + flow) as u16 % FLOWS;
                let from = SocketAddr::from((frame::V4_FROM, port));
                let to = SocketAddr::from(([10, 0, 0, 1], PORT));
                pair.send(&frame::between(from, to, &request));
            }
            for copy in collect(pair, 8 * usize::from(MEMBERS)) {
                let head = frame::head_len(false);
                assert!(frame::checksum_is_right(&copy, false));
                let stamped = paxos::Packet::parse(&copy[head..]).expect("a good packet");
                let member = copy[head - 8 - 1];
                *got.entry((member, stamped.header.inst)).or_insert(0) += 1;
            }
        }
    }
    let stamped = ROUNDS * u64::from(FLOWS);
    let expected: BTreeMap<_, _> = (0..MEMBERS)
        .flat_map(|member| (0..stamped).map(move |inst| ((member, inst), 1)))
        .collect();
    assert_eq!(got, expected);
    let object = &leader.inner.loaded.object;
    let busy = (0..object.cpus()).filter(|cpu| object.counters_of(*cpu).of[counter::CHANGED] > 0);
    assert!(busy.count() > 1, "all came by one queue");
}

/// A checksum that a sender's kernel leaves to its card is completed before a program sees it, or
/// the program refuses the packet.
#[test]
fn a_checksum_that_is_left_to_the_card_is_complete_or_refused() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let count = pairs.len();
    let pairs = Rc::new(RefCell::new(pairs));
    let attached = Attached::default();
    for number in 0..count {
        let setup = Setup::new(script::Role::Acceptor, deployment(), 16, 7);
        let at = (&pairs, number);
        let acceptor = AtCard::new(&dir, &setup, at, &attached, Multicast::Egress, false);
        let mut acceptor = acceptor.expect("it loads");
        assert_eq!(acceptor.order(&Order::Enable(enable())), Ok(true));
        let pairs = Rc::clone(&pairs);
        let pairs = pairs.borrow();
        let pair = &pairs[number];
        let (name, [near_mac, _]) = (&pair.end.name, MACS);
        let lines = [
            format!("address replace 10.0.0.2/24 dev {name}"),
            format!("neigh replace 10.0.0.1 lladdr {near_mac} dev {name} nud permanent"),
        ];
        pair.far.ip(&lines).expect("root");
        let from = SocketAddr::from((frame::V4_FROM, 9001));
        let socket = pair
            .far
            .inside(|| UdpSocket::bind(from))
            .expect("it is there");
        let mut votes_for = |inst: Instance| {
            let proposal = Header {
                cluster: deployment().cluster,
                group: deployment().group,
                inst,
                rnd: Round::base(1),
                client: 7,
                request: 1,
                ..Header::new(MsgType::Phase2a)
            };
            let proposal = proposal.datagram(b"a value");
            socket
                .send_to(&proposal, ("10.0.0.1", PORT))
                .expect("there is a way");
            acceptor.verdict(pair, &proposal)
        };
        let left_to_it = match &pair.word[..] {
            // The driver lets the other side go without, which it can't take back.
            "partial" => Verdict::Dropped(Reason::BadChecksum),
            _ => Verdict::Changed,
        };
        assert_eq!(votes_for(0), left_to_it, "{}", pair.word);
        pair.far
            .inside(|| prepare_for_xdp(name))
            .expect("any driver can");
        assert_eq!(votes_for(1), Verdict::Changed, "{}", pair.word);
    }
    // Votes are on their way to the other end.
    std::thread::sleep(Duration::from_millis(20));
    for pair in pairs.borrow().iter() {
        while pair.next().is_some() {}
    }
}

#[test]
fn a_card_whose_driver_refuses_programs_is_told_in_its_words() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let Some(mount) = Mount::new("cards") else {
        return;
    };
    let mut said = BTreeMap::new();
    for (number, pair) in pairs.iter().enumerate() {
        let setup = Setup::new(script::Role::Acceptor, deployment(), 16, 7);
        let mut device = XdpDevice::new(&dir, &setup, false).expect("it loads");
        let pins = mount.pins(0xc1, &format!("acceptor-{number}"));
        let object = &mut device.loaded.object;
        let attached = pair
            .near
            .inside(|| object.attach_kept(&pair.port, pins.path()));
        let attached = attached.expect("any card can");
        assert_eq!(attached.mode, pair.expected(), "{}", pair.word);
        println!(
            "{} ({}): {:?}",
            pair.word,
            pair.driver(),
            attached.why_generic
        );
        said.insert(pair.word.clone(), attached.why_generic.clone());
        drop(attached);
        pins.remove().expect("it is there");
    }
    assert_eq!(said["native"], None);
    let partial = said["partial"].as_ref().expect("it has a reason");
    assert!(
        partial.contains("its driver (virtio_net) says"),
        "{partial}"
    );
    assert!(partial.contains("GRO_HW/CSUM"), "{partial}");
    assert!(said["generic"].is_some(), "e1000e has no XDP");
}
