// SPDX-License-Identifier: Apache-2.0
//! The types that programs and user space share: the same fields as in `programs/xdp/*.bpf.c` and
//! `programs/xdp/include/*.h`. Loading compares the sizes with those of the maps.
#![allow(unsafe_code)]

use paxos::auth::KEY_IDS;

use crate::sys::Shared;

/// The most replicas of a configuration.
pub const MAX_REPLICAS: usize = 32;
/// The most acceptors of a configuration.
pub const MAX_ACCEPTORS: usize = 32;
/// The most learners elsewhere that a host's learner trusts.
pub const MAX_TRUSTED: usize = 7;
/// Configurations that a learner keeps.
pub const MAX_KNOWN: usize = 16;
/// Values up to this length lie in an acceptor's slot itself.
pub const SHORT_VALUE: usize = 88;
/// Shares of an acceptor's slots, each with a lock of its own.
pub const STRIPES: usize = 16;
/// The largest value that the maps have room for: all that fits a packet.
pub const MAX_VALUE: usize = paxos::wire::MAX_VALUE_LEN;
/// The most members of one group behind one port.
pub const MAX_MEMBERS: usize = 8;
/// The most bytes that a measurement writes into each frame.
pub const BENCH_HEAD_LEN: usize = 144;
/// The most ports that multicast leaves by.
pub const MAX_LINKS: usize = 64;
/// Entries of `port_links`, and how many a look-up tries.
pub const LINK_PLACES: usize = 256;
/// The number of places that are tried for a link in the table of [`LINK_PLACES`].
pub const LINK_TRIES: usize = 8;
/// Counters of one CPU.
pub const COUNTERS: usize = 128;

/// Starts that an acceptor remembers to have told.
pub const TOLD_STARTS: usize = paxos::acceptor::ToldStarts::MAX;

macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        // SAFETY: numbers and arrays of them only; the sizes are compared when loading.
        unsafe impl Shared for $name {}

        // SAFETY: the same, and no padding, as asserted below.
        unsafe impl aya::Pod for $name {}

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "no padding");

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: all zero is a value of numbers and arrays of them.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

