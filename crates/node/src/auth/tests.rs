// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paxos::auth::Replays;
use paxos::wire::{HEADER_LEN, TAG_LEN};
use paxos::{Flags, MsgType, Packet, Reason, Round};

use super::*;
use crate::cluster_file;
use crate::senders::Senders;

/// How many bytes of header and tag `mac` covers.
const SIGNED_LEN: usize = HEADER_LEN + Tag::SIGNED_LEN;
const SAMPLE: &str = include_str!("../../../../testdata/cluster.toml");

/// Returns the keys of a holder of this file.
fn ring(file: &KeyFile) -> Arc<Keyring> {
    Arc::new(keyring(file, Algorithm::SipHash))
}

fn nodes_file() -> KeyFile {
    KeyFile::new(0x5eed_0001).unwrap()
}

fn header(msgtype: MsgType) -> Header {
    Header {
        cluster: 0x5eed_0001,
        inst: 5,
        rnd: Round::base(1),
        swid: 31,
        client: 1 << 16,
        request: 1,
        ..Header::new(msgtype)
    }
}

/// Returns the bytes of a signed packet for a reader.
fn signed_for(reader: u8, keyring: &Arc<Keyring>, header: &Header, value: &[u8]) -> Vec<u8> {
    let mut signer = Signer::new(Some(keyring.clone()));
    let head = signer.0.as_mut().unwrap().sign(header, value, reader);
    [&head.unwrap()[..], value].concat()
}

fn signed(keyring: &Arc<Keyring>, header: &Header, value: &[u8]) -> Vec<u8> {
    signed_for(NODES, keyring, header, value)
}

/// Returns how a holder of these keys judges a datagram that comes from a node's address.
fn verdict(keyring: &Arc<Keyring>, datagram: &[u8]) -> Result<(), Reason> {
    let cluster = cluster_file::parse(SAMPLE, "cluster.toml").unwrap();
    let senders = Senders::of(&cluster).with(Some(keyring.clone()));
    let from = cluster.node_by_id(31).unwrap().address;
    senders.parse(datagram, &from).map(drop)
}

/// Packets signed with the nodes' key count, and no others. [M-SIGNED]
#[test]
fn what_is_signed_with_the_nodes_key_counts_and_nothing_else() {
    let file = nodes_file();
    let (own, strangers) = (ring(&file), ring(&nodes_file()));
    for msgtype in MsgType::ALL {
        let header = header(msgtype);
        let unsigned = header.datagram(b"value");
        assert_eq!(verdict(&own, &unsigned), Err(Reason::Unsigned));
        for value in [&b""[..], b"value", &[7; 1400]] {
            assert_eq!(verdict(&own, &signed(&own, &header, value)), Ok(()));
            let foreign = signed(&strangers, &header, value);
            assert_eq!(verdict(&own, &foreign), Err(Reason::BadMac));
        }
    }
    let elsewhere = Header {
        cluster: 1,
        ..header(MsgType::Phase2a)
    };
    let datagram = signed(&own, &elsewhere, b"x");
    assert_eq!(verdict(&own, &datagram), Err(Reason::WrongCluster));
}

/// Changes each bit of the header (384), of the tag and of the value. [M-SIGNED]
#[test]
fn no_bit_can_be_changed_on_the_way() {
    let keyring = ring(&nodes_file());
    let good = signed(&keyring, &header(MsgType::Phase2a), b"the value");
    assert_eq!(verdict(&keyring, &good), Ok(()));
    let mut found = BTreeMap::new();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        let reason = verdict(&keyring, &bad).expect_err("it was changed");
        let part = match bit / 8 {
            ..HEADER_LEN => "header",
            HEADER_LEN..SIGNED_LEN => "tag",
            byte if byte < HEADER_LEN + TAG_LEN => "mac",
            _ => "value",
        };
        *found.entry((part, reason.name())).or_insert(0) += 1;
    }
    let sum = |part| {
        let of = found.iter().filter(|((p, _), _)| *p == part);
        of.map(|(_, n)| n).sum::<usize>()
    };
    assert_eq!(
        [sum("header"), sum("tag"), sum("mac"), sum("value")],
        [384, 128, 64, 72]
    );
    assert_eq!(found[&("mac", "bad_mac")], 64);
    assert_eq!(found[&("value", "bad_digest")], 72);
    // A packet that is no longer well formed, or names another sender, is dropped for that reason.
    let of_header = found.keys().filter(|(part, _)| *part == "header");
    let reasons: Vec<_> = of_header.map(|(_, reason)| *reason).collect();
    let known = [
        "bad_flags",
        "bad_length",
        "bad_mac",
        "bad_version",
        "foreign_address",
        "unknown_type",
        "wrong_cluster",
    ];
    assert!(
        reasons.iter().all(|reason| known.contains(reason)),
        "{reasons:?}"
    );
}

