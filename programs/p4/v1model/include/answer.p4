/* SPDX-License-Identifier: Apache-2.0 */
/* Turning the packet in hand into the one to send. */
#ifndef ANSWER_P4
#define ANSWER_P4

#include "receive.p4"

/* ---- Values */

/* Nothing of what the packet carried behind its header. */
control no_payload(inout headers_t hdr) {
    apply {
        hdr.tag.setInvalid();
        hdr.probe.setInvalid();
        hdr.rejection.setInvalid();
        hdr.vector.setInvalid();
        hdr.places[0].setInvalid();
        hdr.places[1].setInvalid();
        hdr.places[2].setInvalid();
        hdr.places[3].setInvalid();
        hdr.places[4].setInvalid();
        hdr.places[5].setInvalid();
        hdr.places[6].setInvalid();
        hdr.places[7].setInvalid();
        hdr.places[8].setInvalid();
        hdr.places[9].setInvalid();
        hdr.places[10].setInvalid();
        hdr.places[11].setInvalid();
        hdr.v128.setInvalid();
        hdr.v64.setInvalid();
        hdr.v32.setInvalid();
        hdr.v16.setInvalid();
        hdr.v8.setInvalid();
        hdr.v4.setInvalid();
        hdr.v2.setInvalid();
        hdr.v1.setInvalid();
    }
}

/* A value's bytes, by step. */
struct value_t {
    bit<1024> v128;
    bit<512> v64;
    bit<256> v32;
    bit<128> v16;
    bit<64> v8;
    bit<32> v4;
    bit<16> v2;
    bit<8> v1;
}

#define PUT_STEP(step, length)      \
    if ((len & length) != 0) {      \
        hdr.step.setValid();        \
        hdr.step.bytes = value.step; \
    }

/* `len` bytes of `value`, behind the header. */
control put_value(inout headers_t hdr, in value_t value, in bit<16> len) {
    apply {
        PUT_STEP(v128, 128)
        PUT_STEP(v64, 64)
        PUT_STEP(v32, 32)
        PUT_STEP(v16, 16)
        PUT_STEP(v8, 8)
        PUT_STEP(v4, 4)
        PUT_STEP(v2, 2)
        PUT_STEP(v1, 1)
    }
}

/* ---- Messages */

/* The packet becomes a message from this node, about what it was about: cluster, group, partition, instance, session and
 * round are the question's until the caller says otherwise. */
control answer_header(inout headers_t hdr, in metadata_t m, in bit<8> msgtype) {
    apply {
        hdr.wire.msgtype = msgtype;
        hdr.wire.vrnd = 0;
        hdr.wire.swid = m.node;
        hdr.wire.flags = 0;
        hdr.wire.value_len = 0;
    }
}

/* Lengths, and the end of what the frame may hold. */
control set_lengths(inout headers_t hdr, inout metadata_t m) {
    bit<16> tag;

    apply {
        tag = 0;
        if (hdr.tag.isValid()) {
            tag = TAG_LEN;
        }
        hdr.udp.length = UDP_LEN + HEADER_LEN + tag + hdr.wire.value_len;
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.total_len = IPV4_LEN + hdr.udp.length;
            hdr.ipv4.ttl = HOPS;
        } else {
            hdr.ipv6.payload_len = hdr.udp.length;
            hdr.ipv6.hop_limit = HOPS;
        }
        /* Frames that are padded keep their padding behind all headers. */
        truncate((bit<32>) ETHERNET_LEN + (bit<32>) m.ip_len + (bit<32>) hdr.udp.length);
    }
}

/* To where the packet came from. */
control send_back(inout headers_t hdr, inout metadata_t m) {
    bit<48> mac;
    bit<32> address4;
    bit<128> address6;
    bit<16> port;

    apply {
        m.goes = BACK;
        mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        if (hdr.ipv4.isValid()) {
            address4 = hdr.ipv4.dst;
            hdr.ipv4.dst = hdr.ipv4.src;
            hdr.ipv4.src = address4;
        } else {
            address6 = hdr.ipv6.dst;
            hdr.ipv6.dst = hdr.ipv6.src;
            hdr.ipv6.src = address6;
        }
        port = hdr.udp.dst;
        hdr.udp.dst = hdr.udp.src;
        hdr.udp.src = port;
    }
}

/* The message in hand, with its value and without the tag that it came with, to every member of its group. */
control send_multicast(inout headers_t hdr, inout metadata_t m, in bit<8> msgtype, in bit<16> flags) {
    apply {
        m.goes = TO_MEMBERS;
#ifndef SIGNED
        hdr.tag.setInvalid();
#endif
        hdr.wire.msgtype = msgtype;
        hdr.wire.swid = m.node;
        hdr.wire.flags = flags;
    }
}

/* By which port what a role made of a packet leaves: in one copy a member and partition. */
control leave_by(inout metadata_t m, inout standard_metadata_t standard) {
    apply {
        if (m.goes == BACK) {
            standard.egress_spec = standard.ingress_port;
        } else if (m.goes == TO_MEMBERS && m.members != 0) {
            standard.mcast_grp = m.members;
            if (m.copies > 1) {
                standard.mcast_grp = m.members + m.copies - 1;
            }
        } else if (m.ours) {
            mark_to_drop(standard);
        }
    }
}

/* REJECT names the refused message by its instance, round, client and request. [M-REFUSE] */
control send_reject(inout headers_t hdr, inout metadata_t m, in bit<16> reason, in bit<32> round,
                    in bit<64> trim) {
    no_payload() none;
    answer_header() answer;
    send_back() back;

    apply {
        none.apply(hdr);
        answer.apply(hdr, m, REJECT);
        hdr.wire.value_len = REJECTION_LEN;
        hdr.rejection.setValid();
        hdr.rejection.reason = reason;
        hdr.rejection.zero = 0;
        hdr.rejection.round = round;
        hdr.rejection.trim = trim;
        back.apply(hdr, m);
        m.verdict = VERDICT_REJECTED + reason;
    }
}

/* Whom a PROBE asks: 0 or a reason. */
control probe_is_for(in headers_t hdr, in bit<16> role, out bit<16> refused) {
    apply {
        refused = 0;
        if (!hdr.probe.isValid() || hdr.probe.role < PROBE_LEADER || hdr.probe.role > PROBE_SEQUENCER) {
            refused = REASON_BAD_VALUE;
        } else if (hdr.probe.role != role) {
            refused = REASON_NOT_FOR_ROLE;
        }
    }
}

control send_probe_ack(inout headers_t hdr, inout metadata_t m, in bit<32> rnd, in bit<64> inst,
                       in bit<64> nonce, in bit<64> trim, in bit<64> start) {
    no_payload() none;
    answer_header() answer;
    send_back() back;

    apply {
        none.apply(hdr);
        answer.apply(hdr, m, PROBE_ACK);
        hdr.wire.inst = inst;
        hdr.wire.rnd = rnd;
        hdr.wire.value_len = PROBE_REPORT_LEN;
        hdr.probe_report.setValid();
        hdr.probe_report.nonce = nonce;
        hdr.probe_report.trim = trim;
        hdr.probe_report.start = start;
        back.apply(hdr, m);
        m.verdict = VERDICT_ANSWERED;
    }
}

#endif
