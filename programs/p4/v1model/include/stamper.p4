/* SPDX-License-Identifier: Apache-2.0 */
/* The role that stamps, a leader or a sequencer: its memory, and what stamps. */
#ifndef STAMPER_P4
#define STAMPER_P4

/* ---- A vector */

#define TAKES(i) hdr.vector.count > i
#define PLACE_OF(i) (in_force + m.first_partition + (bit<32>) hdr.places[i].pid)

/* In ascending order: the last one tells of all. */
#define LOOK_AT_PLACE(i, before)                                 \
    if (TAKES(i)) {                                              \
        if (hdr.places[i].pid <= hdr.places[before].pid) {       \
            refused = REASON_BAD_VALUE;                          \
        }                                                        \
        last = hdr.places[i].pid;                                \
    }

/* Why a vector can't be stamped (`Vector::parse`); 0 = it can. */
control load_vector(in headers_t hdr, in metadata_t m, out bit<16> refused) {
    bit<16> last;

    apply {
        refused = 0;
        last = 0;
        /* More than there is room for here are more than a value has room for, too. */
        if (!hdr.vector.isValid() || hdr.vector.count == 0 || hdr.vector.count > MAX_VECTOR_HERE ||
            hdr.wire.value_len < VECTOR_HEAD_LEN + VECTOR_ENTRY_LEN * hdr.vector.count) {
            refused = REASON_BAD_VALUE;
        } else {
            last = hdr.places[0].pid;
            LOOK_AT_PLACE(1, 0)
            LOOK_AT_PLACE(2, 1)
            LOOK_AT_PLACE(3, 2)
            LOOK_AT_PLACE(4, 3)
            LOOK_AT_PLACE(5, 4)
            LOOK_AT_PLACE(6, 5)
            LOOK_AT_PLACE(7, 6)
            LOOK_AT_PLACE(8, 7)
            LOOK_AT_PLACE(9, 8)
            LOOK_AT_PLACE(10, 9)
            LOOK_AT_PLACE(11, 10)
            if (hdr.places[0].pid != hdr.wire.pid) {
                refused = REASON_BAD_VALUE;
            }
            if (refused == 0 && last >= m.partitions) {
                refused = REASON_UNKNOWN_PARTITION;
            }
        }
    }
}

/* ---- The role */

