/* SPDX-License-Identifier: Apache-2.0 */
/* UDP checksums: verified before a value is stored, counted or passed on, and computed anew for what leaves.
 * [M-CHECKSUM] */
#ifndef CHECKSUM_P4
#define CHECKSUM_P4

#include "headers.p4"

/* The complement of a datagram's sum, its own checksum included: 0 where that is right. What a packet doesn't have is 0
 * here and adds nothing; a field of a header that isn't there may hold what an earlier packet had. A sum's words may stand in
 * any order; only the last step of a value may be odd. */
control sum_of(inout headers_t hdr, inout metadata_t m) {
    bit<64> of_ipv4;
    bit<256> of_ipv6;
    bit<192> of_tag;
    bit<192> of_range_report;
    bit<128> of_rejection;
    bit<16> of_probe;
    bit<192> of_probe_report;
    bit<48> of_vector;
    bit<80> of_places0;
    bit<80> of_places1;
    bit<80> of_places2;
    bit<80> of_places3;
    bit<80> of_places4;
    bit<80> of_places5;
    bit<80> of_places6;
    bit<80> of_places7;
    bit<80> of_places8;
    bit<80> of_places9;
    bit<80> of_places10;
    bit<80> of_places11;
    bit<1024> of_v128;
    bit<512> of_v64;
    bit<256> of_v32;
    bit<128> of_v16;
    bit<64> of_v8;
    bit<32> of_v4;
    bit<16> of_v2;
    bit<8> of_v1;

    apply {
        of_ipv4 = 0;
        if (hdr.ipv4.isValid()) {
            of_ipv4 = hdr.ipv4.src ++ hdr.ipv4.dst;
        }
        of_ipv6 = 0;
        if (hdr.ipv6.isValid()) {
            of_ipv6 = hdr.ipv6.src ++ hdr.ipv6.dst;
        }
        of_tag = 0;
        if (hdr.tag.isValid()) {
            of_tag = hdr.tag.key_id ++ hdr.tag.alg ++ hdr.tag.counter ++ hdr.tag.digest ++ hdr.tag.mac;
        }
        of_range_report = 0;
        if (hdr.range_report.isValid()) {
            of_range_report = hdr.range_report.end ++ hdr.range_report.trim ++ hdr.range_report.nonce;
        }
        of_rejection = 0;
        if (hdr.rejection.isValid()) {
            of_rejection = hdr.rejection.reason ++ hdr.rejection.zero ++ hdr.rejection.round ++ hdr.rejection.trim;
        }
        of_probe = 0;
        if (hdr.probe.isValid()) {
            of_probe = hdr.probe.role;
        }
        of_probe_report = 0;
        if (hdr.probe_report.isValid()) {
            of_probe_report = hdr.probe_report.nonce ++ hdr.probe_report.trim ++ hdr.probe_report.start;
        }
        of_vector = 0;
        if (hdr.vector.isValid()) {
            of_vector = hdr.vector.round ++ hdr.vector.count;
        }
        of_places0 = 0;
        if (hdr.places[0].isValid()) {
            of_places0 = hdr.places[0].pid ++ hdr.places[0].inst;
        }
        of_places1 = 0;
        if (hdr.places[1].isValid()) {
            of_places1 = hdr.places[1].pid ++ hdr.places[1].inst;
        }
        of_places2 = 0;
        if (hdr.places[2].isValid()) {
            of_places2 = hdr.places[2].pid ++ hdr.places[2].inst;
        }
        of_places3 = 0;
        if (hdr.places[3].isValid()) {
            of_places3 = hdr.places[3].pid ++ hdr.places[3].inst;
        }
        of_places4 = 0;
        if (hdr.places[4].isValid()) {
            of_places4 = hdr.places[4].pid ++ hdr.places[4].inst;
        }
        of_places5 = 0;
        if (hdr.places[5].isValid()) {
            of_places5 = hdr.places[5].pid ++ hdr.places[5].inst;
        }
        of_places6 = 0;
        if (hdr.places[6].isValid()) {
            of_places6 = hdr.places[6].pid ++ hdr.places[6].inst;
        }
        of_places7 = 0;
        if (hdr.places[7].isValid()) {
            of_places7 = hdr.places[7].pid ++ hdr.places[7].inst;
        }
        of_places8 = 0;
        if (hdr.places[8].isValid()) {
            of_places8 = hdr.places[8].pid ++ hdr.places[8].inst;
        }
        of_places9 = 0;
        if (hdr.places[9].isValid()) {
            of_places9 = hdr.places[9].pid ++ hdr.places[9].inst;
        }
        of_places10 = 0;
        if (hdr.places[10].isValid()) {
            of_places10 = hdr.places[10].pid ++ hdr.places[10].inst;
        }
        of_places11 = 0;
        if (hdr.places[11].isValid()) {
            of_places11 = hdr.places[11].pid ++ hdr.places[11].inst;
        }
        of_v128 = 0;
        if (hdr.v128.isValid()) {
            of_v128 = hdr.v128.bytes;
        }
        of_v64 = 0;
        if (hdr.v64.isValid()) {
            of_v64 = hdr.v64.bytes;
        }
        of_v32 = 0;
        if (hdr.v32.isValid()) {
            of_v32 = hdr.v32.bytes;
        }
        of_v16 = 0;
        if (hdr.v16.isValid()) {
            of_v16 = hdr.v16.bytes;
        }
        of_v8 = 0;
        if (hdr.v8.isValid()) {
            of_v8 = hdr.v8.bytes;
        }
        of_v4 = 0;
        if (hdr.v4.isValid()) {
            of_v4 = hdr.v4.bytes;
        }
        of_v2 = 0;
        if (hdr.v2.isValid()) {
            of_v2 = hdr.v2.bytes;
        }
        of_v1 = 0;
        if (hdr.v1.isValid()) {
            of_v1 = hdr.v1.bytes;
        }
        hash(m.sum, HashAlgorithm.csum16, (bit<16>) 0,
             { (bit<8>) 0, PROTOCOL_UDP, hdr.udp.length,
               hdr.udp.src, hdr.udp.dst, hdr.udp.length, hdr.udp.checksum,
               hdr.wire.version, hdr.wire.msgtype, hdr.wire.value_len, hdr.wire.group, hdr.wire.pid,
               hdr.wire.inst, hdr.wire.rnd, hdr.wire.vrnd, hdr.wire.swid, hdr.wire.flags,
               hdr.wire.cluster, hdr.wire.client, hdr.wire.request,
               of_ipv4, of_ipv6, of_tag, of_range_report, of_rejection, of_probe, of_probe_report,
               of_vector, of_places0, of_places1, of_places2, of_places3, of_places4, of_places5,
               of_places6, of_places7, of_places8, of_places9, of_places10, of_places11, of_v128,
               of_v64, of_v32, of_v16, of_v8, of_v4, of_v2, of_v1 },
             (bit<32>) 65536);
    }
}

