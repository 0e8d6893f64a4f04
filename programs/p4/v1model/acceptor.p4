/* SPDX-License-Identifier: Apache-2.0 */
/* The acceptor: remembers promises and votes (Algorithm 2 of both papers; docs/protocol/acceptor.md).
 *
 * The same rules, step by step, as crates/paxos/src/acceptor.rs. Membership lies in the same memory as the votes; a
 * partition that has promised nothing is a stranger's, which answers PROBE and nothing else.
 *
 * A packet's way: what is kept of its partition and its slot is loaded, a handler decides on that copy, and only what a
 * handler calls changed is stored. So what is refused changes nothing, wherever that is found out. [M-REFUSE] Ingress
 * takes one packet at a time, so all of it is one step. [A-CPUS]
 *
 * A switch's memory ends with its power, and nothing is read back from a disk: so none is ever mute, and each one is at
 * its first start. [A-MUTE] */
#include "include/parse.p4"
#include "include/forward.p4"
#include "include/members.p4"
#include "include/orders.p4"
#include "include/reports.p4"

/* ---- Types */

/* All zero is an unused slot: no round, so nothing promised and no vote. */
struct acceptor_slot_t {
    bit<64> inst;
    bit<64> client;
    bit<64> request;
    bit<32> rnd;
    bit<32> vrnd;
    bit<16> flags;
    bit<16> len;
}

/* What a handler works on. */
struct acceptor_step_t {
    /* Of this memory; 0 = it has begun with nobody there. */
    bit<64> nonce;
    /* That enabled it last; written when all partitions are. 0 = a stranger. */
    bit<32> epoch;
    /* That enabled this partition last. */
    bit<32> enabled;
    /* Promised for all instances; 0 = a stranger's. */
    bit<32> floor;
    /* The nonce of the candidate that has the promise of `floor`; 0 = nobody yet. */
    bit<64> raiser;
    /* Everything below is forgotten. */
    bit<64> trim;
    /* 1 + the largest instance voted, at least `trim`; 0 = none. */
    bit<64> end;
    acceptor_slot_t slot;
    /* The value of the packet takes the place of the slot's. */
    bool takes_value;
    /* Why the packet is answered by REJECT, and the round that this names. */
    bit<16> rejected;
    bit<32> round;
}

/* Which start of a memory it is, as PROBE shows it: always the first one. */
const bit<64> FIRST_START = 0x100000000;

/* ---- Helpers: named as in crates/paxos/src/acceptor.rs. P4 knows no name before it is declared, so whoever is called
 * stands before who calls. */

/* Why an instance may not be answered for, as far as `trim` tells; 0 = it may. [A-WINDOW] */
bit<16> within_window(in bit<64> inst, in bit<64> trim, in bit<32> slots) {
    return inst < trim ? REASON_TRIMMED
                       : ((inst - trim >= (bit<64>) slots || inst == NO_INSTANCE) ? REASON_WINDOW : 0);
}

/* A slot that holds a later instance: this one is forgotten. 0 = it isn't. [A-WINDOW] */
bit<16> not_overtaken(in acceptor_slot_t slot, in bit<64> inst) {
    return slot.inst > inst ? REASON_TRIMMED : 0;
}

/* In a slot taken over from an older instance the old promise is void and `floor` holds. [A-PREEMPT] */
bit<32> promised(in acceptor_slot_t slot, in bit<64> inst, in bit<32> floor) {
    return (slot.inst == inst && slot.rnd > floor) ? slot.rnd : floor;
}

/* A no-op has no command in it: it is empty or an EPOCH marker. [A-NOOP] */
bit<16> valid_noop(in bit<16> flags, in bit<16> len) {
    return (flags & FLAG_NOOP) == 0
               ? 0
               : ((flags & FLAGS_OF_VALUE) != FLAG_NOOP
                      ? REASON_BAD_FLAGS
                      : ((len == 0 || len == MARKER_LEN) ? 0 : REASON_BAD_VALUE));
}

