/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format (docs/wire.md), and the numbers that all planes share.
 *
 * crates/paxos/tests/wire_p4.rs holds every number and every width here against Rust, C and testdata/wire/, without a P4
 * compiler. It reads this file line by line: a constant is one line, and so is a field of a header. */
#ifndef WIREPAXOS_P4
#define WIREPAXOS_P4

/* ---- Constants */

const bit<8> WIRE_VERSION = 1;
/* In bytes. */
const bit<16> HEADER_LEN = 48;
const bit<16> TAG_LEN = 24;

/* Message types. */
const bit<8> REQUEST = 0;
const bit<8> PHASE1A = 1;
const bit<8> PHASE1B = 2;
const bit<8> PHASE2A = 3;
const bit<8> PHASE2B = 4;
const bit<8> DELIVER = 5;
const bit<8> REPLY = 6;
const bit<8> REJECT = 7;
const bit<8> QUERY = 8;
const bit<8> TRIM = 9;
const bit<8> PROBE = 10;
const bit<8> PROBE_ACK = 11;
/* NOPaxos's */
const bit<8> ORDERED = 12;
const bit<8> ACK = 13;
const bit<8> GAP_REQUEST = 14;
const bit<8> GAP_REPLY = 15;
const bit<8> GAP_COMMIT = 16;
const bit<8> GAP_COMMIT_REP = 17;
const bit<8> VIEW_CHANGE_REQ = 18;
const bit<8> VIEW_CHANGE = 19;
const bit<8> START_VIEW = 20;
const bit<8> START_VIEW_REP = 21;
const bit<8> SYNC_PREPARE = 22;
const bit<8> SYNC_REP = 23;
const bit<8> SYNC_COMMIT = 24;
const bit<8> READ = 25;
/* How many there are. */
const bit<8> MSGTYPES = 26;

const bit<16> FLAG_TAG = 0x1;
const bit<16> FLAG_RANGE = 0x2;
const bit<16> FLAG_NOOP = 0x4;
const bit<16> FLAG_MULTI = 0x8;
const bit<16> FLAG_PACKED = 0x10;
/* The bits that describe the value and travel with it from request to delivery. */
const bit<16> FLAGS_OF_VALUE = 0x1c;

/* How a tag is computed. What a switch can compute is the second one. */
const bit<8> ALG_SIPHASH = 1;
const bit<8> ALG_HALF_SIPHASH = 2;

/* The flags that a message of this type may carry besides FLAG_TAG, the lowest, in 4 bits a type. Types from 16 on
 * carry none. */
const bit<64> ALLOWED = 0xe00c000108eeef1c;

/* Types with a command, or a no-op, in each message: a bit for each type. */
const bit<32> OF_COMMANDS = 0x02001039;
/* What clients send, who may be anywhere: `swid` means nothing there. */
const bit<32> OF_ANYBODY = 0x02000001;

/* Rounds: `epoch << 12 | attempt << 7 | lane`. */
const bit<32> ROUND_SUB_MASK = 0xfff;
const bit<32> ROUND_LANE_MASK = 0x7f;
const bit<32> MAX_EPOCH = 0xfffff;

/* The last instance is never used. */
const bit<64> NO_INSTANCE = 0xffffffffffffffff;
/* A leader stamps below. */
const bit<64> END = 0x7fffffffffffffff;

/* Structured values, in bytes. */
const bit<16> RANGE_REPORT_LEN = 24;
const bit<16> REJECTION_LEN = 16;
const bit<16> PROBE_LEN = 2;
const bit<16> PROBE_REPORT_LEN = 24;
const bit<16> MARKER_LEN = 4;
const bit<16> VECTOR_HEAD_LEN = 6;
const bit<16> VECTOR_ENTRY_LEN = 10;

/* Whom a PROBE asks. */
const bit<16> PROBE_LEADER = 1;
const bit<16> PROBE_ACCEPTOR = 2;
const bit<16> PROBE_REPLICA = 3;
const bit<16> PROBE_SEQUENCER = 4;