/// A tag is valid only for its own packet, and only as a whole. [M-SIGNED]
#[test]
fn a_tag_is_good_for_its_own_packet_and_whole() {
    let keyring = ring(&nodes_file());
    let [one, other] =
        [b"one", b"two"].map(|value| signed(&keyring, &header(MsgType::Phase2a), value));
    let mut swapped = one.clone();
    swapped[HEADER_LEN..HEADER_LEN + TAG_LEN]
        .copy_from_slice(&other[HEADER_LEN..HEADER_LEN + TAG_LEN]);
    assert_eq!(verdict(&keyring, &swapped), Err(Reason::BadDigest));
    let elsewhere = Header {
        inst: 6,
        ..header(MsgType::Phase2a)
    };
    let elsewhere = signed(&keyring, &elsewhere, b"one");
    swapped.clone_from(&one);
    swapped[HEADER_LEN..HEADER_LEN + TAG_LEN]
        .copy_from_slice(&elsewhere[HEADER_LEN..HEADER_LEN + TAG_LEN]);
    assert_eq!(verdict(&keyring, &swapped), Err(Reason::BadMac));
    for len in 0..one.len() {
        let reason = verdict(&keyring, &one[..len]).unwrap_err();
        assert!(
            matches!(reason, Reason::Truncated | Reason::BadLength),
            "{len}"
        );
    }
    // The tag is removed together with its flag.
    let without = header(MsgType::Phase2a).datagram(b"one");
    assert_eq!(verdict(&keyring, &without), Err(Reason::Unsigned));
    let mut other_way = one;
    other_way[HEADER_LEN + 1] = 2;
    assert_eq!(verdict(&keyring, &other_way), Err(Reason::UnknownKey));
}

/// A cluster signs with one algorithm, and accepts no tag of the other one. [M-SIGNED]
#[test]
fn by_halfsiphash_it_is_the_same() {
    let file = nodes_file();
    let half = |file: &KeyFile| Arc::new(keyring(file, Algorithm::HalfSipHash));
    let (own, strangers) = (half(&file), half(&nodes_file()));
    let header = header(MsgType::Phase2a);
    for value in [&b""[..], b"value", &[7; 1400]] {
        assert_eq!(verdict(&own, &signed(&own, &header, value)), Ok(()));
        let foreign = signed(&strangers, &header, value);
        assert_eq!(verdict(&own, &foreign), Err(Reason::BadMac));
    }
    let [by_half, whole] = [
        signed(&own, &header, b"x"),
        signed(&ring(&file), &header, b"x"),
    ];
    assert_eq!([by_half[HEADER_LEN + 1], whole[HEADER_LEN + 1]], [2, 1]);
    assert_eq!(verdict(&own, &whole), Err(Reason::UnknownKey));
    assert_eq!(verdict(&ring(&file), &by_half), Err(Reason::UnknownKey));
    for bit in 0..by_half.len() * 8 {
        let mut bad = by_half.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        verdict(&own, &bad).expect_err("it was changed");
    }
}

/// A client can send commands, and accepts packets that are signed for it. [M-SIGNED]
#[test]
fn a_client_can_send_commands_and_hears_what_is_for_it() {
    let mut file = nodes_file();
    let [billing, shop] = ["billing", "shop"].map(|name| ring(&file.client(name).unwrap()));
    let nodes = ring(&file);
    for msgtype in MsgType::ALL {
        let datagram = signed(&billing, &header(msgtype), b"x");
        let expected = match msgtype {
            MsgType::Request | MsgType::Read => Ok(()),
            _ => Err(Reason::ForeignKey),
        };
        assert_eq!(verdict(&nodes, &datagram), expected, "{msgtype:?}");
        assert_eq!(
            verdict(&shop, &datagram),
            Err(Reason::UnknownKey),
            "{msgtype:?}"
        );
    }
    // This packet names another client.
    let mut forged = signed(&billing, &header(MsgType::Request), b"x");
    forged[HEADER_LEN] = KeyId {
        odd: true,
        number: 2,
    }
    .emit();
    assert_eq!(verdict(&nodes, &forged), Err(Reason::BadMac));
    // This packet names the nodes.
    forged[HEADER_LEN] = KeyId {
        odd: true,
        number: 0,
    }
    .emit();
    assert_eq!(verdict(&nodes, &forged), Err(Reason::BadMac));
    let answer = header(MsgType::Reply);
    let for_billing = signed_for(billing.number(), &nodes, &answer, b"ok");
    assert_eq!(verdict(&billing, &for_billing), Ok(()));
    assert_eq!(verdict(&shop, &for_billing), Err(Reason::UnknownKey));
    assert_eq!(verdict(&nodes, &for_billing), Err(Reason::ForeignKey));
    assert_eq!(
        verdict(&billing, &signed(&nodes, &answer, b"ok")),
        Err(Reason::UnknownKey)
    );
}

