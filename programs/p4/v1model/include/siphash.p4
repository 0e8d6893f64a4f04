/* SPDX-License-Identifier: Apache-2.0 */
/* Tags, by which packets prove where they come from: checked and made as in crates/paxos/src/auth.rs. Both hashes are
 * HalfSipHash-2-4 of 64 bits: SipHash in words of 32 bits, which switches compute with. Keys come in orders; which are good,
 * and who signs with which, docs/protocol/authentication.md says. [M-SIGNED]
 *
 * Only programs that are compiled with SIGNED have this. There a tag shows all damage, so no checksum is looked at.
 * [M-CHECKSUM] */
#ifndef SIPHASH_P4
#define SIPHASH_P4

#include "headers.p4"
#include "orders.p4"

/* In `key_id`: the lowest bit of the generation, and whose key it is. Other bits are 0. */
const bit<8> KEY_ODD = 0x80;
const bit<8> KEY_NUMBER = 0x1f;
/* The number of all nodes together; clients' are larger. */
const bit<8> KEY_OF_NODES = 0;
/* So many keys there are: of two generations. */
#define KEY_IDS 64

/* What nodes send to each other, and to clients: nobody looks at its counter. */
const bit<48> UNCOUNTED = 0;

/* ---- HalfSipHash
 *
 * P4 has no loops, so each word is written out. Steps are actions: p4c puts an expression in the place of a variable wherever it can,
 * and the next one into that, but not across actions. */

#define ROTATE(x, by) (x << by | x >> (32 - by))

#define SIP_ROUND                  \
    v0 = v0 + v1;                  \
    v1 = ROTATE(v1, 5) ^ v0;       \
    v0 = ROTATE(v0, 16);           \
    v2 = v2 + v3;                  \
    v3 = ROTATE(v3, 8) ^ v2;       \
    v0 = v0 + v3;                  \
    v3 = ROTATE(v3, 7) ^ v0;       \
    v2 = v2 + v1;                  \
    v1 = ROTATE(v1, 13) ^ v2;      \
    v2 = ROTATE(v2, 16);

#define SIP_WORD(high, low)        \
    v3 = v3 ^ text[high:low];      \
    SIP_ROUND                      \
    SIP_ROUND                      \
    v0 = v0 ^ text[high:low];

/* Of whoever hashes: what it works on, and how it begins and ends. `secret` is a key with its first word in the lower half. */
#define SIP_STATE                                  \
    bit<32> v0;                                    \
    bit<32> v1;                                    \
    bit<32> v2;                                    \
    bit<32> v3;                                    \
    bit<32> half;                                  \
                                                   \
    action begin() {                               \
        v0 = secret[31:0];                         \
        v1 = secret[63:32] ^ 0xee;                 \
        v2 = secret[31:0] ^ 0x6c796765;            \
        v3 = secret[63:32] ^ 0x74656462;           \
    }                                              \
    action first_half() {                          \
        v2 = v2 ^ 0xee;                            \
        SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND    \
        half = v1 ^ v3;                            \
    }                                              \
    action second_half() {                         \
        v1 = v1 ^ 0xdd;                            \
        SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND    \
    }

/* A text's words are little-endian: the bytes of each change places, those of all at once. */
#define TEXT_BITS 1056
const bit<TEXT_BITS> LOW_BYTES = ((1 << TEXT_BITS) - 1) / 0xffff * 0xff;
const bit<TEXT_BITS> LOW_HALVES = ((1 << TEXT_BITS) - 1) / 0xffffffff * 0xffff;

#define TURN_WORDS(bits)                                                                          \
    action turn_bytes() {                                                                         \
        text = (text & (bit<bits>) LOW_BYTES) << 8 | (text >> 8 & (bit<bits>) LOW_BYTES);         \
    }                                                                                             \
    action turn_halves() {                                                                        \
        text = (text & (bit<bits>) LOW_HALVES) << 16 | (text >> 16 & (bit<bits>) LOW_HALVES);     \
    }