/* IPv4 knows datagrams without a checksum, IPv6 doesn't. What another role of this switch has made out of a packet in this
 * pass was verified when it came in. Where packets are signed a tag has shown more. */
control verify_checksum_of(inout headers_t hdr, inout metadata_t m, out bit<16> refused) {
#ifndef SIGNED
    sum_of() sum;
#endif

    apply {
        refused = 0;
#ifndef SIGNED
        if (m.made_here) {
            refused = 0;
        } else if (hdr.udp.checksum != 0) {
            sum.apply(hdr, m);
            if (m.sum != 0) {
                refused = REASON_BAD_CHECKSUM;
            }
        } else if (hdr.ipv6.isValid()) {
            refused = REASON_BAD_CHECKSUM;
        }
#endif
    }
}

/* Of what leaves. A value that came without a checksum goes on without one: a checksum that is made up here would hide
 * what had happened to it before. */
control set_checksums(inout headers_t hdr, inout metadata_t m) {
    sum_of() sum;

    apply {
        if (m.goes == BACK || hdr.udp.checksum != 0 || hdr.ipv6.isValid()) {
            hdr.udp.checksum = 0;
            sum.apply(hdr, m);
            hdr.udp.checksum = m.sum;
            if (hdr.udp.checksum == 0) {
                hdr.udp.checksum = 0xffff;
            }
        }
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = 0;
            hash(m.sum, HashAlgorithm.csum16, (bit<16>) 0,
                 { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len, hdr.ipv4.id,
                   hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.checksum,
                   hdr.ipv4.src, hdr.ipv4.dst },
                 (bit<32>) 65536);
            hdr.ipv4.checksum = m.sum;
        }
    }
}

#endif