/// Holders of the files before and after each step understand each other, and packets two
/// generations old are refused. [M-SIGNED]
#[test]
fn a_secret_is_replaced_while_packets_pass() {
    let mut file = nodes_file();
    let mut before = ring(&file);
    let oldest = signed(&before, &header(MsgType::Phase2a), b"x");
    for _ in 0..2 {
        for _ in 0..3 {
            file.rotate().unwrap();
            let after = ring(&file);
            for (from, to) in [(&before, &after), (&after, &before)] {
                assert_eq!(
                    verdict(to, &signed(from, &header(MsgType::Phase2a), b"x")),
                    Ok(())
                );
            }
            before = after;
        }
    }
    // The third generation has the same bit as the first one, and another secret.
    assert_eq!(verdict(&before, &oldest), Err(Reason::BadMac));
    file.rotate().unwrap();
    file.rotate().unwrap();
    let of_fourth = signed(&ring(&file), &header(MsgType::Phase2a), b"x");
    assert_eq!(verdict(&before, &of_fourth), Err(Reason::UnknownKey));
}

/// Tags agree with the golden bytes. [M-SIGNED]
#[test]
fn tags_are_those_of_the_golden_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/wire/tags.txt");
    let text = fs::read_to_string(path).unwrap();
    let records = text
        .split("\n\n")
        .filter(|record| record.starts_with("name"));
    let mut checked = BTreeMap::new();
    for record in records {
        let field = |key: &str| {
            let mut lines = record.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(k, _)| *k == key).unwrap().1
        };
        let number = |key| field(key).parse::<u64>().unwrap();
        let bytes: Vec<u8> = record
            .lines()
            .filter_map(|line| line.strip_prefix("bytes "))
            .flat_map(|line| unhex(&line.replace(' ', "")))
            .collect();
        let packet = Packet::parse(&bytes).unwrap();
        let generation = number("generation");
        let file = file_of(field("secret"), generation, packet.header.cluster);
        let algorithm = match packet.tag.unwrap()[1] {
            Tag::SIPHASH => Algorithm::SipHash,
            _ => Algorithm::HalfSipHash,
        };
        let keyring = keyring(&file, algorithm);
        let header = Header {
            flags: Flags(packet.header.flags.0 & !Flags::TAG.0),
            ..packet.header
        };
        let reader = number("number") as u8;
        let again = keyring.datagram(&header, packet.value, reader, number("counter"));
        assert_eq!(again.unwrap(), bytes, "{record}");
        *checked.entry(algorithm.number()).or_insert(0) += 1;
    }
    assert_eq!(checked, BTreeMap::from([(1, 7), (2, 7)]));
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits = (0..hex.len()).step_by(2);
    digits
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// Returns the nodes' key file with this secret.
fn file_of(secret: &str, generation: u64, cluster: u32) -> KeyFile {
    let dir = crate::test_dir::TestDir::new();
    let path = dir.path().join("nodes.key");
    let text = format!(
        "version = 1\nholder = \"nodes\"\ncluster = \"{cluster:08x}\"\nsigns = {generation}\n\
         [[secret]]\ngeneration = {generation}\nsecret = \"{secret}\"\n"
    );
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    KeyFile::load_nodes(&path, cluster).unwrap()
}

/// Returns a request with this counter.
fn request(keyring: &Keyring, client: u64, counter: u64) -> Vec<u8> {
    let header = Header {
        client,
        ..header(MsgType::Request)
    };
    keyring.datagram(&header, b"x", NODES, counter).unwrap()
}

/// A request that is sent again is dropped. [M-REPLAYED]
#[test]
fn a_request_that_somebody_sends_again_is_dropped() {
    let keyring = ring(&nodes_file());
    let mut replays = Replays::new(true);
    let mut admit = |client, counter| {
        let datagram = request(&keyring, client, counter);
        replays.admit(Packet::parse(&datagram).unwrap()).map(drop)
    };
    let replayed = Err(Reason::Replayed);
    assert_eq!(admit(1, 1000), Ok(()));
    assert_eq!(admit(1, 1000), replayed);
    // This request was overtaken on its way, but not by far.
    assert_eq!(admit(1, 937), Ok(()));
    assert_eq!(admit(1, 937), replayed);
    assert_eq!(admit(1, 936), replayed);
    assert_eq!(admit(1, 1001), Ok(()));
    assert_eq!(admit(1, 1000), replayed);
    assert_eq!(admit(1, 938), Ok(()));
    assert_eq!(admit(1, 937), replayed);
    // This counter is far ahead, and makes all earlier ones old.
    assert_eq!(admit(1, 1 << 40), Ok(()));
    assert_eq!(admit(1, 1001), replayed);
    // Another client has its own counters.
    assert_eq!(admit(2, 5), Ok(()));
    assert_eq!(admit(2, 5), replayed);
    assert_eq!(admit(1, 1 << 40), replayed);
}