shared! {
    /// Map `device`: where this node stands.
    Device {
        /// The cluster's random number.
        cluster: u32,
        /// This node.
        node: u16,
        /// UDP ports `port` to `port + ports - 1` are the programs'.
        port: u16,
        /// The number of these ports.
        ports: u16,
        /// The flags, such as [`DEVICE_CLONES`] and [`DEVICE_FEW_COPIES`].
        flags: u16,
        /// Own IPv4 address, bytes in network order; zero = any.
        ip4: [u8; 4],
        /// Own IPv6 address; zero = any.
        ip6: [u8; 16],
        /// The port by which the only copy of a multicast packet leaves; 0 = there are several
        /// copies.
        only_port: u32,
    }
    /// Map `groups`: what one group is to this node; the key is the group's number.
    Group {
        /// Partitions of the group; 0 = there is no such group.
        partitions: u16,
        /// The largest value, at most what the objects were built for.
        max_value: u16,
        /// The flags [`GROUP_DELIVER`] and [`GROUP_PASS_OTHERS`].
        flags: u32,
        /// Entry in the role's map of groups (`members`, `leaders`, `configurations`).
        index: u32,
        /// Entry of partition 0 in `partitions`.
        first_partition: u32,
        /// Slots of one partition.
        slots: u64,
        /// `slots - 1` where that is a mask, otherwise 0.
        mask: u64,
        /// Entry of the group's first slot in `slots`.
        first_slot: u64,
    }
    /// Map `nodes`: where a node is; the key is its number. All zero = there is no such node.
    NodeAddress {
        /// The IPv4 address, bytes in network order.
        ip4: [u8; 4],
        /// The IPv6 address.
        ip6: [u8; 16],
        /// Always 0.
        unused: u32,
    }
    /// A holder's keys of one generation, each given by the words with which SipHash begins. A
    /// HalfSipHash key is in the first word.
    Pair {
        /// The words for `mac`.
        mac: [u64; 2],
        /// The words for `digest`.
        digest: [u64; 2],
    }
    /// The keys in one bank of `keyring`.
    Keys {
        /// Bit n is set if there is a SipHash key at place n.
        known: u64,
        /// Bit n is set if there is a HalfSipHash key at place n. A cluster uses one of the two
        /// hashes, so the other has no keys.
        known_half: u64,
        /// The `key_id` of the nodes' key with which this node signs.
        own: u32,
        /// Always 0.
        unused: u32,
        /// The keys, at the index that [`paxos::auth::KeyId::index`] returns.
        pair: [Pair; KEY_IDS],
    }
    /// Map `keyring`: the keys that sign packets.
    SharedKeyring {
        /// The number of the bank in use.
        bank: u32,
        /// Always 0.
        unused: u32,
        /// The keys.
        banks: [Keys; 2],
    }
    /// Map `counters`: the counters of one CPU, one for each verdict.
    Counters {
        /// The counters in the order of `programs/xdp/include/verdict.h`.
        of: [u64; COUNTERS],
    }
    /// Replicas that may report TRIM.
    Replicas {
        /// The number of replicas.
        count: u16,
        /// The number of replicas that may fail.
        g: u16,
        /// The replicas' node ids in ascending order.
        node: [u16; MAX_REPLICAS],
        /// Always 0.
        unused: u32,
    }
    /// A replica's report about a partition, like [`paxos::TrimReport`].
    Report {
        /// The incarnation of the replica's disk; 0 = nothing was reported.
        incarnation: u64,
        /// Everything below this instance is durable on that disk.
        inst: u64,
    }
    /// Map `members`: an acceptor's membership in a group.
    Membership {
        /// Boot nonce of this memory.
        nonce: u64,
        /// The number of this memory's start, as PROBE shows it; 0 = not yet known.
        start: u64,
        /// The last epoch that enabled this memory in all partitions; 0 = a stranger, as PROBE
        /// shows.
        epoch: u32,
        /// The number of the bank in use.
        bank: u32,
        /// The replicas, by bank.
        replicas: [Replicas; 2],
        /// The last starts that were shown to somebody: the n-th is at n % [`TOLD_STARTS`].
        told: [u64; TOLD_STARTS],
        /// The number of starts that were shown so far.
        told_count: u64,
    }
    /// The state that every sixteenth slot of an acceptor's partition shares.
    Stripe {
        /// 1 + the largest instance voted; 0 = none.
        end: u64,
        /// 1 while a CPU works on one of the slots.
        lock: u32,
        /// Always 0; this keeps the locks of two stripes out of one cache line.
        unused: [u32; 13],
    }
    /// Map `partitions` of an acceptor.
    AcceptorPartition {
        /// The round promised for all instances.
        floor: u32,
        /// The floor that a memory that is still mute will have once it may go on, otherwise 0.
        held: u32,
        /// Everything below this instance is forgotten.
        trim: u64,
        /// Earlier epochs may have voted for instances below this one.
        earlier: u64,
        /// The candidate that has the promise of the round `raised`.
        raiser: u64,
        /// The round that was promised to the candidate `raiser`.
        raised: u32,
        /// 1 while a CPU changes the reports, or `raiser` and `raised`.
        reporting: u32,
        /// Always 0.
        padding: [u64; 3],
        /// The state of each sixteenth of the slots.
        stripes: [Stripe; STRIPES],
        /// The replicas' reports, by bank.
        reports: [[Report; MAX_REPLICAS]; 2],
    }
    /// Map `slots` of an acceptor.
    AcceptorSlot {
        /// The instance.
        inst: u64,
        /// The client of the voted command.
        client: u64,
        /// The request number of the voted command.
        request: u64,
        /// The promised round.
        rnd: u32,
        /// The round of the vote.
        vrnd: u32,
        /// The flags of the vote.
        flags: u16,
        /// The length of the value.
        len: u16,
        /// The value, if it is short.
        short_value: [u8; SHORT_VALUE],
        /// Makes the words behind the value readable.
        padding: u32,
    }
    /// Map `long_values` of an acceptor.
    LongValue {
        /// The value.
        bytes: [u8; MAX_VALUE],
        /// Makes the word behind the value readable.
        padding: u64,
    }
    /// The acceptors of a leader's epoch that have said that they promised a later one.
    Preemption {
        /// The number of acceptors.
        count: u16,
        /// The number of acceptors in a quorum, f+1.
        quorum: u16,
        /// The acceptors' node ids in ascending order.
        node: [u16; MAX_ACCEPTORS],
        /// Bit i is set if the i-th acceptor has said so.
        told: u32,
    }
    /// One round's programming of a leader.
    LeaderBank {
        /// The base round; 0 = never programmed.
        rnd: u32,
        /// 1 = a later epoch exists.
        retired: u32,
        /// Instances that may be open at once.
        window: u64,
        /// The replicas that may report TRIM.
        replicas: Replicas,
        /// The acceptors that may retire the leader.
        preemption: Preemption,
    }
    /// Map `leaders`: a leader of a group.
    LeaderGroup {
        /// Boot nonce of this memory.
        nonce: u64,
        /// The number of the bank in use.
        bank: u32,
        /// 1 while a CPU stamps a command over several partitions.
        lock: u32,
        /// The programmings, of which one is in use.
        banks: [LeaderBank; 2],
    }
    /// A partition's part of one programming.
    LeaderPartitionBank {
        /// The instance that the next REQUEST takes.
        next: u64,
        /// Acceptors have forgotten everything below this instance.
        trimmed: u64,
        /// The replicas' reports.
        reports: [Report; MAX_REPLICAS],
        /// 1 while a CPU works on the reports.
        reporting: u32,
        /// Always 0.
        unused: u32,
    }
    /// Map `partitions` of a leader.
    LeaderPartition {
        /// The partition's part of both programmings, by bank.
        banks: [LeaderPartitionBank; 2],
    }
    /// The part of a configuration that is needed to count votes.
    Known {
        /// The epoch; 0 = unused.
        epoch: u32,
        /// The number of votes in a quorum, f+1.
        quorum: u16,
        /// The number of acceptors.
        count: u16,
        /// The acceptors' node ids in ascending order.
        acceptors: [u16; MAX_ACCEPTORS],
    }
    /// Map `configurations`: the configurations that a learner knows of a group, newest first.
    Configurations {
        /// The number of the table in use.
        bank: u32,
        /// Always 0.
        unused: u32,
        /// The tables.
        known: [[Known; MAX_KNOWN]; 2],
    }
    /// Map `partitions` of a learner, or of a receiver.
    LearnerPartition {
        /// Votes for instances below this one are stale.
        floor: u64,
        /// The flags [`PARTITION_HAS_FLOOR`], [`PARTITION_SHOW_VOTES`] and [`PARTITION_AWAKE`].
        flags: u32,
        /// The number of the ring that takes the decisions.
        ring: u32,
    }
    /// Map `slots` of a receiver.
    ReceiverSlot {
        /// The slot number of the latest message here.
        inst: u64,
        /// The session to which the receiver listened then.
        listening: u64,
        /// A lock against other CPUs.
        lock: u32,
        /// Unused bytes.
        unused: u32,
    }
    /// Map `slots` of a learner.
    LearnerSlot {
        /// The instance.
        inst: u64,
        /// The client of the command that the votes are for.
        client: u64,
        /// The request number of that command.
        request: u64,
        /// The round of the votes.
        rnd: u32,
        /// Bit i is set if the i-th acceptor has voted.
        votes: u32,
        /// 1 if the votes are for a no-op.
        noop: u16,
        /// 1 if a quorum was seen.
        delivered: u16,
        /// 1 while a CPU works on this slot.
        lock: u32,
    }
    /// One receiver of multicast copies.
    MulticastMember {
        /// The destination's hardware address.
        mac_to: [u8; 6],
        /// The source's hardware address.
        mac_from: [u8; 6],
        /// The IP version, 4 or 6.
        family: u32,
        /// The destination's IP address, bytes in network order; IPv4 in the first four.
        ip_to: [u8; 16],
        /// The source's IP address.
        ip_from: [u8; 16],
        /// The destination's UDP port.
        port_to: u16,
        /// The source's UDP port.
        port_from: u16,
        /// If all bits are set, partition p listens on `port_to + p`. If it is 0, all partitions
        /// share that port.
        partitions: u16,
        /// If the member is at the same switch: 1 + its entry in `roles`, otherwise 0.
        role: u16,
    }
    /// Map `port_links`: the members of a group behind a port.
    Link {
        /// The port that copies leave by; 0 = unused.
        ifindex: u32,
        /// The group.
        group: u32,
        /// Entries of this port in `multicast`.
        entries: u32,
        /// The number of members behind the port.
        members: u32,
        /// A number of its own for each port, below 64.
        index: u32,
        /// Always 0.
        unused: u32,
        /// The members.
        member: [MulticastMember; MAX_MEMBERS],
    }
    /// Head of a decision in a learner's ring, or of an ordered message in a receiver's; the value
    /// follows. Host order.
    Decision {
        /// The instance.
        inst: u64,
        /// The client of the command.
        client: u64,
        /// The request number of the command.
        request: u64,
        /// The round of the votes.
        rnd: u32,
        /// The group.
        group: u16,
        /// The partition.
        pid: u16,
        /// The flags of the value.
        flags: u16,
        /// The length of the value.
        len: u16,
        /// Always 0.
        unused: u32,
    }
    /// Map `trusted` of a learner: the learners elsewhere whose DELIVER counts.
    Trusted {
        /// The number of learners.
        count: u16,
        /// The node ids of the learners.
        learners: [u16; MAX_TRUSTED],
    }
    /// Map `clone_ports`: the interfaces by which clones leave.
    ClonePorts {
        /// The number of interfaces.
        count: u32,
        /// The interfaces.
        ifindex: [u32; MAX_LINKS],
        /// Always 0.
        unused: u32,
    }
    /// Map `identity`, which no program uses: the node and the group to which these pins belong.
    Identity {
        /// The format's number, [`crate::identity::FORMAT`].
        format: u32,
        /// The cluster's random number.
        cluster: u32,
        /// The node.
        node: u16,
        /// 1 + the role's place in [`crate::object::Role::ALL`].
        role: u16,
        /// The group.
        group: u16,
        /// The partitions.
        partitions: u16,
        /// The number of slots of each partition.
        slots: u64,
    }
    /// Map `stops`: a place at which a test stops a program.
    Stop {
        /// The place to stop at, from `programs/xdp/include/stop.h`; 0 = nowhere.
        place: u32,
        /// The place where a program has stopped.
        reached: u32,
    }
    /// Map `bench_packet`: the packet that a test or a measurement repeats on one CPU.
    Bench {
        /// Packets made so far.
        made: u64,
        /// At most this many packets are made; further ones are dropped.
        limit: u64,
        /// Each instance is repeated 1 << shift times.
        shift: u32,
        /// The first of the senders of one instance's packets.
        first_sender: u32,
        /// The offset of the header in the frame.
        header_at: u32,
        /// Bytes of `head` in use.
        len: u32,
        /// The frame's beginning.
        head: [u8; BENCH_HEAD_LEN],
    }
    /// Key of a forwarder's `routes`: an address, bytes in network order; IPv4 in the first four.
    RouteKey {
        /// The address.
        address: [u8; 16],
        /// The IP version, 4 or 6.
        family: u32,
    }
    /// The way by which a forwarder sends packets for an address.
    Route {
        /// The port's entry in `ports`.
        port: u32,
        /// 1 = the packets go to all members of `multicast` instead.
        broadcast: u32,
        /// The destination's hardware address.
        mac_to: [u8; 6],
        /// The source's hardware address.
        mac_from: [u8; 6],
        /// If the address is the switch's own: 1 + the entry of its role in `roles`, otherwise 0.
        role: u32,
    }
}

