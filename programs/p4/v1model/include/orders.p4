/* SPDX-License-Identifier: Apache-2.0 */
/* What a node's process orders, and asks: ../README.md, "Orders". An order comes in one packet, so all that it changes
 * changes at once; and it names the memory that it means, so one that comes late, or after the switch has begun anew,
 * changes nothing. */
#ifndef ORDERS_P4
#define ORDERS_P4

#include "headers.p4"

/* Of every role. */
const bit<8> ORDER_BEGIN = 1;
const bit<8> ORDER_LOOK = 2;
const bit<8> ORDER_LOOK_SLOT = 3;
const bit<8> ORDER_LOOK_REPORT = 4;
const bit<8> ORDER_LOOK_COUNTER = 5;
/* Of acceptors. */
const bit<8> ORDER_ENABLE = 6;
const bit<8> ORDER_MEMBER = 7;
/* Of leaders and sequencers. */
const bit<8> ORDER_STAGE = 8;
const bit<8> ORDER_PROGRAM = 9;
const bit<8> ORDER_RETIRE = 10;
/* Of learners. */
const bit<8> ORDER_FLOOR = 11;
/* Of every role, also before its groups are known: which program this is, and how large. */
const bit<8> ORDER_ABOUT = 12;
/* Of every role that signs, and checks, packets. */
const bit<8> ORDER_KEY = 13;
const bit<8> ORDER_SIGN = 14;

/* An order that no role has taken comes back to the process as it was, so an answer says that it is one. */
const bit<8> ORDER_ANSWER = 0x80;
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