/// Many clients are remembered at once. [M-REPLAYED]
#[test]
fn many_clients_are_remembered_at_once() {
    let keyring = ring(&nodes_file());
    let mut replays = Replays::new(true);
    let clients = 1..=1_000u64;
    for again in [false, true] {
        let mut admitted = 0;
        for client in clients.clone() {
            // Session ids are places in the log, with the place in a pack in their low bits.
            let datagram = request(&keyring, client << 16, 7);
            admitted += u32::from(replays.admit(Packet::parse(&datagram).unwrap()).is_ok());
        }
        assert_eq!(admitted, if again { 0 } else { 1_000 });
    }
    // Other packets aren't checked, nor any packets if nothing is signed.
    let vote = signed(&keyring, &header(MsgType::Phase2b), b"x");
    let mut off = Replays::new(false);
    let unsigned = header(MsgType::Request).datagram(b"x");
    for _ in 0..2 {
        assert!(replays.admit(Packet::parse(&vote).unwrap()).is_ok());
        assert!(off.admit(Packet::parse(&unsigned).unwrap()).is_ok());
    }
}

/// However many clients there were, and in whatever order their requests come again, each request
/// is taken only once. [M-REPLAYED]
#[test]
fn who_is_forgotten_cant_be_repeated() {
    let keyring = ring(&nodes_file());
    let mut replays = Replays::new(true);
    let recorded: Vec<_> = (1..=100_000u64)
        .map(|client| request(&keyring, client << 16, 1_000 + client))
        .collect();
    let mut admitted = |datagrams: &mut dyn Iterator<Item = &Vec<u8>>| {
        let verdicts = datagrams.map(|datagram| replays.admit(Packet::parse(datagram).unwrap()));
        verdicts.filter(Result::is_ok).count()
    };
    assert_eq!(admitted(&mut recorded.iter()), 100_000);
    for _ in 0..2 {
        assert_eq!(admitted(&mut recorded.iter()), 0);
        assert_eq!(admitted(&mut recorded.iter().rev()), 0);
    }
    // Each of these clients is still served, since its counters follow the time.
    let later = (1..=100_000u64).map(|client| request(&keyring, client << 16, 200_000 + client));
    let later: Vec<_> = later.collect();
    assert_eq!(admitted(&mut later.iter()), 100_000);
    assert_eq!(admitted(&mut later.iter()), 0);
    assert_eq!(admitted(&mut recorded.iter()), 0);
}

/// A holder of a client's key can't use up the counters of another holder's client, or have that
/// client forgotten. [M-REPLAYED]
#[test]
fn holders_count_by_themselves() {
    let mut file = nodes_file();
    let [billing, shop] = ["billing", "shop"].map(|name| ring(&file.client(name).unwrap()));
    let mut replays = Replays::new(true);
    let mut admit = |keyring, client, counter| {
        let datagram = request(keyring, client, counter);
        replays.admit(Packet::parse(&datagram).unwrap()).map(drop)
    };
    let last = Tag::COUNTERS - 1;
    assert_eq!(admit(&billing, 7, 1_000), Ok(()));
    assert_eq!(admit(&shop, 7, last), Ok(()));
    for client in 0..40_000 {
        // Clients for which there is no room are refused.
        let _ = admit(&shop, client, last);
    }
    assert_eq!(admit(&shop, 50_000, 1_001), Err(Reason::Replayed));
    assert_eq!(admit(&billing, 7, 1_000), Err(Reason::Replayed));
    assert_eq!(admit(&billing, 7, 1_001), Ok(()));
    assert_eq!(admit(&ring(&file), 7, 1_001), Ok(()));
}

/// Counters of requests follow the time. [M-REPLAYED]
#[test]
fn counters_of_requests_follow_the_time() {
    let mut signing = Signing {
        keyring: ring(&nodes_file()),
        counter: 5,
    };
    let mut counter = |msgtype| {
        signing.sign(&header(msgtype), b"x", NODES).unwrap();
        signing.counter
    };
    assert_eq!(counter(MsgType::Phase2a), 6);
    let before = time();
    let first = counter(MsgType::Request);
    assert!((before..=time()).contains(&first));
    assert!(counter(MsgType::Request) > first);
    let ahead = time() + (1 << 30);
    signing.counter = ahead;
    signing
        .sign(&header(MsgType::Request), b"x", NODES)
        .unwrap();
    assert_eq!(signing.counter, ahead + 1, "the clock was put back");
}