/* Of all 48 bytes of the header, and the 16 of the tag before `mac` itself. */
control mac_of(inout headers_t hdr, in bit<64> secret, out bit<64> sum) {
    bit<544> text;
    SIP_STATE
    TURN_WORDS(544)

    /* The last word has nothing but the length. */
    action load() {
        text = hdr.wire.version ++ hdr.wire.msgtype ++ hdr.wire.value_len ++ hdr.wire.group ++
               hdr.wire.pid ++ hdr.wire.inst ++ hdr.wire.rnd ++ hdr.wire.vrnd ++ hdr.wire.swid ++
               hdr.wire.flags ++ hdr.wire.cluster ++ hdr.wire.client ++ hdr.wire.request ++
               hdr.tag.key_id ++ hdr.tag.alg ++ hdr.tag.counter ++ hdr.tag.digest ++ 32w64;
    }
    action words() {
        SIP_WORD(543, 512)
        SIP_WORD(511, 480)
        SIP_WORD(479, 448)
        SIP_WORD(447, 416)
        SIP_WORD(415, 384)
        SIP_WORD(383, 352)
        SIP_WORD(351, 320)
        SIP_WORD(319, 288)
        SIP_WORD(287, 256)
        SIP_WORD(255, 224)
        SIP_WORD(223, 192)
        SIP_WORD(191, 160)
        SIP_WORD(159, 128)
        SIP_WORD(127, 96)
        SIP_WORD(95, 64)
        SIP_WORD(63, 32)
        SIP_WORD(31, 0)
    }

    apply {
        load();
        turn_bytes();
        turn_halves();
        begin();
        words();
        first_half();
        second_half();
        sum = (v1 ^ v3) ++ half;
    }
}

#define APPEND(step, rest)                        \
    if (hdr.step.isValid()) {                     \
        text = text[rest - 1:0] ++ hdr.step.bytes; \
    }
#define APPEND_PLACE(i)                                                           \
    if (hdr.places[i].isValid()) {                                                \
        text = text[TEXT_BITS - 81:0] ++ hdr.places[i].pid ++ hdr.places[i].inst; \
    }

/* The packet's value, as it lies in the headers, at the end of `text`. */
control value_of(inout headers_t hdr, out bit<TEXT_BITS> text) {
    apply {
        text = 0;
        if (hdr.probe.isValid()) {
            text = (bit<TEXT_BITS>) hdr.probe.role;
        }
        if (hdr.rejection.isValid()) {
            text = (bit<TEXT_BITS>) (hdr.rejection.reason ++ hdr.rejection.zero ++
                                     hdr.rejection.round ++ hdr.rejection.trim);
        }
        if (hdr.range_report.isValid()) {
            text = (bit<TEXT_BITS>) (hdr.range_report.end ++ hdr.range_report.trim ++
                                     hdr.range_report.nonce);
        }
        if (hdr.probe_report.isValid()) {
            text = (bit<TEXT_BITS>) (hdr.probe_report.nonce ++ hdr.probe_report.trim ++
                                     hdr.probe_report.start);
        }
#ifdef PARSES_VECTORS
        if (hdr.vector.isValid()) {
            text = (bit<TEXT_BITS>) (hdr.vector.round ++ hdr.vector.count);
        }
        APPEND_PLACE(0)
        APPEND_PLACE(1)
        APPEND_PLACE(2)
        APPEND_PLACE(3)
        APPEND_PLACE(4)
        APPEND_PLACE(5)
        APPEND_PLACE(6)
        APPEND_PLACE(7)
        APPEND_PLACE(8)
        APPEND_PLACE(9)
        APPEND_PLACE(10)
        APPEND_PLACE(11)
#endif
        APPEND(v128, 32)
        APPEND(v64, 544)
        APPEND(v32, 800)
        APPEND(v16, 928)
        APPEND(v8, 992)
        APPEND(v4, 1024)
        APPEND(v2, 1040)
        APPEND(v1, 1048)
    }
}

/* The word at this place counted from the end, if the text is so long. */
#define WORD_OF_VALUE(place, high, low) \
    if (whole >= place) {               \
        SIP_WORD(high, low)             \
    }

