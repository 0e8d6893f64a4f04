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
/// The most bytes that a measurement makes new for each frame.
pub const BENCH_HEAD_LEN: usize = 144;
/// The most ports that multicast leaves by.
pub const MAX_LINKS: usize = 64;
/// Entries of `port_links`, and how many a look-up tries.
pub const LINK_PLACES: usize = 256;
/// See [`LINK_PLACES`].
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
        /// How many.
        ports: u16,
        /// See [`DEVICE_CLONES`], [`DEVICE_FEW_COPIES`].
        flags: u16,
        /// Own IPv4 address, bytes in network order; zero = any.
        ip4: [u8; 4],
        /// Own IPv6 address; zero = any.
        ip6: [u8; 16],
        /// Where the only copy of a multicast packet leaves; 0 = there are several.
        only_port: u32,
    }
    /// Map `groups`: what one group is to this node; the key is the group's number.
    Group {
        /// Partitions of the group; 0 = there is no such group.
        partitions: u16,
        /// The largest value, at most what the objects were built for.
        max_value: u16,
        /// See [`GROUP_DELIVER`], [`GROUP_PASS_OTHERS`].
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
        /// 0.
        unused: u32,
    }
    /// A holder's keys of one generation: each the words that SipHash begins with. HalfSipHash's is in the first one.
    Pair {
        /// Of `mac`.
        mac: [u64; 2],
        /// Of `digest`.
        digest: [u64; 2],
    }
    /// What one bank of `keyring` holds.
    Keys {
        /// Bit n: there is the key at place n, of SipHash.
        known: u64,
        /// The same of HalfSipHash. A cluster signs by one of them, and the other has no keys.
        known_half: u64,
        /// `key_id` of the nodes' key that signs.
        own: u32,
        /// 0.
        unused: u32,
        /// By [`paxos::auth::KeyId::index`].
        pair: [Pair; KEY_IDS],
    }
    /// Map `keyring`: with what packets are signed.
    SharedKeyring {
        /// Which bank is in use.
        bank: u32,
        /// 0.
        unused: u32,
        /// The keys.
        banks: [Keys; 2],
    }
    /// Map `counters`: of one CPU, by verdict.
    Counters {
        /// See `programs/xdp/include/verdict.h`.
        of: [u64; COUNTERS],
    }
    /// Replicas that may report TRIM.
    Replicas {
        /// How many.
        count: u16,
        /// How many of them may fail.
        g: u16,
        /// In ascending order.
        node: [u16; MAX_REPLICAS],
        /// 0.
        unused: u32,
    }
    /// What a replica reports of a partition: see [`paxos::TrimReport`].
    Report {
        /// Of its disk; 0 = nothing was reported.
        incarnation: u64,
        /// Everything below is durable there.
        inst: u64,
    }
    /// Map `members`: an acceptor's membership in a group.
    Membership {
        /// Boot nonce of this memory.
        nonce: u64,
        /// Which start of it this is, as PROBE shows it; 0 = not yet there.
        start: u64,
        /// That enabled it last, in all partitions; 0 = a stranger, as PROBE shows.
        epoch: u32,
        /// Which of the two is in use.
        bank: u32,
        /// The replicas.
        replicas: [Replicas; 2],
        /// The last starts that somebody was told of: the n-th at n % [`TOLD_STARTS`].
        told: [u64; TOLD_STARTS],
        /// How many there were.
        told_count: u64,
    }
    /// What every sixteenth slot of an acceptor's partition has in common.
    Stripe {
        /// 1 + the largest instance voted; 0 = none.
        end: u64,
        /// 1 while a CPU works on one of the slots.
        lock: u32,
        /// 0; locks of two stripes never share a cache line.
        unused: [u32; 13],
    }
    /// Map `partitions` of an acceptor.
    AcceptorPartition {
        /// The round promised for all instances.
        floor: u32,
        /// What the floor will be of a memory that is still mute, otherwise 0.
        held: u32,
        /// Everything below is forgotten.
        trim: u64,
        /// Earlier epochs may have voted below.
        earlier: u64,
        /// The candidate that has the promise of the round `raised`.
        raiser: u64,
        /// See `raiser`.
        raised: u32,
        /// 1 while a CPU works on the reports, or on who has the promise.
        reporting: u32,
        /// 0.
        padding: [u64; 3],
        /// What the votes of each share of the slots reach.
        stripes: [Stripe; STRIPES],
        /// What replicas reported, by bank.
        reports: [[Report; MAX_REPLICAS]; 2],
    }
    /// Map `slots` of an acceptor.
    AcceptorSlot {
        /// The instance.
        inst: u64,
        /// Of the vote.
        client: u64,
        /// Of the vote.
        request: u64,
        /// Promised.
        rnd: u32,
        /// Of the vote.
        vrnd: u32,
        /// Of the vote.
        flags: u16,
        /// Of the value.
        len: u16,
        /// The value, if it is short.
        short_value: [u8; SHORT_VALUE],
        /// Readable behind it.
        padding: u32,
    }
    /// Map `long_values` of an acceptor.
    LongValue {
        /// The value.
        bytes: [u8; MAX_VALUE],
        /// Readable behind it.
        padding: u64,
    }
    /// Which acceptors of a leader's epoch said that they have promised a later one.
    Preemption {
        /// How many acceptors.
        count: u16,
        /// f+1.
        quorum: u16,
        /// In ascending order.
        node: [u16; MAX_ACCEPTORS],
        /// Whose word came: bit i is the i-th acceptor.
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
        /// Who may report TRIM.
        replicas: Replicas,
        /// Who may retire it.
        preemption: Preemption,
    }
    /// Map `leaders`: a leader of a group.
    LeaderGroup {
        /// Boot nonce of this memory.
        nonce: u64,
        /// Which bank is in use.
        bank: u32,
        /// 1 while a CPU stamps a command over several partitions.
        lock: u32,
        /// What was programmed.
        banks: [LeaderBank; 2],
    }
    /// A partition's part of one programming.
    LeaderPartitionBank {
        /// The instance that the next REQUEST takes.
        next: u64,
        /// Acceptors have forgotten everything below.
        trimmed: u64,
        /// What replicas reported.
        reports: [Report; MAX_REPLICAS],
        /// 1 while a CPU works on the reports.
        reporting: u32,
        /// 0.
        unused: u32,
    }
    /// Map `partitions` of a leader.
    LeaderPartition {
        /// By bank.
        banks: [LeaderPartitionBank; 2],
    }
    /// Of a configuration, what counting needs.
    Known {
        /// The epoch; 0 = unused.
        epoch: u32,
        /// f+1.
        quorum: u16,
        /// How many acceptors.
        count: u16,
        /// In ascending order.
        acceptors: [u16; MAX_ACCEPTORS],
    }
    /// Map `configurations`: what a learner knows of a group, newest first.
    Configurations {
        /// Which of the two is in use.
        bank: u32,
        /// 0.
        unused: u32,
        /// The tables.
        known: [[Known; MAX_KNOWN]; 2],
    }
    /// Map `partitions` of a learner, or of a receiver.
    LearnerPartition {
        /// Votes below are stale.
        floor: u64,
        /// See [`PARTITION_HAS_FLOOR`], [`PARTITION_SHOW_VOTES`],
        /// [`PARTITION_AWAKE`].
        flags: u32,
        /// Which ring takes the decisions.
        ring: u32,
    }
    /// Map `slots` of a receiver.
    ReceiverSlot {
        /// The message that came last.
        inst: u64,
        /// What was listened to then.
        listening: u64,
        /// A lock.
        lock: u32,
        /// Nothing.
        unused: u32,
    }
    /// Map `slots` of a learner.
    LearnerSlot {
        /// The instance.
        inst: u64,
        /// Of the votes.
        client: u64,
        /// Of the votes.
        request: u64,
        /// Of the votes.
        rnd: u32,
        /// Whose: bit i is the i-th acceptor.
        votes: u32,
        /// Whether they are for a no-op.
        noop: u16,
        /// Whether a quorum was seen.
        delivered: u16,
        /// 1 while a CPU works on it.
        lock: u32,
    }
    /// One receiver of multicast copies.
    MulticastMember {
        /// Destination.
        mac_to: [u8; 6],
        /// Source.
        mac_from: [u8; 6],
        /// 4 or 6.
        family: u32,
        /// Destination, bytes in network order; IPv4 in the first four.
        ip_to: [u8; 16],
        /// Source.
        ip_from: [u8; 16],
        /// Destination.
        port_to: u16,
        /// Source.
        port_from: u16,
        /// All ones: partition p listens on `port_to + p`. 0: they all share that port.
        partitions: u16,
        /// It is at the same switch: 1 + its entry in `roles`; 0 = it isn't.
        role: u16,
    }
    /// Map `port_links`: what a port is to a group.
    Link {
        /// The port that copies leave by; 0 = unused.
        ifindex: u32,
        /// The group.
        group: u32,
        /// Entries of this port in `multicast`.
        entries: u32,
        /// Members behind it.
        members: u32,
        /// A number of its own for each port, below 64.
        index: u32,
        /// 0.
        unused: u32,
        /// The members.
        member: [MulticastMember; MAX_MEMBERS],
    }
    /// Head of a decision in a learner's ring, or of an ordered message in a receiver's; the value follows. Host order.
    Decision {
        /// The instance.
        inst: u64,
        /// Of the value.
        client: u64,
        /// Of the value.
        request: u64,
        /// Of the votes.
        rnd: u32,
        /// The group.
        group: u16,
        /// The partition.
        pid: u16,
        /// Of the value.
        flags: u16,
        /// Of the value.
        len: u16,
        /// 0.
        unused: u32,
    }
    /// Map `trusted` of a learner: the learners elsewhere whose DELIVER counts.
    Trusted {
        /// How many.
        count: u16,
        /// Their node ids.
        learners: [u16; MAX_TRUSTED],
    }
    /// Map `clone_ports`: where clones leave.
    ClonePorts {
        /// How many.
        count: u32,
        /// The interfaces.
        ifindex: [u32; MAX_LINKS],
        /// 0.
        unused: u32,
    }
    /// Map `identity`, which no program uses: whose pins these are, and of which group.
    Identity {
        /// See [`crate::identity::FORMAT`].
        format: u32,
        /// The cluster's random number.
        cluster: u32,
        /// The node.
        node: u16,
        /// 1 + its place in [`crate::object::Role::ALL`].
        role: u16,
        /// The group.
        group: u16,
        /// The partitions.
        partitions: u16,
        /// Slots of each.
        slots: u64,
    }
    /// Map `stops` of objects that tests stop on their way.
    Stop {
        /// Where (`programs/xdp/include/stop.h`); 0 = nowhere.
        place: u32,
        /// Where a program has stopped.
        reached: u32,
    }
    /// Map `bench_packet`: what a test or a measurement repeats on one CPU.
    Bench {
        /// Packets made so far.
        made: u64,
        /// No more than these are made; the others are dropped.
        limit: u64,
        /// 1 << shift packets of one instance.
        shift: u32,
        /// Their first sender.
        first_sender: u32,
        /// Where the header lies.
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
        /// 4 or 6.
        family: u32,
    }
    /// Where a forwarder sends packets for an address.
    Route {
        /// Entry of `ports`.
        port: u32,
        /// 1 = to all of `multicast` instead.
        broadcast: u32,
        /// Destination.
        mac_to: [u8; 6],
        /// Source.
        mac_from: [u8; 6],
        /// The address is the switch's own: 1 + the entry of `roles`; 0 = it isn't.
        role: u32,
    }
}

/// Multicast goes by TC, see [`crate::clone`].
pub const DEVICE_CLONES: u16 = 1;
/// All of `multicast` is in `multicast_small`, too.
pub const DEVICE_FEW_COPIES: u16 = 2;
/// All members are roles of the switch that this one is at, and called in turn.
pub const DEVICE_WITHIN: u16 = 4;
/// What nodes send comes from where map `nodes` says that they are. So always, but in tests.
pub const DEVICE_KNOWS_NODES: u16 = 8;
/// Packets count only if they are signed, see [`crate::keyring`].
pub const DEVICE_SIGNED: u16 = 16;
/// What clients send comes from where map `askers` says that they may be.
pub const DEVICE_KNOWS_ASKERS: u16 = 32;
/// Stands before a frame on which the node's process runs the role, see [`crate::again`].
pub const FROM_PROCESS: u32 = 0x4147_4149;
/// In place of a port: all members of a group, where they are roles of this switch.
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