/// Multicast copies are made by TC as [`crate::clone`] describes.
pub const DEVICE_CLONES: u16 = 1;
/// The map `multicast_small` holds all entries of `multicast`, too.
pub const DEVICE_FEW_COPIES: u16 = 2;
/// All members are roles of the same switch, and are called one after the other.
pub const DEVICE_WITHIN: u16 = 4;
/// Packets of nodes count only from the addresses in map `nodes`. This is always set, except in
/// some tests.
pub const DEVICE_KNOWS_NODES: u16 = 8;
/// Packets count only if they are signed with a key of [`crate::keyring`].
pub const DEVICE_SIGNED: u16 = 16;
/// Packets of clients count only from the networks in map `askers`.
pub const DEVICE_KNOWS_ASKERS: u16 = 32;
/// This mark precedes a frame on which the node's process runs the role, as
/// [`crate::user_space_program`] describes.
pub const FROM_PROCESS: u32 = 0x4147_4149;
/// This number instead of a port means all members of a group that are roles of this switch.
pub const PORT_WITHIN: u32 = u32::MAX;
/// Entry of `own_switch`: the switch's forwarder.
pub const CALL_FORWARDER: u32 = 0;
/// Entry of `own_switch`: the role's program that gives each member its turn.
pub const CALL_WITHIN: u32 = 1;
/// Learner: decisions leave as DELIVER instead of by the ring.
pub const GROUP_DELIVER: u32 = 1;
/// Learner: the partition has a window.
pub const PARTITION_HAS_FLOOR: u32 = 1;
/// Learner: votes of this partition go to the host's sockets, too.
pub const PARTITION_SHOW_VOTES: u32 = 2;
/// Learner: the ring's reader is awake.
pub const PARTITION_AWAKE: u32 = 4;
/// Learner: what is no vote goes to the host's sockets instead of being dropped.
pub const GROUP_PASS_OTHERS: u32 = 2;