control stamper(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    register<bit<64>>(GROUPS) nonces;
    register<bit<8>>(GROUPS) banks;
    register<bit<32>>(GROUPS) rnds;
    register<bit<8>>(GROUPS) retireds;
    register<bit<64>>(GROUPS) windows;
    register<bit<8>>(GROUPS) quorums;
    register<bit<8>>(GROUPS) tolds;
    register<bit<128>>(GROUPS) acceptors;
    register<bit<32>>(GROUPS) staged_epochs;
    register<bit<16>>(GROUPS) stageds;

    /* In two banks. */
    register<bit<64>>(2 * PARTITIONS) nexts;
    register<bit<64>>(2 * PARTITIONS) trimmeds;
    register<bit<8>>(2 * PARTITIONS) may_fail;
    register<bit<16>>(2 * PARTITIONS * MAX_REPLICAS) report_nodes;
    register<bit<64>>(2 * PARTITIONS * MAX_REPLICAS) report_disks;
    register<bit<64>>(2 * PARTITIONS * MAX_REPLICAS) report_insts;

    register<bit<64>>(128) counters;

    receive() enter;
    verify_checksum_of() verified;
    load_vector() look;
    stamper_trim_to() on_trim;
    rejected() on_reject;
    stamper_probe() on_probe;
    send_reject() reject;
    send_multicast() send;
    program() hand_over;
    stage() prepare;
    seat() replicas;
    answer_order() answer;
    leave_by() leave;

    stamp_step_t s;
    reports_t r;
    bit<16> refused;
    bit<32> in_force;
    bit<32> place;
    bit<32> reports_at;
    bit<64> next;
    bit<64> trimmed;
    bit<64> count;
    bool changed;
    bool of_reports;

    action find_group() {
        nonces.read(s.leader.nonce, m.group_at);
        banks.read(s.leader.bank, m.group_at);
        rnds.read(s.leader.rnd, m.group_at);
        retireds.read(s.leader.retired, m.group_at);
        windows.read(s.leader.window, m.group_at);
        quorums.read(s.leader.quorum, m.group_at);
        tolds.read(s.leader.told, m.group_at);
        acceptors.read(s.leader.acceptors, m.group_at);
        staged_epochs.read(s.leader.staged_epoch, m.group_at);
        stageds.read(s.leader.staged, m.group_at);
    }
    action keep_group() {
        nonces.write(m.group_at, s.leader.nonce);
        banks.write(m.group_at, s.leader.bank);
        rnds.write(m.group_at, s.leader.rnd);
        retireds.write(m.group_at, s.leader.retired);
        windows.write(m.group_at, s.leader.window);
        quorums.write(m.group_at, s.leader.quorum);
        tolds.write(m.group_at, s.leader.told);
        acceptors.write(m.group_at, s.leader.acceptors);
        staged_epochs.write(m.group_at, s.leader.staged_epoch);
        stageds.write(m.group_at, s.leader.staged);
    }
    action find() {
        nexts.read(s.next, place);
        trimmeds.read(s.trimmed, place);
    }
    action find_reports() {
        may_fail.read(r.g, place);
        EACH_REPORT(LOAD_REPORT)
    }
    action no_reports() {
        EACH_REPORT(NO_REPORT)
        r.g = 0;
    }
    action keep() {
        nexts.write(place, s.next);
        trimmeds.write(place, s.trimmed);
    }
    action keep_reports() {
        may_fail.write(place, r.g);
        EACH_REPORT(STORE_REPORT)
    }
    action show_partition() {
        hdr.order.nonce = s.leader.nonce;
        hdr.order.epoch = s.leader.staged_epoch;
        hdr.order.round = s.leader.rnd;
        hdr.order.a = s.next;
        hdr.order.b = s.trimmed;
        hdr.order.c = s.leader.window;
        hdr.order.d = (bit<64>) s.leader.told << 8 | (bit<64>) s.leader.retired;
        hdr.replicas.n0 = r.n0;
        hdr.replicas.n1 = r.n1;
        hdr.replicas.n2 = r.n2;
        hdr.replicas.n3 = r.n3;
        hdr.replicas.n4 = r.n4;
        hdr.replicas.n5 = r.n5;
        hdr.replicas.n6 = r.n6;
        hdr.replicas.n7 = r.n7;
    }
    action show_report() {
        report_nodes.read(hdr.replicas.n0, reports_at + (bit<32>) hdr.order.at);
        report_disks.read(hdr.order.a, reports_at + (bit<32>) hdr.order.at);
        report_insts.read(hdr.order.b, reports_at + (bit<32>) hdr.order.at);
    }

    /* First all windows, then all instances: so there is one of every partition that is named, or none. [L-MULTI] */
#define LOOK_AT_WINDOW(i)                                          \
    if (refused == 0 && TAKES(i)) {                                \
        nexts.read(next, PLACE_OF(i));                             \
        trimmeds.read(trimmed, PLACE_OF(i));                       \
        if (!window_open(next, trimmed, s.leader.window)) {        \
            refused = REASON_WINDOW;                               \
            s.trim = trimmed;                                      \
        }                                                          \
    }
#define TAKE_PLACE(i)                                              \
    if (TAKES(i)) {                                                \
        nexts.read(next, PLACE_OF(i));                             \
        hdr.places[i].inst = next;                                 \
        nexts.write(PLACE_OF(i), next + 1);                        \
    }
#define EACH_PLACE(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

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
            /* Also of a REQUEST: what goes on gets a new checksum, which would hide damage. [M-CHECKSUM] */
            verified.apply(hdr, m, refused);
        }
        changed = false;
        in_force = 0;
        find_group();
        if (s.leader.bank != 0) {
            in_force = PARTITIONS;
        }
        place = in_force + m.partition_at;
        reports_at = place * MAX_REPLICAS;
        find();
        /* Registers cost a switch in software time, and most packets are requests. */
        of_reports = m.ordered || hdr.wire.msgtype == TRIM;
        if (of_reports) {
            find_reports();
        } else {
            no_reports();
        }
        s.rejected = 0;
        s.trim = s.trimmed;

        if (m.ours) {
            m.verdict = refused;
            if (refused != 0) {
                /* It is counted below. */
            } else if (s.leader.nonce == 0) {
                /* Nobody has begun this memory, so it has no name. */
                m.verdict = REASON_STRANGER;
            } else if (hdr.wire.msgtype == REQUEST) {
                /* Stamps, if it is programmed and the window is open. Instance, round and sender in a REQUEST mean
                 * nothing. [L-STAMP] [Q-STAMP] */
                m.copies = 0;
                if (round_of(s.leader) == 0) {
                    s.rejected = REASON_NOT_LEADER;
                } else if ((hdr.wire.flags & FLAG_MULTI) != 0) {
                    look.apply(hdr, m, refused);
                    m.verdict = refused;
                    EACH_PLACE(LOOK_AT_WINDOW)
                    if (refused == REASON_WINDOW) {
                        s.rejected = REASON_WINDOW;
                    } else if (refused == 0) {
                        EACH_PLACE(TAKE_PLACE)
                        hdr.vector.round = s.leader.rnd;
                        hdr.wire.inst = hdr.places[0].inst;
                        m.copies = hdr.vector.count;
                        m.verdict = VERDICT_CHANGED;
                    }
                } else if (!window_open(s.next, s.trimmed, s.leader.window)) {
                    s.rejected = REASON_WINDOW;
                } else {
                    hdr.wire.inst = s.next;
                    nexts.write(place, s.next + 1);
                    m.verdict = VERDICT_CHANGED;
                }
                if (m.verdict == VERDICT_CHANGED) {
                    hdr.wire.rnd = s.leader.rnd;
                    hdr.wire.vrnd = 0;
                    send.apply(hdr, m, STAMPED, hdr.wire.flags & FLAGS_OF_VALUE);
                }
            } else if (hdr.wire.msgtype == TRIM) {
                on_trim.apply(hdr, m, s, r);
                changed = m.verdict == VERDICT_CHANGED;
            } else if (hdr.wire.msgtype == REJECT) {
                on_reject.apply(hdr, m, s);
                changed = m.verdict == VERDICT_CHANGED;
            } else if (hdr.wire.msgtype == PROBE) {
                on_probe.apply(hdr, m, s);
            } else {
                m.verdict = REASON_NOT_FOR_ROLE;
            }
            if (s.rejected != 0) {
                reject.apply(hdr, m, s.rejected, s.rejected == REASON_NOT_LEADER ? s.leader.rnd : 0,
                             s.trim);
            }
            counters.read(count, (bit<32>) m.verdict);
            counters.write((bit<32>) m.verdict, count + 1);
            DROP_UNSIGNABLE
        } else if (m.ordered) {
            if (refused == 0 && !m.carried_out) {
                if (hdr.order.op == ORDER_BEGIN) {
                    if (hdr.order.nonce == 0 ||
                        (s.leader.nonce != 0 && s.leader.nonce != hdr.order.nonce)) {
                        refused = REASON_CONFLICT;
                    } else {
                        nonces.write(m.group_at, hdr.order.nonce);
                    }
                } else if (hdr.order.op == ORDER_LOOK) {
                    show_partition();
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
                } else if (s.leader.nonce == 0 || hdr.order.nonce != s.leader.nonce) {
                    refused = REASON_STRANGER;
                } else if (hdr.order.op == ORDER_STAGE) {
                    prepare.apply(hdr, s.leader, refused);
                    if (refused == 0) {
                        /* Into the other bank, where nothing was reported yet. [T-EPOCH] */
                        place = m.partition_at + PARTITIONS - in_force;
                        reports_at = place * MAX_REPLICAS;
                        s.next = hdr.order.a;
                        s.trimmed = hdr.order.b;
                        no_reports();
                        replicas.apply(r, hdr.replicas, (bit<8>) hdr.order.c);
                        changed = true;
                    }
                } else if (hdr.order.op == ORDER_PROGRAM) {
                    hand_over.apply(hdr, m, s.leader, refused);
                    if (refused == 0) {
                        keep_group();
                    }
                } else if (hdr.order.op == ORDER_RETIRE) {
                    if (hdr.order.epoch > round_epoch(s.leader.rnd) && s.leader.rnd != 0) {
                        retireds.write(m.group_at, 1);
                    }
                } else {
                    refused = REASON_NOT_FOR_ROLE;
                }
            }
            answer.apply(hdr, standard, STAMPING_ROLE, refused);
        }

        if (changed) {
            keep_group();
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
    stamper() role;
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

#endif
