/* SPDX-License-Identifier: Apache-2.0 */
/* TRIM reports of replicas, for acceptors and leaders alike: as crates/paxos/src/quorum.rs.
 *
 * A replica has a place. Who goes on in another configuration keeps it, so that its report stays; a place that becomes
 * another's, or nobody's, begins anew. */
#ifndef REPORTS_P4
#define REPORTS_P4

#include "receive.p4"

/* By place: which replica, the number of its disk (0 = nothing was reported), and everything below is durable there. */
struct reports_t {
    bit<16> n0;
    bit<16> n1;
    bit<16> n2;
    bit<16> n3;
    bit<16> n4;
    bit<16> n5;
    bit<16> n6;
    bit<16> n7;
    bit<64> disk0;
    bit<64> disk1;
    bit<64> disk2;
    bit<64> disk3;
    bit<64> disk4;
    bit<64> disk5;
    bit<64> disk6;
    bit<64> disk7;
    bit<64> inst0;
    bit<64> inst1;
    bit<64> inst2;
    bit<64> inst3;
    bit<64> inst4;
    bit<64> inst5;
    bit<64> inst6;
    bit<64> inst7;
    /* How many of the replicas may fail. */
    bit<8> g;
}

#define EACH_REPORT(DO)      \
    DO(0, n0, disk0, inst0) \
    DO(1, n1, disk1, inst1) \
    DO(2, n2, disk2, inst2) \
    DO(3, n3, disk3, inst3) \
    DO(4, n4, disk4, inst4) \
    DO(5, n5, disk5, inst5) \
    DO(6, n6, disk6, inst6) \
    DO(7, n7, disk7, inst7)

/* The registers of a role's reports, MAX_REPLICAS for each `at`. */
#define LOAD_REPORT(i, n, disk, inst)                 \
    report_nodes.read(r.n, reports_at + i);           \
    report_disks.read(r.disk, reports_at + i);        \
    report_insts.read(r.inst, reports_at + i);
#define STORE_REPORT(i, n, disk, inst)                \
    report_nodes.write(reports_at + i, r.n);          \
    report_disks.write(reports_at + i, r.disk);       \
    report_insts.write(reports_at + i, r.inst);

/* Of whoever needs none. */
#define NO_REPORT(i, n, disk, inst) \
    r.n = 0;                        \
    r.disk = 0;                     \
    r.inst = 0;

#define COVERS(j, n, disk, inst)  \
    if (r.inst >= it) {           \
        covered = covered + 1;    \
    }
#define CANDIDATE(i, n, disk, inst) \
    it = r.inst;                    \
    covered = 0;                    \
    EACH_COVERS                     \
    if (covered > r.g && it > point) { \
        point = it;                 \
    }
/* Written out: a macro doesn't expand within itself. */
#define EACH_COVERS            \
    COVERS(0, n0, disk0, inst0) \
    COVERS(1, n1, disk1, inst1) \
    COVERS(2, n2, disk2, inst2) \
    COVERS(3, n3, disk3, inst3) \
    COVERS(4, n4, disk4, inst4) \
    COVERS(5, n5, disk5, inst5) \
    COVERS(6, n6, disk6, inst6) \
    COVERS(7, n7, disk7, inst7)

/* Everything below is covered by g+1 replicas: the (g+1)-th largest report, of all that came last, in whatever order
 * they came. Places that are nobody's are 0 and so never win. [T-QUORUM] */
control trim_point(in reports_t r, out bit<64> point) {
    bit<64> it;
    bit<8> covered;

    apply {
        point = 0;
        EACH_REPORT(CANDIDATE)
    }
}

#define NOTE(i, n, disk, inst)                                                  \
    if (r.n == replica && replica != 0) {                                       \
        if (incarnation < r.disk || (incarnation == r.disk && covers < r.inst)) { \
            refused = REASON_STALE;                                             \
        } else if (incarnation == r.disk && covers == r.inst) {                 \
            refused = REASON_DUPLICATE;                                         \
        } else {                                                                \
            refused = 0;                                                        \
            r.disk = incarnation;                                               \
            r.inst = covers;                                                    \
        }                                                                       \
    }

/* Notes that `replica` covers everything below `covers` on the disk of that incarnation: 0 or a reason. [T-NEWEST] */
control note_report(inout reports_t r, in bit<16> replica, in bit<64> incarnation,
                    in bit<64> covers, out bit<16> refused) {
    apply {
        refused = REASON_UNKNOWN_SENDER;
        EACH_REPORT(NOTE)
        if (incarnation == 0) {
            refused = REASON_BAD_SESSION;
        }
    }
}

/* A replica's TRIM: notes it, and raises `trim` to what g+1 replicas cover. A replica that doesn't know `epoch` may tell
 * of a disk that was gone before this memory was counted in. 0 or a reason. [T-EPOCH] */
control take_report(in headers_t hdr, inout reports_t r, in bit<32> epoch, inout bit<64> trim,
                    out bit<16> refused) {
    note_report() note;
    trim_point() covered;
    bit<64> point;

    apply {
        if (hdr.wire.request < (bit<64>) epoch) {
            refused = REASON_STALE;
        } else {
            note.apply(r, hdr.wire.swid, hdr.wire.client, hdr.wire.inst, refused);
            if (refused == 0) {
                covered.apply(r, point);
                if (point > trim) {
                    trim = point;
                }
            }
        }
    }
}

#define SEAT(i, n, disk, inst)  \
    if (r.n != them.n) {        \
        r.n = them.n;           \
        r.disk = 0;             \
        r.inst = 0;             \
    }

/* The replicas of another configuration, by place. */
control seat(inout reports_t r, in nodes_t them, in bit<8> g) {
    apply {
        EACH_REPORT(SEAT)
        r.g = g;
    }
}

#endif