/* Why an instance is refused, as far as its slot tells; 0 = it isn't. `round` is the promised one. */
control refusal(in headers_t hdr, in metadata_t m, inout acceptor_step_t s, in bool of_round) {
    apply {
        s.rejected = within_window(hdr.wire.inst, s.trim, m.slots);
        if (s.rejected == 0) {
            s.rejected = not_overtaken(s.slot, hdr.wire.inst);
        }
        if (s.rejected == 0 && of_round) {
            s.round = promised(s.slot, hdr.wire.inst, s.floor);
            if (hdr.wire.rnd < s.round) {
                s.rejected = REASON_PREEMPTED;
            } else {
                s.round = 0;
            }
        }
    }
}

control send_range_report(inout headers_t hdr, inout metadata_t m, in acceptor_step_t s, in bit<32> rnd) {
    no_payload() none;
    answer_header() answer;
    send_back() back;

    apply {
        none.apply(hdr);
        answer.apply(hdr, m, PHASE1B);
        hdr.wire.inst = 0;
        hdr.wire.rnd = rnd;
        hdr.wire.flags = FLAG_RANGE;
        hdr.wire.value_len = RANGE_REPORT_LEN;
        hdr.range_report.setValid();
        hdr.range_report.end = s.end;
        hdr.range_report.trim = s.trim;
        hdr.range_report.nonce = s.nonce;
        back.apply(hdr, m);
    }
}

/* The slot's vote, or its promise: PHASE2B or PHASE1B with the slot's value, to who asked. */
control send_slot(inout headers_t hdr, inout metadata_t m, in acceptor_step_t s, in value_t value,
                  in bit<8> msgtype) {
    no_payload() none;
    answer_header() answer;
    put_value() put;
    send_back() back;

    apply {
        none.apply(hdr);
        answer.apply(hdr, m, msgtype);
        hdr.wire.vrnd = s.slot.vrnd;
        hdr.wire.client = s.slot.client;
        hdr.wire.request = s.slot.request;
        hdr.wire.flags = s.slot.flags;
        hdr.wire.value_len = s.slot.len;
        put.apply(hdr, value, s.slot.len);
        back.apply(hdr, m);
    }
}

/* ---- Handlers: named as in crates/paxos/src/acceptor.rs. Each leaves a verdict, or why the packet is rejected. */

/* Stores the vote, unless it is there. */
control vote(in headers_t hdr, inout metadata_t m, inout acceptor_step_t s) {
    apply {
        if (s.slot.inst == hdr.wire.inst && s.slot.vrnd == hdr.wire.rnd) {
            /* [A-CONFLICT] */
            if (s.slot.client == hdr.wire.client && s.slot.request == hdr.wire.request &&
                ((s.slot.flags ^ hdr.wire.flags) & FLAG_NOOP) == 0) {
                m.verdict = VERDICT_ANSWERED;
            } else {
                m.verdict = REASON_CONFLICT;
            }
        } else {
            if (s.end <= hdr.wire.inst) {
                s.end = hdr.wire.inst + 1;
            }
            s.slot.inst = hdr.wire.inst;
            s.slot.client = hdr.wire.client;
            s.slot.request = hdr.wire.request;
            s.slot.rnd = hdr.wire.rnd;
            s.slot.vrnd = hdr.wire.rnd;
            s.slot.flags = hdr.wire.flags & FLAGS_OF_VALUE;
            s.slot.len = hdr.wire.value_len;
            s.takes_value = true;
            m.verdict = VERDICT_CHANGED;
        }
    }
}

/* Votes, unless a higher round was promised. [A-VOTE] */
control phase2a(inout headers_t hdr, inout metadata_t m, inout acceptor_step_t s) {
    refusal() refuse;
    vote() take;
    send_multicast() send;
    bit<16> bad_noop;

    apply {
        bad_noop = valid_noop(hdr.wire.flags, hdr.wire.value_len);
        if (!round_is_valid(hdr.wire.rnd)) {
            m.verdict = REASON_BAD_ROUND;
        } else if (bad_noop != 0) {
            m.verdict = bad_noop;
        } else {
            refuse.apply(hdr, m, s, true);
            if (s.rejected == 0) {
                take.apply(hdr, m, s);
                /* The value in hand is the one voted for. */
                if (m.verdict != REASON_CONFLICT) {
                    hdr.wire.vrnd = hdr.wire.rnd;
                    send.apply(hdr, m, PHASE2B, s.slot.flags);
                }
            }
        }
    }
}

