/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of a node's process to its switch, and the numbers of all of them, for every target.
 *
 * crates/p4/tests/orders.rs holds every number and every width here against Rust, without a P4 compiler. */
#ifndef SHARED_ORDERS_P4
#define SHARED_ORDERS_P4

/* For local experiments: orders and their answers, between a switch and its process. */
const bit<16> ETHERTYPE_ORDER = 0x88b5;

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
/* Of leaders and sequencers of Tofino: the window reaches further. */
const bit<8> ORDER_OPEN = 15;
/* Of every role of an FPGA, which has no tables: a setting (programs/fpga/README.md). */
const bit<8> ORDER_SET = 16;

/* An order that no role has taken comes back to the process as it was, so an answer says that it is one. */
const bit<8> ORDER_ANSWER = 0x80;

/* What the process of a node orders, and what comes back: ../README.md, "Orders". */
header order_t {
    /* Of an answer: with ORDER_ANSWER. */
    bit<8> op;
    /* Of an answer: 0 = done; otherwise a reason. */
    bit<8> result;
    /* Whom it is for. */
    bit<16> node;
    bit<16> group;
    bit<16> pid;
    /* Of what is looked at: which. */
    bit<16> at;
    /* Whoever asks draws it; the answer has the same. */
    bit<16> number;
    bit<32> epoch;
    bit<32> round;
    /* Of the memory that it means. */
    bit<64> nonce;
    bit<64> a;
    bit<64> b;
    bit<64> c;
    bit<64> d;
}

#endif
