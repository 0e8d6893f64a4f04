/* SPDX-License-Identifier: Apache-2.0 */
/* What a chip has that other switches call otherwise: registers, and the ways out of ingress. With ON_BMV2 the same roles are
 * made for BMv2, so that tests can run them; see on_bmv2.p4.
 *
 * A packet looks at a register once. Its `value` is a word, or two (`value.high`, `value.low`); the packet gets what is put into
 * `said`. */
#ifndef TARGET_P4
#define TARGET_P4

#include <core.p4>

/* Two words. */
struct pair_t {
    bit<32> high;
    bit<32> low;
}

#ifdef ON_BMV2
#include "on_bmv2.p4"
#else
#include <tna.p4>

#define WORDS(name, bits, index, size, initial) Register<bit<bits>, index>(size, initial) name;
#define PAIRS(name, index, size) Register<pair_t, index>(size) name;

#define ASK_WORD(register, name, bits, index, said_t, body)                              \
    RegisterAction<bit<bits>, index, said_t>(register) name = {                          \
        void apply(inout bit<bits> value, out said_t said) { body }                      \
    };
#define CHANGE_WORD(register, name, bits, index, body)                                   \
    RegisterAction<bit<bits>, index, bit<bits>>(register) name = {                       \
        void apply(inout bit<bits> value) { body }                                       \
    };
#define ASK_PAIR(register, name, index, said_t, body)                                    \
    RegisterAction<pair_t, index, said_t>(register) name = {                             \
        void apply(inout pair_t value, out said_t said) { body }                         \
    };
#define CHANGE_PAIR(register, name, index, body)                                         \
    RegisterAction<pair_t, index, bit<32>>(register) name = {                            \
        void apply(inout pair_t value) { body }                                          \
    };

#define ASK(field, name, at) field = name.execute(at);
#define CHANGE(name, at) name.execute(at);

/* Puts any bits together: a chip's actions move fields between containers of the same size alone, and by whole ones. */
#define CUT(name, bits) Hash<bit<bits>>(HashAlgorithm_t.IDENTITY) name;
#define PUT_CUT(field, name, bits) field = name.get({bits});
#define JOINED(high, low) high, low

/* Of a table whose entries are all in the program: a chip's compiler wants to be told. */
#define SIZE(entries) size = entries;

/* Of packets, by verdict. */
#define COUNTERS(name) Counter<bit<32>, bit<8>>(128, CounterType_t.PACKETS) name;
#define COUNT_VERDICT(name) name.count(m.verdict[7:0]);

#define INGRESS                                                                          \
    control ingress(inout headers_t hdr, inout metadata_t m, in ingress_intrinsic_metadata_t chip, \
                    in ingress_intrinsic_metadata_from_parser_t parsed,                  \
                    inout ingress_intrinsic_metadata_for_deparser_t leaving,             \
                    inout ingress_intrinsic_metadata_for_tm_t manager)
#define FROM_PORT chip.ingress_port
/* Which one of a group, in egress. */
#define COPY chip.egress_rid
#define DROP leaving.drop_ctl = 1;
#define LEAVE_BY(port) manager.ucast_egress_port = port;
/* Without another look at it. */
#define LEAVE_AS_IT_IS manager.bypass_egress = 1;
#define LEAVE_TO_GROUP(group) manager.mcast_grp_a = group;
/* With a UDP checksum; in egress. */
#define WITH_SUM m.sums = 1;

#define SWITCH                                                                           \
    Pipeline(parse(), ingress(), deparse(), parse_leaving(), egress(), deparse_leaving()) pipe; \
    Switch(pipe) main;
#endif

#endif