control promise(inout headers_t hdr, inout metadata_t m, inout acceptor_step_t s, in value_t value) {
    send_slot() send;

    apply {
        m.verdict = VERDICT_ANSWERED;
        if (s.slot.inst != hdr.wire.inst) {
            /* The old instance lies below `trim`; its promise and its vote are void. */
            s.slot.inst = hdr.wire.inst;
            s.slot.client = 0;
            s.slot.request = 0;
            s.slot.rnd = 0;
            s.slot.vrnd = 0;
            s.slot.flags = 0;
            s.slot.len = 0;
        }
        if (s.slot.rnd != hdr.wire.rnd) {
            s.slot.rnd = hdr.wire.rnd;
            m.verdict = VERDICT_CHANGED;
        }
        send.apply(hdr, m, s, value, PHASE1B);
    }
}

/* Promises a round for one instance, and shows the vote. [A-PROMISE] */
control phase1a(inout headers_t hdr, inout metadata_t m, inout acceptor_step_t s, in value_t value) {
    refusal() refuse;
    promise() give;

    apply {
        if (!round_is_valid(hdr.wire.rnd)) {
            m.verdict = REASON_BAD_ROUND;
        } else if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else {
            refuse.apply(hdr, m, s, true);
            if (s.rejected == 0) {
                give.apply(hdr, m, s, value);
            }
        }
    }
}

/* Raises the floor for its candidate, or finds that this has been done. A round has one: another one is that of a second
 * controller, on a copied store. [A-ONE] */
control raise_floor(in headers_t hdr, inout metadata_t m, inout acceptor_step_t s) {
    apply {
        if (hdr.wire.rnd < s.floor) {
            s.rejected = REASON_PREEMPTED;
            s.round = s.floor;
        } else if (hdr.wire.rnd == s.floor && s.raiser != 0) {
            if (s.raiser == hdr.wire.client) {
                m.verdict = VERDICT_ANSWERED;
            } else {
                m.verdict = REASON_CONFLICT;
            }
        } else {
            s.floor = hdr.wire.rnd;
            s.raiser = hdr.wire.client;
            m.verdict = VERDICT_CHANGED;
        }
    }
}

/* Promises a base round for all instances of the partition, and shows how far votes reach. [A-RANGE] */
control phase1a_range(inout headers_t hdr, inout metadata_t m, inout acceptor_step_t s) {
    raise_floor() raise;
    send_range_report() send;

    apply {
        if (!round_is_base(hdr.wire.rnd)) {
            m.verdict = REASON_BAD_ROUND;
        } else if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else if (hdr.wire.client == 0) {
            m.verdict = REASON_BAD_SESSION;
        } else {
            raise.apply(hdr, m, s);
            if (s.rejected == 0 && m.verdict != REASON_CONFLICT) {
                send.apply(hdr, m, s, hdr.wire.rnd);
            }
        }
    }
}

control show(inout headers_t hdr, inout metadata_t m, in acceptor_step_t s, in value_t value) {
    send_slot() send;
    no_payload() none;
    answer_header() answer;
    send_back() back;

    apply {
        m.verdict = VERDICT_ANSWERED;
        if (s.slot.inst == hdr.wire.inst && s.slot.vrnd != 0) {
            hdr.wire.rnd = s.slot.vrnd;
            send.apply(hdr, m, s, value, PHASE2B);
        } else {
            /* No round at all, so that it can't pass for a promise; the asker's own numbers, so that an old answer
             * can't pass for a new one. */
            none.apply(hdr);
            answer.apply(hdr, m, PHASE1B);
            hdr.wire.rnd = 0;
            back.apply(hdr, m);
        }
    }
}

