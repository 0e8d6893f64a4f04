/* SPDX-License-Identifier: Apache-2.0 */
/* What a node's process orders, and asks: ../README.md, "Orders". An order comes in one packet, so all that it changes
 * changes at once; and it names the memory that it means, so one that comes late, or after the switch has begun anew,
 * changes nothing. */
#ifndef ORDERS_P4
#define ORDERS_P4

#include "headers.p4"

/* Counts up when orders change. */
const bit<64> ORDERS_VERSION = 1;
/* How packets are signed; 0 = they aren't. */
#ifdef SIGNED
#define SIGNED_BY ALG_HALF_SIPHASH
#else
#define SIGNED_BY 0
#endif
/* A role is what PROBE calls it; nobody probes a learner. */
const bit<16> ROLE_LEARNER = 16;

/* The answer goes back to the process. */
control answer_order(inout headers_t hdr, inout standard_metadata_t standard, in bit<16> role,
                     in bit<16> refused) {
    apply {
        if (hdr.order.op == ORDER_ABOUT) {
            hdr.order.at = role;
            hdr.order.a = SLOTS;
            hdr.order.b = PARTITIONS;
            hdr.order.c = GROUPS;
            hdr.order.d = ORDERS_VERSION;
            hdr.order.epoch = (bit<32>) SIGNED_BY;
            hdr.order.result = 0;
        } else {
            hdr.order.result = (bit<8>) refused;
        }
        hdr.order.op = hdr.order.op | ORDER_ANSWER;
        standard.egress_spec = CPU_PORT;
    }
}

#endif
