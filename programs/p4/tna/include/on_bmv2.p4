/* SPDX-License-Identifier: Apache-2.0 */
/* The roles for Tofino in BMv2, where tests run them: the same steps, on registers of BMv2's. It isn't for use: what leaves has no
 * UDP checksum, and what comes in is taken with any. Registers begin with 0, whatever a program says; tests write the others. */
#ifndef ON_BMV2_P4
#define ON_BMV2_P4

#include <v1model.p4>

typedef bit<9> PortId_t;

/* Where roles listen: what BMv2's command line puts into a set is a byte too long. */
const bit<16> ports = 9000;

#define WORDS(name, bits, index, size, initial) register<bit<bits>>(size) name;
#define PAIRS(name, index, size) register<bit<64>>(size) name;

#define ASK_WORD(register, name, bits, index, said_t, body)                              \
    action name(in index at, out said_t said) {                                          \
        bit<bits> value;                                                                 \
        register.read(value, (bit<32>) at);                                              \
        body                                                                             \
        register.write((bit<32>) at, value);                                             \
    }
#define CHANGE_WORD(register, name, bits, index, body)                                   \
    action name(in index at) {                                                           \
        bit<bits> value;                                                                 \
        register.read(value, (bit<32>) at);                                              \
        body                                                                             \
        register.write((bit<32>) at, value);                                             \
    }
#define ASK_PAIR(register, name, index, said_t, body)                                    \
    action name(in index at, out said_t said) {                                          \
        bit<64> both;                                                                    \
        pair_t value;                                                                    \
        register.read(both, (bit<32>) at);                                               \
        value.high = both[63:32];                                                        \
        value.low = both[31:0];                                                          \
        body                                                                             \
        both = value.high ++ value.low;                                                  \
        register.write((bit<32>) at, both);                                              \
    }
#define CHANGE_PAIR(register, name, index, body)                                         \
    action name(in index at) {                                                           \
        bit<64> both;                                                                    \
        pair_t value;                                                                    \
        register.read(both, (bit<32>) at);                                               \
        value.high = both[63:32];                                                        \
        value.low = both[31:0];                                                          \
        body                                                                             \
        both = value.high ++ value.low;                                                  \
        register.write((bit<32>) at, both);                                              \
    }

#define ASK(field, name, at) name(at, field);
#define CHANGE(name, at) name(at);

#define CUT(name, bits)
#define PUT_CUT(field, name, bits) field = bits;
#define JOINED(high, low) high ++ low

#define SIZE(entries)

#define COUNTERS(name) counter(128, CounterType.packets) name;
#define COUNT_VERDICT(name) name.count((bit<32>) m.verdict);

#define INGRESS                                                                          \
    control ingress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard)
#define FROM_PORT standard.ingress_port
#define COPY standard.egress_rid
#define DROP mark_to_drop(standard);
#define LEAVE_BY(port) standard.egress_spec = port;
#define LEAVE_AS_IT_IS
#define LEAVE_TO_GROUP(group) standard.mcast_grp = group;
#define WITH_SUM hdr.udp.checksum = 0;

#define SWITCH                                                                           \
    control no_sums(inout headers_t hdr, inout metadata_t m) { apply {} }                \
    V1Switch(parse(), no_sums(), ingress(), egress(), no_sums(), deparse()) main;

#endif