/* Shows the vote of an instance: something to learn from, never a promise. [A-QUERY] */
control query(inout headers_t hdr, inout metadata_t m, inout acceptor_step_t s, in value_t value) {
    refusal() refuse;
    show() answer;

    apply {
        if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else {
            refuse.apply(hdr, m, s, false);
            if (s.rejected == 0) {
                answer.apply(hdr, m, s, value);
            }
        }
    }
}

/* Shows how far votes reach, and under which floor; linearizable reads rest on it. */
control query_range(inout headers_t hdr, inout metadata_t m, in acceptor_step_t s) {
    send_range_report() send;

    apply {
        if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else {
            m.verdict = VERDICT_ANSWERED;
            send.apply(hdr, m, s, s.floor);
        }
    }
}

/* TRIM: a replica's report (no round), or the candidate's word (its base round). [A-TRIM] */
control trim_to(in headers_t hdr, inout metadata_t m, inout acceptor_step_t s, inout reports_t r) {
    take_report() take;
    bit<16> refused;

    apply {
        if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else if (hdr.wire.rnd == 0) {
            take.apply(hdr, r, round_epoch(s.floor), s.trim, refused);
            m.verdict = refused;
            if (refused == 0) {
                m.verdict = VERDICT_CHANGED;
            }
        } else if (!round_is_base(hdr.wire.rnd)) {
            m.verdict = REASON_BAD_ROUND;
        } else if (hdr.wire.rnd < s.floor || hdr.wire.inst < s.trim) {
            m.verdict = REASON_STALE;
        } else if (hdr.wire.inst == s.trim) {
            m.verdict = REASON_DUPLICATE;
        } else {
            s.trim = hdr.wire.inst;
            m.verdict = VERDICT_CHANGED;
        }
    }
}

control probe(inout headers_t hdr, inout metadata_t m, in acceptor_step_t s) {
    probe_is_for() asks;
    send_probe_ack() send;
    bit<16> refused;
    bit<32> shown;

    apply {
        asks.apply(hdr, PROBE_ACCEPTOR, refused);
        /* Nothing in any partition before the order to enable was carried out in all. [A-ENABLE] */
        shown = s.epoch == 0 ? 0 : s.floor;
        if (refused != 0) {
            m.verdict = refused;
        } else {
            send.apply(hdr, m, shown, s.end, s.nonce, s.trim, FIRST_START);
        }
    }
}

control handle(inout headers_t hdr, inout metadata_t m, inout acceptor_step_t s, inout reports_t r,
               in value_t value) {
    phase2a() on_phase2a;
    phase1a() on_phase1a;
    phase1a_range() on_phase1a_range;
    query() on_query;
    query_range() on_query_range;
    trim_to() on_trim;
    probe() on_probe;
    send_reject() reject;
    bool of_all;

    apply {
        of_all = (hdr.wire.flags & FLAG_RANGE) != 0;
        if (s.nonce == 0) {
            /* Nobody has begun this memory: it has no name that an epoch could count on. [A-STRANGER] */
            m.verdict = REASON_STRANGER;
        } else if (hdr.wire.msgtype == PROBE) {
            on_probe.apply(hdr, m, s);
        } else if (s.floor == 0) {
            /* [A-STRANGER] */
            m.verdict = REASON_STRANGER;
        } else if (hdr.wire.msgtype == PHASE2A) {
            on_phase2a.apply(hdr, m, s);
        } else if (hdr.wire.msgtype == PHASE1A && of_all) {
            on_phase1a_range.apply(hdr, m, s);
        } else if (hdr.wire.msgtype == PHASE1A) {
            on_phase1a.apply(hdr, m, s, value);
        } else if (hdr.wire.msgtype == QUERY && of_all) {
            on_query_range.apply(hdr, m, s);
        } else if (hdr.wire.msgtype == QUERY) {
            on_query.apply(hdr, m, s, value);
        } else if (hdr.wire.msgtype == TRIM) {
            on_trim.apply(hdr, m, s, r);
        } else {
            m.verdict = REASON_NOT_FOR_ROLE;
        }
        if (s.rejected != 0) {
            reject.apply(hdr, m, s.rejected, s.round, s.trim);
        }
    }
}

