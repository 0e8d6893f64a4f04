/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a frame, and what is known of it on its way through the switch. */
#ifndef HEADERS_P4
#define HEADERS_P4

#include <core.p4>
#include <v1model.p4>
#include "../../shared/wirepaxos.p4"
#include "../../shared/orders.p4"

/* ---- Sizes, which a build may change by -D. Indexes are bounded by them in `receive`. */

/* Slots of all partitions together, and partitions of all groups together. */
#ifndef SLOTS
#define SLOTS 65536
#endif
#ifndef PARTITIONS
#define PARTITIONS 64
#endif
#ifndef GROUPS
#define GROUPS 16
#endif
/* The port behind which the node's process is. */
#ifndef CPU_PORT
#define CPU_PORT 255
#endif

/* Fewer than in software (32): each is a register access of its own. */
#define MAX_REPLICAS 8
#define MAX_ACCEPTORS 8
/* The largest value, in bytes. */
#define MAX_VALUE 128
/* Partitions of one command: as many as that has room for. */
#define MAX_VECTOR_HERE 12

/* ---- Frames */

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_IPV6 = 0x86dd;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> ETHERNET_LEN = 14;
const bit<16> IPV4_LEN = 20;
const bit<16> IPV6_LEN = 40;
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

header ipv6_t {
    bit<4> version;
    bit<28> traffic;
    bit<16> payload_len;
    bit<8> next_header;
    bit<8> hop_limit;
    bit<128> src;
    bit<128> dst;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

/* A value is cut into steps: those whose lengths add up to its own, the longest first. */
header v128_t {
    bit<1024> bytes;
}

header v64_t {
    bit<512> bytes;
}

header v32_t {
    bit<256> bytes;
}

header v16_t {
    bit<128> bytes;
}

header v8_t {
    bit<64> bytes;
}

header v4_t {
    bit<32> bytes;
}

header v2_t {
    bit<16> bytes;
}

header v1_t {
    bit<8> bytes;
}

/* Node ids, by place; 0 = nobody. */
header nodes_t {
    bit<16> n0;
    bit<16> n1;
    bit<16> n2;
    bit<16> n3;
    bit<16> n4;
    bit<16> n5;
    bit<16> n6;
    bit<16> n7;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    ipv6_t ipv6;
    udp_t udp;
    wire_t wire;
    tag_t tag;
    /* A structured value that is made here, or read here. */
    range_report_t range_report;
    rejection_t rejection;
    probe_t probe;
    probe_report_t probe_report;
    vector_head_t vector;
    vector_entry_t[MAX_VECTOR_HERE] places;
    /* A value as it came, or what follows a vector. */
    v128_t v128;
    v64_t v64;
    v32_t v32;
    v16_t v16;
    v8_t v8;
    v4_t v4;
    v2_t v2;
    v1_t v1;
    order_t order;
    nodes_t acceptors;
    nodes_t replicas;
}

/* ---- On the way */

/* Where a message goes. */
const bit<2> NOWHERE = 0;
const bit<2> BACK = 1;
const bit<2> TO_MEMBERS = 2;

/* The fields that a packet keeps when it comes in again. */
#define KEPT_AGAIN 0

struct metadata_t {
    /* Counted at the end. */
    bit<16> verdict;
    /* Where what was made of the packet goes. */
    bit<2> goes;
    /* It is a message, or an order, for a role of this switch. */
    bool ours;
    bool ordered;

    /* The role's node, from `own4` or `own6`. */
    bit<16> node;
    bit<32> cluster;
    bit<16> port;
    bit<16> ports;

    bit<16> group;
    /* The group, from `groups`, and where that lies in the registers. */
    bit<16> partitions;
    bit<16> max_value;
    bit<32> group_at;
    bit<32> first_partition;
    bit<32> slots;
    bit<32> first_slot;
    /* The multicast group for one copy a member; behind it those for 2, 3, ... */
    bit<16> members;
    bit<32> partition_at;
    bit<32> slot_at;

    /* It is in the name of a node, and from its address; or a command, from where these are taken. */
    bool at_home;
    /* Bytes of value that follow a vector, or the value's. */
    bit<16> rest;
    /* Bytes of IP header. */
    bit<16> ip_len;
    /* What a checksum comes to. */
    bit<16> sum;
    /* Partitions that a stamped command names; 0 = it has no vector. */
    bit<16> copies;
    /* It comes from a role of this switch, in the same pass: its checksum isn't that of what it says now. */
    bool made_here;
    /* An order that needed no role. */
    bool carried_out;
#ifdef SIGNED
    /* Who has signed it, the generation that signs what leaves, and the keys for that: the nodes', and the signer's. */
    bit<8> signer;
    bit<8> signs;
    bit<136> nodes_key;
    bit<136> asker_key;
#endif
    /* It comes in again. Nothing else is kept, so it is a packet like any other. */
    @field_list(KEPT_AGAIN) bool again;
}

#endif
