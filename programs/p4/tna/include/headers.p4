/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a frame, and what is known of it on its way through the chip. */
#ifndef HEADERS_P4
#define HEADERS_P4

#include "target.p4"
#include "../../shared/wirepaxos.p4"
#include "../../shared/orders.p4"

/* ---- Sizes, which a build may change by -D */

/* A partition has 2^SLOT_BITS slots, 16 bits at most. All of the chip have SLOTS. */
#ifndef SLOT_BITS
#define SLOT_BITS 16
#endif
#ifndef PARTITIONS
#define PARTITIONS 1
#endif
#define SLOTS (PARTITIONS << SLOT_BITS)
/* The port behind which the node's process is: of the same pipe as all ports of the cluster. */
#ifndef CPU_PORT
#define CPU_PORT 64
#endif
#ifndef MEMBERS
#define MEMBERS 64
#endif
#ifndef NODES
#define NODES 256
#endif
/* Networks of clients. */
#ifndef ASKERS
#define ASKERS 64
#endif

/* The largest value, in bytes: 8 words. */
#define MAX_VALUE 32

/* An instance is its place in the ring, and how often the ring has gone around before: its lap. Stateful ALUs compare 32
 * bits, and a lap has 31 here, so that the difference of two tells which is larger. Instances beyond are refused. */
#define LAP_LOW SLOT_BITS
#define LAP_HIGH (SLOT_BITS + 31)
#define PLACE_MASK ((1 << SLOT_BITS) - 1)
/* The halves of an instance that is told by lap and place. */
#define HIGH_OF(lap) JOINED((bit<(32 - SLOT_BITS)>) 0, lap[31:32 - SLOT_BITS])
#define LOW_OF(lap, place) JOINED(lap[31 - SLOT_BITS:0], place[SLOT_BITS - 1:0])

/* ---- Frames */

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> IPV4_LEN = 20;
const bit<16> UDP_LEN = 8;
const bit<8> HOPS = 64;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ethertype;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> total_len;
    bit<16> id;
    /* Flags and offset. */
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

/* A value is cut into whole words, and a rest of up to three bytes. */
header word_t {
    bit<32> bytes;
}

header v2_t {
    bit<16> bytes;
}

header v1_t {
    bit<8> bytes;
}

/* From ingress to egress, in front of the frame. */
header bridge_t {
    /* Where it goes: BACK or TO_MEMBERS. */
    bit<8> goes;
}

struct headers_t {
    bridge_t bridge;
    ethernet_t ethernet;
    order_t order;
    ipv4_t ipv4;
    udp_t udp;
    wire_t wire;
    tag_t tag;
    range_report_t range_report;
    rejection_t rejection;
    word_t w0;
    word_t w1;
    word_t w2;
    word_t w3;
    word_t w4;
    word_t w5;
    word_t w6;
    word_t w7;
    v2_t v2;
    v1_t v1;
}

/* ---- On the way */

/* Where a message goes. */
const bit<8> NOWHERE = 0;
const bit<8> BACK = 1;
const bit<8> TO_MEMBERS = 2;

typedef bit<32> slot_at_t;
typedef bit<16> partition_at_t;

#endif