/* Counts this memory in, a partition at a time: an epoch of its nonce raises floor, trim and end, and never erases. An
 * order of an older epoch is refused. [A-ENABLE] */
control enable(in headers_t hdr, inout acceptor_step_t s, inout reports_t r, out bit<16> refused) {
    seat() replicas;
    trim_point() covered;
    bit<64> point;
    bit<32> base;

    apply {
        refused = 0;
        base = hdr.order.epoch << 12;
        if (hdr.order.epoch == 0 || hdr.order.epoch > MAX_EPOCH) {
            refused = REASON_BAD_ROUND;
        } else if (hdr.order.epoch < s.enabled) {
            refused = REASON_STALE;
        } else {
            s.enabled = hdr.order.epoch;
            if (s.floor < base) {
                s.floor = base;
                s.raiser = 0;
            }
            if (s.end < hdr.order.b) {
                s.end = hdr.order.b;
            }
            if (s.trim < hdr.order.a) {
                s.trim = hdr.order.a;
            }
            replicas.apply(r, hdr.replicas, (bit<8>) hdr.order.c);
            /* Fewer replicas may fail now, so what they reported before may suffice. */
            covered.apply(r, point);
            if (s.trim < point) {
                s.trim = point;
            }
        }
    }
}

/* ---- State */

