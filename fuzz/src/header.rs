// SPDX-License-Identifier: Apache-2.0
//! Any bytes: the header's parser, the checks that follow it, and every structured value.

use paxos::wire::nopaxos::{GapRequest, Noops, SyncPrepare, max_noop_ranges};
use paxos::wire::value::{
    PackedItem, Probe, ProbeReport, RangeReport, Rejection, Vector, append_packed, packed_is_valid,
    packed_items, parse_marker,
};
use paxos::wire::{HEADER_LEN, TAG_LEN};
use paxos::{Deployment, Packet, Round};

/// Parsing never panics, and what is accepted is exactly what would be written.
pub fn run(data: &[u8]) {
    values(data);
    let Ok(packet) = Packet::parse(data) else {
        return;
    };
    let tag_len = packet.tag.map_or(0, |_| TAG_LEN);
    assert_eq!(HEADER_LEN + tag_len + packet.value.len(), data.len());
    let mut emitted = [0; HEADER_LEN];
    packet.header.emit(&mut emitted);
    assert_eq!(emitted, data[..HEADER_LEN]);

    let deployment = Deployment {
        cluster: packet.header.cluster,
        group: packet.header.group,
        partitions: 4,
        max_value: 1024,
        node: 1,
    };
    let accepted = deployment.check(&packet).is_ok();
    assert!(!accepted || packet.header.pid < 4 && packet.value.len() <= 1024);
    values(packet.value);
    noops(packet.value, packet.header.inst);
}

fn values(value: &[u8]) {
    if let Ok(report) = RangeReport::parse(value) {
        assert_eq!(report.emit(), value);
    }
    if let Ok(rejection) = Rejection::parse(value) {
        assert_eq!(rejection.emit(), value);
    }
    if let Ok(report) = ProbeReport::parse(value) {
        assert_eq!(report.emit(), value);
    }
    if let Ok(probe) = Probe::parse(value) {
        assert_eq!(probe.emit(), value);
    }
    if let Ok(asked) = GapRequest::parse(value) {
        assert_eq!(asked.emit(), value);
    }
    let _ = parse_marker(value);
    packed(value);
    vector(value);
}

fn packed(value: &[u8]) {
    let items: Vec<PackedItem<'_>> = packed_items(value).filter_map(Result::ok).collect();
    let mut written = Vec::new();
    for item in &items {
        append_packed(&mut written, item);
    }
    assert!(value.starts_with(&written));
    assert_eq!(
        packed_is_valid(value),
        !value.is_empty() && written == value
    );
}

fn vector(value: &[u8]) {
    let Ok(vector) = Vector::parse(value) else {
        return;
    };
    let pids: Vec<u16> = vector.iter().map(|(pid, _)| pid).collect();
    let mut stamped = value.to_vec();
    Vector::stamp(&mut stamped, Round::base(9), |pid| u64::from(pid) + 1);
    let again = Vector::parse(&stamped).expect("stamping keeps the form");
    assert_eq!(
        (again.round, again.command),
        (Round::base(9), vector.command)
    );
    assert!(again.iter().all(|(pid, inst)| inst == u64::from(pid) + 1));
    assert!(again.iter().map(|(pid, _)| pid).eq(pids));
}

/// Checks that everything in a list lies between its `stable` and `end`, once, and that the list is
/// written again as it was.
fn noops(value: &[u8], end: u64) {
    for max_value in [0, 40, 64, 1024] {
        if let Ok(noops) = Noops::parse(value, end, max_value) {
            checked(noops, end, max_value);
            let mut again = Vec::new();
            Noops::append(&mut again, noops.stable, noops.ranges());
            assert_eq!(again, value);
            let last = noops.ranges().last();
            let commits = last.is_some_and(|range| range.end == end);
            let commit = Noops::parse_commit(value, end, max_value);
            assert_eq!(commit.is_ok(), commits);
        }
        if let Ok(sync) = SyncPrepare::parse(value, end, max_value) {
            checked(sync.noops, end, max_value);
            let mut again = Vec::new();
            let ranges = sync.noops.ranges();
            SyncPrepare::append(&mut again, sync.noops.stable, sync.digest, ranges);
            assert_eq!(again, value);
        }
    }
}

fn checked(noops: Noops<'_>, end: u64, max_value: u16) {
    assert!(noops.stable <= end);
    assert!(noops.ranges().count() <= max_noop_ranges(max_value));
    let mut free = noops.stable;
    for range in noops.ranges() {
        assert!(free <= range.start && range.start < range.end && range.end <= end);
        free = range.end;
    }
}
