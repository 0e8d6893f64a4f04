/* SPDX-License-Identifier: Apache-2.0 */
/* What a switch does with all other packets: they go on by their destination address. */
#ifndef FORWARD_P4
#define FORWARD_P4

#include "headers.p4"

/* Takes one hop off. A checksum's complement is a sum whose high byte counts down by one, so the checksum goes up by as
 * much; [0xffff in, 0xffff out] is the same as 0. */
control hop_v4(inout headers_t hdr) {
    bit<32> check;

    apply {
        check = (bit<32>) hdr.ipv4.checksum + 0x100;
        if (check >= 0xffff) {
            check = check + 1;
        }
        hdr.ipv4.checksum = (bit<16>) check;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
}

control forward(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    hop_v4() hop4;
    bool found;

    action to_port(bit<9> port, bit<48> mac_to, bit<48> mac_from) {
        standard.egress_spec = port;
        hdr.ethernet.dst = mac_to;
        hdr.ethernet.src = mac_from;
        found = true;
    }
    /* To the switch's own machine. */
    action to_process() {
        standard.egress_spec = CPU_PORT;
    }
    table routes4 {
        key = {
            hdr.ipv4.dst: lpm;
        }
        actions = {
            to_port;
            NoAction;
        }
        default_action = NoAction();
    }
    table routes6 {
        key = {
            hdr.ipv6.dst: lpm;
        }
        actions = {
            to_port;
            NoAction;
        }
        default_action = NoAction();
    }

    /* What no route is known for, by where it came in. A switch in front of one machine passes it between that and the
     * network, as it is. */
    action pass_by(bit<9> port) {
        standard.egress_spec = port;
    }
    table beside {
        key = {
            standard.ingress_port: exact;
        }
        actions = {
            pass_by;
            to_process;
        }
        default_action = to_process();
    }

    apply {
        found = false;
        if (hdr.ethernet.ethertype == ETHERTYPE_ORDER) {
            /* Between a switch and its process alone: what comes from elsewhere could pass for an answer. An order that
             * no role took goes back. */
            mark_to_drop(standard);
            if (standard.ingress_port == CPU_PORT) {
                to_process();
            }
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
            routes4.apply();
            if (found) {
                hop4.apply(hdr);
            }
        } else if (hdr.ipv6.isValid() && hdr.ipv6.hop_limit > 1) {
            routes6.apply();
            if (found) {
                hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
            }
        }
        if (found) {
            m.verdict = VERDICT_CHANGED;
        } else if (hdr.ethernet.ethertype != ETHERTYPE_ORDER) {
            beside.apply();
        }
    }
}

#endif