control acceptor(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    register<bit<64>>(GROUPS) nonces;
    register<bit<32>>(GROUPS) epochs;

    register<bit<32>>(PARTITIONS) enableds;
    register<bit<32>>(PARTITIONS) floors;
    register<bit<64>>(PARTITIONS) raisers;
    register<bit<64>>(PARTITIONS) trims;
    register<bit<64>>(PARTITIONS) ends;
    register<bit<8>>(PARTITIONS) may_fail;
    register<bit<16>>(PARTITIONS * MAX_REPLICAS) report_nodes;
    register<bit<64>>(PARTITIONS * MAX_REPLICAS) report_disks;
    register<bit<64>>(PARTITIONS * MAX_REPLICAS) report_insts;

    register<bit<64>>(SLOTS) slot_insts;
    register<bit<64>>(SLOTS) slot_clients;
    register<bit<64>>(SLOTS) slot_requests;
    register<bit<32>>(SLOTS) slot_rnds;
    register<bit<32>>(SLOTS) slot_vrnds;
    register<bit<16>>(SLOTS) slot_flags;
    register<bit<16>>(SLOTS) slot_lens;
    register<bit<1024>>(SLOTS) slot_v128;
    register<bit<512>>(SLOTS) slot_v64;
    register<bit<256>>(SLOTS) slot_v32;
    register<bit<128>>(SLOTS) slot_v16;
    register<bit<64>>(SLOTS) slot_v8;
    register<bit<32>>(SLOTS) slot_v4;
    register<bit<16>>(SLOTS) slot_v2;
    register<bit<8>>(SLOTS) slot_v1;

    register<bit<64>>(128) counters;

    receive() enter;
    verify_checksum_of() verified;
    handle() take;
    put_value() put;
    enable() count_in;
    answer_order() answer;
    leave_by() leave;

    acceptor_step_t s;
    reports_t r;
    value_t value;
    bit<16> refused;
    bit<32> reports_at;
    bit<64> count;
    bool changed;
    bool of_reports;

    /* Finds what is kept about an instance. */
    action find() {
        nonces.read(s.nonce, m.group_at);
        epochs.read(s.epoch, m.group_at);
        enableds.read(s.enabled, m.partition_at);
        floors.read(s.floor, m.partition_at);
        raisers.read(s.raiser, m.partition_at);
        trims.read(s.trim, m.partition_at);
        ends.read(s.end, m.partition_at);
        slot_insts.read(s.slot.inst, m.slot_at);
        slot_clients.read(s.slot.client, m.slot_at);
        slot_requests.read(s.slot.request, m.slot_at);
        slot_rnds.read(s.slot.rnd, m.slot_at);
        slot_vrnds.read(s.slot.vrnd, m.slot_at);
        slot_flags.read(s.slot.flags, m.slot_at);
        slot_lens.read(s.slot.len, m.slot_at);
    }
    action find_value() {
        slot_v128.read(value.v128, m.slot_at);
        slot_v64.read(value.v64, m.slot_at);
        slot_v32.read(value.v32, m.slot_at);
        slot_v16.read(value.v16, m.slot_at);
        slot_v8.read(value.v8, m.slot_at);
        slot_v4.read(value.v4, m.slot_at);
        slot_v2.read(value.v2, m.slot_at);
        slot_v1.read(value.v1, m.slot_at);
    }
    action no_value() {
        value.v128 = 0;
        value.v64 = 0;
        value.v32 = 0;
        value.v16 = 0;
        value.v8 = 0;
        value.v4 = 0;
        value.v2 = 0;
        value.v1 = 0;
    }
    action find_reports() {
        EACH_REPORT(LOAD_REPORT)
        may_fail.read(r.g, m.partition_at);
    }
    action no_reports() {
        EACH_REPORT(NO_REPORT)
        r.g = 0;
    }

    action keep() {
        enableds.write(m.partition_at, s.enabled);
        floors.write(m.partition_at, s.floor);
        raisers.write(m.partition_at, s.raiser);
        trims.write(m.partition_at, s.trim);
        ends.write(m.partition_at, s.end);
    }
    action keep_slot() {
        slot_insts.write(m.slot_at, s.slot.inst);
        slot_clients.write(m.slot_at, s.slot.client);
        slot_requests.write(m.slot_at, s.slot.request);
        slot_rnds.write(m.slot_at, s.slot.rnd);
        slot_vrnds.write(m.slot_at, s.slot.vrnd);
        slot_flags.write(m.slot_at, s.slot.flags);
        slot_lens.write(m.slot_at, s.slot.len);
    }
    /* Steps that a value doesn't have stay as they were. */
#define KEEP_STEP(step, slots)                        \
        if (hdr.step.isValid()) {                     \
            slots.write(m.slot_at, hdr.step.bytes);   \
        }
    action keep_reports() {
        EACH_REPORT(STORE_REPORT)
        may_fail.write(m.partition_at, r.g);
    }

    /* What the process is shown. */
    action show_partition() {
        hdr.order.nonce = s.nonce;
        hdr.order.epoch = s.epoch;
        hdr.order.round = s.floor;
        hdr.order.a = s.trim;
        hdr.order.b = s.end;
        hdr.order.c = s.raiser;
        hdr.order.d = (bit<64>) r.g;
        hdr.replicas.n0 = r.n0;
        hdr.replicas.n1 = r.n1;
        hdr.replicas.n2 = r.n2;
        hdr.replicas.n3 = r.n3;
        hdr.replicas.n4 = r.n4;
        hdr.replicas.n5 = r.n5;
        hdr.replicas.n6 = r.n6;
        hdr.replicas.n7 = r.n7;
    }
    action show_slot() {
        hdr.order.a = s.slot.inst;
        hdr.order.b = s.slot.client;
        hdr.order.c = s.slot.request;
        hdr.order.d = (bit<64>) s.slot.flags << 16 | (bit<64>) s.slot.len;
        hdr.order.epoch = s.slot.vrnd;
        hdr.order.round = s.slot.rnd;
    }
    action show_report() {
        report_nodes.read(hdr.replicas.n0, reports_at + (bit<32>) hdr.order.at);
        report_disks.read(hdr.order.a, reports_at + (bit<32>) hdr.order.at);
        report_insts.read(hdr.order.b, reports_at + (bit<32>) hdr.order.at);
    }

    /* This one, and the next three. */
    action show_counters() {
        counters.read(hdr.order.a, (bit<32>) hdr.order.at);
        counters.read(hdr.order.b, (bit<32>) hdr.order.at + 1);
        counters.read(hdr.order.c, (bit<32>) hdr.order.at + 2);
        counters.read(hdr.order.d, (bit<32>) hdr.order.at + 3);
    }

    apply {
        enter.apply(hdr, m, standard, refused);
        if (m.ours && refused == 0 && hdr.wire.msgtype != REPLY) {
            /* A value that is stored is shown again, under a checksum of its own: a damaged one must not get that
             * far. [M-CHECKSUM] */
            verified.apply(hdr, m, refused);
        }
        reports_at = m.partition_at * MAX_REPLICAS;
        changed = false;
        find();
        /* Registers cost a switch in software time, and most packets are votes. */
        if (m.ordered || hdr.wire.msgtype == PHASE1A || hdr.wire.msgtype == QUERY) {
            find_value();
        } else {
            no_value();
        }
        of_reports = m.ordered || hdr.wire.msgtype == TRIM;
        if (of_reports) {
            find_reports();
        } else {
            no_reports();
        }
        s.takes_value = false;
        s.rejected = 0;
        s.round = 0;

        if (m.ours) {
            m.verdict = refused;
            if (refused == 0) {
                take.apply(hdr, m, s, r, value);
                changed = m.verdict == VERDICT_CHANGED;
            }
            if (changed) {
                keep_slot();
                if (s.takes_value) {
                    KEEP_STEP(v128, slot_v128)
                    KEEP_STEP(v64, slot_v64)
                    KEEP_STEP(v32, slot_v32)
                    KEEP_STEP(v16, slot_v16)
                    KEEP_STEP(v8, slot_v8)
                    KEEP_STEP(v4, slot_v4)
                    KEEP_STEP(v2, slot_v2)
                    KEEP_STEP(v1, slot_v1)
                }
            }
            counters.read(count, (bit<32>) m.verdict);
            counters.write((bit<32>) m.verdict, count + 1);
            DROP_UNSIGNABLE
        } else if (m.ordered) {
            if (refused == 0 && !m.carried_out) {
                if (hdr.order.op == ORDER_BEGIN) {
                    if (hdr.order.nonce == 0 || (s.nonce != 0 && s.nonce != hdr.order.nonce)) {
                        refused = REASON_CONFLICT;
                    } else {
                        nonces.write(m.group_at, hdr.order.nonce);
                    }
                } else if (hdr.order.op == ORDER_LOOK) {
                    show_partition();
                } else if (hdr.order.op == ORDER_LOOK_SLOT) {
                    show_slot();
                    put.apply(hdr, value, s.slot.len);
                } else if (hdr.order.op == ORDER_LOOK_REPORT) {
                    if (hdr.order.at >= MAX_REPLICAS) {
                        refused = REASON_UNKNOWN_SENDER;
                    } else {
                        show_report();
                    }
                } else if (hdr.order.op == ORDER_LOOK_COUNTER) {
                    if (hdr.order.at > COUNTERS - 4) {
                        refused = REASON_BAD_VALUE;
                    } else {
                        show_counters();
                    }
                } else if (s.nonce == 0 || hdr.order.nonce != s.nonce) {
                    refused = REASON_STRANGER;
                } else if (hdr.order.op == ORDER_ENABLE) {
                    count_in.apply(hdr, s, r, refused);
                    changed = refused == 0;
                } else if (hdr.order.op == ORDER_MEMBER) {
                    if (hdr.order.epoch < s.epoch) {
                        refused = REASON_STALE;
                    } else {
                        epochs.write(m.group_at, hdr.order.epoch);
                    }
                } else {
                    refused = REASON_NOT_FOR_ROLE;
                }
            }
            answer.apply(hdr, standard, PROBE_ACCEPTOR, refused);
        }

        if (changed) {
            if (s.end < s.trim) {
                s.end = s.trim;
            }
            keep();
            if (of_reports) {
                keep_reports();
            }
        }
        leave.apply(m, standard);
    }
}

/* ---- The switch */

#ifndef IN_COMBINATION
control ingress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    acceptor() role;
    forward() others;

    apply {
        role.apply(hdr, m, standard);
        if (!m.ours && !m.ordered) {
            others.apply(hdr, m, standard);
        }
    }
}

V1Switch(parse(), no_verify(), ingress(), egress(), no_update(), deparse()) main;
#endif