/* Of the instance, and the value that has at most MAX_VALUE bytes. */
control digest_of(inout headers_t hdr, in bit<64> secret, out bit<64> sum) {
    bit<TEXT_BITS> text;
    bit<16> whole;
    bit<2> over;
    value_of() value;
    SIP_STATE
    TURN_WORDS(TEXT_BITS)

    action instance() {
        v3 = v3 ^ (hdr.wire.inst[39:32] ++ hdr.wire.inst[47:40] ++ hdr.wire.inst[55:48] ++ hdr.wire.inst[63:56]);
        SIP_ROUND
        SIP_ROUND
        v0 = v0 ^ (hdr.wire.inst[39:32] ++ hdr.wire.inst[47:40] ++ hdr.wire.inst[55:48] ++ hdr.wire.inst[63:56]);
        v3 = v3 ^ (hdr.wire.inst[7:0] ++ hdr.wire.inst[15:8] ++ hdr.wire.inst[23:16] ++ hdr.wire.inst[31:24]);
        SIP_ROUND
        SIP_ROUND
        v0 = v0 ^ (hdr.wire.inst[7:0] ++ hdr.wire.inst[15:8] ++ hdr.wire.inst[23:16] ++ hdr.wire.inst[31:24]);
    }
    /* The last word has what hangs over the whole ones, and in its last byte the length of all. */
    action end_0() {
        text = text[1023:0] ++ 32w0;
    }
    action end_1() {
        text = text[1031:0] ++ 24w0;
    }
    action end_2() {
        text = text[1039:0] ++ 16w0;
    }
    action end_3() {
        text = text[1047:0] ++ 8w0;
    }
    action add_length() {
        text = text | (bit<TEXT_BITS>) (hdr.wire.value_len + 8);
    }
    action last_word() {
        SIP_WORD(31, 0)
    }

    apply {
        value.apply(hdr, text);
        whole = hdr.wire.value_len >> 2;
        over = hdr.wire.value_len[1:0];
        if (over == 0) {
            end_0();
        } else if (over == 1) {
            end_1();
        } else if (over == 2) {
            end_2();
        } else {
            end_3();
        }
        add_length();
        turn_bytes();
        turn_halves();
        begin();
        instance();
        WORD_OF_VALUE(32, 1055, 1024)
        WORD_OF_VALUE(31, 1023, 992)
        WORD_OF_VALUE(30, 991, 960)
        WORD_OF_VALUE(29, 959, 928)
        WORD_OF_VALUE(28, 927, 896)
        WORD_OF_VALUE(27, 895, 864)
        WORD_OF_VALUE(26, 863, 832)
        WORD_OF_VALUE(25, 831, 800)
        WORD_OF_VALUE(24, 799, 768)
        WORD_OF_VALUE(23, 767, 736)
        WORD_OF_VALUE(22, 735, 704)
        WORD_OF_VALUE(21, 703, 672)
        WORD_OF_VALUE(20, 671, 640)
        WORD_OF_VALUE(19, 639, 608)
        WORD_OF_VALUE(18, 607, 576)
        WORD_OF_VALUE(17, 575, 544)
        WORD_OF_VALUE(16, 543, 512)
        WORD_OF_VALUE(15, 511, 480)
        WORD_OF_VALUE(14, 479, 448)
        WORD_OF_VALUE(13, 447, 416)
        WORD_OF_VALUE(12, 415, 384)
        WORD_OF_VALUE(11, 383, 352)
        WORD_OF_VALUE(10, 351, 320)
        WORD_OF_VALUE(9, 319, 288)
        WORD_OF_VALUE(8, 287, 256)
        WORD_OF_VALUE(7, 255, 224)
        WORD_OF_VALUE(6, 223, 192)
        WORD_OF_VALUE(5, 191, 160)
        WORD_OF_VALUE(4, 159, 128)
        WORD_OF_VALUE(3, 127, 96)
        WORD_OF_VALUE(2, 95, 64)
        WORD_OF_VALUE(1, 63, 32)
        last_word();
        first_half();
        second_half();
        sum = (v1 ^ v3) ++ half;
    }
}

/* ---- Checking */

/* A key pair as it lies in its register: 1 = there is one; the keys of `mac` and of `digest`. */
#define IS_THERE(pair) (pair[135:128] != 0)
#define OF_MAC(pair) pair[127:64]
#define OF_DIGEST(pair) pair[63:0]

/* What a packet's tag is checked with, and that of what leaves is made with. Two generations of keys are live at a time, and an order
 * replaces one key: so a packet that is on its way ends with those that it began with. [M-BANK] */