/* Why a packet was dropped or rejected. */
const bit<16> REASON_TRUNCATED = 1;
const bit<16> REASON_BAD_VERSION = 2;
const bit<16> REASON_UNKNOWN_TYPE = 3;
const bit<16> REASON_BAD_LENGTH = 4;
const bit<16> REASON_BAD_FLAGS = 5;
const bit<16> REASON_WRONG_CLUSTER = 6;
const bit<16> REASON_UNKNOWN_GROUP = 7;
const bit<16> REASON_UNKNOWN_PARTITION = 8;
const bit<16> REASON_UNKNOWN_SENDER = 9;
const bit<16> REASON_VALUE_TOO_LARGE = 10;
const bit<16> REASON_BAD_VALUE = 11;
const bit<16> REASON_BAD_ROUND = 12;
const bit<16> REASON_BAD_SESSION = 13;
const bit<16> REASON_NOT_FOR_ROLE = 14;
const bit<16> REASON_STRANGER = 15;
const bit<16> REASON_NOT_LEADER = 16;
const bit<16> REASON_TRIMMED = 17;
const bit<16> REASON_WINDOW = 18;
const bit<16> REASON_PREEMPTED = 19;
const bit<16> REASON_CONFLICT = 20;
const bit<16> REASON_STALE = 21;
const bit<16> REASON_DUPLICATE = 22;
const bit<16> REASON_UNKNOWN_EPOCH = 23;
const bit<16> REASON_UNEXPECTED = 24;
const bit<16> REASON_BAD_CHECKSUM = 25;
const bit<16> REASON_BUSY = 26;
const bit<16> REASON_FULL = 27;
const bit<16> REASON_RESTARTED = 28;
const bit<16> REASON_FOREIGN_ADDRESS = 29;
const bit<16> REASON_OLD_SESSION = 30;
const bit<16> REASON_NOT_NORMAL = 31;
const bit<16> REASON_WRONG_VIEW = 32;
const bit<16> REASON_LOG_FULL = 33;
const bit<16> REASON_UNSIGNED = 34;
const bit<16> REASON_UNKNOWN_KEY = 35;
const bit<16> REASON_BAD_MAC = 36;
const bit<16> REASON_BAD_DIGEST = 37;
const bit<16> REASON_FOREIGN_KEY = 38;
const bit<16> REASON_REPLAYED = 39;
/* One more than the largest. */
const bit<16> REASONS = 40;

/* What became of a packet: the number of its counter. A dropped packet's verdict is its reason, a rejected one's is
 * VERDICT_REJECTED plus its reason. */
const bit<16> VERDICT_PASSED = 0;
const bit<16> VERDICT_REJECTED = 48;
const bit<16> VERDICT_CHANGED = 96;
const bit<16> VERDICT_ANSWERED = 97;
const bit<16> COUNT_DECIDED = 98;
const bit<16> COUNT_UNSENT = 99;
const bit<16> COUNTERS = 128;

/* ---- Headers */

header wire_t {
    bit<8> version;
    bit<8> msgtype;
    bit<16> value_len;
    bit<16> group;
    bit<16> pid;
    bit<64> inst;
    bit<32> rnd;
    bit<32> vrnd;
    bit<16> swid;
    bit<16> flags;
    bit<32> cluster;
    bit<64> client;
    bit<64> request;
}

header tag_t {
    bit<8> key_id;
    bit<8> alg;
    bit<48> counter;
    bit<64> digest;
    bit<64> mac;
}

/* Value of PHASE1B with the range flag. */
header range_report_t {
    bit<64> end;
    bit<64> trim;
    bit<64> nonce;
}

/* Value of REJECT. */
header rejection_t {
    bit<16> reason;
    bit<16> zero;
    bit<32> round;
    bit<64> trim;
}

/* Value of PROBE. */
header probe_t {
    bit<16> role;
}

/* Value of PROBE_ACK. */
header probe_report_t {
    bit<64> nonce;
    bit<64> trim;
    bit<64> start;
}

/* A multi-partition value begins with this, then `count` entries. */
header vector_head_t {
    bit<32> round;
    bit<16> count;
}

header vector_entry_t {
    bit<16> pid;
    bit<64> inst;
}

#endif