control keyring(inout headers_t hdr, inout metadata_t m, inout bit<16> refused) {
    register<bit<136>>(KEY_IDS) keys;
    /* The generation that signs: KEY_ODD or 0. */
    register<bit<8>>(1) signs;
    mac_of() macs;
    digest_of() digests;
    bit<136> pair;
    bit<64> found;

    action find() {
        keys.read(pair, (bit<32>) ((hdr.tag.key_id & KEY_ODD) >> 2 | (hdr.tag.key_id & KEY_NUMBER)));
    }
    /* Of the generation that signs: the nodes' key, and that of who has asked. */
    action find_own() {
        m.signer = hdr.tag.key_id & KEY_NUMBER;
        signs.read(m.signs, 0);
        keys.read(m.nodes_key, (bit<32>) (m.signs >> 2));
        keys.read(m.asker_key, (bit<32>) (m.signs >> 2 | m.signer));
    }

    apply {
        if (m.ordered) {
            if (hdr.order.op == ORDER_KEY) {
                m.carried_out = true;
                if (hdr.order.at >= KEY_IDS) {
                    refused = REASON_UNKNOWN_KEY;
                } else {
                    keys.write((bit<32>) hdr.order.at, hdr.order.c[7:0] ++ hdr.order.a ++ hdr.order.b);
                }
            } else if (hdr.order.op == ORDER_SIGN) {
                m.carried_out = true;
                signs.write(0, (bit<8>) hdr.order.at & KEY_ODD);
            }
        } else if ((hdr.wire.flags & FLAG_TAG) == 0) {
            refused = REASON_UNSIGNED;
        } else {
            find();
            if ((hdr.tag.key_id & ~(KEY_ODD | KEY_NUMBER)) != 0 || hdr.tag.alg != ALG_HALF_SIPHASH || !IS_THERE(pair)) {
                refused = REASON_UNKNOWN_KEY;
            } else {
                macs.apply(hdr, OF_MAC(pair), found);
                if (found != hdr.tag.mac) {
                    refused = REASON_BAD_MAC;
                } else if ((hdr.tag.key_id & KEY_NUMBER) != KEY_OF_NODES &&
                           ((OF_ANYBODY >> hdr.wire.msgtype) & 1) == 0) {
                    refused = REASON_FOREIGN_KEY;
                } else if (hdr.wire.value_len <= MAX_VALUE) {
                    /* A longer one isn't in the headers, and is refused as such. */
                    digests.apply(hdr, OF_DIGEST(pair), found);
                    if (found != hdr.tag.digest) {
                        refused = REASON_BAD_DIGEST;
                    }
                }
                if (refused == 0) {
                    find_own();
                }
            }
        }
    }
}

/* ---- Making */

/* Of the reader of what leaves: nodes, or who has asked. */
bit<136> key_of_reader(in metadata_t m) {
    return m.goes == BACK ? m.asker_key : m.nodes_key;
}

/* In a role: what has no key doesn't leave, and is counted. */
#define DROP_UNSIGNABLE                                          \
    if (m.goes != NOWHERE && !IS_THERE(key_of_reader(m))) {      \
        m.goes = NOWHERE;                                        \
        counters.read(count, (bit<32>) COUNT_UNSENT);            \
        counters.write((bit<32>) COUNT_UNSENT, count + 1);       \
    }

/* Makes the tag of what leaves. Its key is there: the role has looked. */
control sign(inout headers_t hdr, in metadata_t m) {
    mac_of() macs;
    digest_of() digests;
    bit<136> pair;
    bit<8> key_id;
    bit<64> made;
    bool same_digest;

    apply {
        pair = key_of_reader(m);
        key_id = m.signs;
        if (m.goes == BACK) {
            key_id = m.signs | m.signer;
        }
        same_digest = false;
#ifndef STAMPED
        /* Value and instance are those that its old tag was for. */
        same_digest = m.goes == TO_MEMBERS && hdr.tag.key_id == key_id;
#endif
        hdr.tag.setValid();
        hdr.wire.flags = hdr.wire.flags | FLAG_TAG;
        if (!same_digest) {
            digests.apply(hdr, OF_DIGEST(pair), made);
            hdr.tag.digest = made;
        }
        hdr.tag.key_id = key_id;
        hdr.tag.alg = ALG_HALF_SIPHASH;
        hdr.tag.counter = UNCOUNTED;
        macs.apply(hdr, OF_MAC(pair), made);
        hdr.tag.mac = made;
    }
}

#endif
