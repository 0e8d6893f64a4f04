// SPDX-License-Identifier: Apache-2.0
// The numbers of the wire format (docs/wire.md) and of orders, and the record in which a packet passes through a role.
//
// crates/p4/tests/fpga/numbers.rs holds these numbers against Rust. It reads this file line by line: a constant
// is one line.
`ifndef WIREPAXOS_SVH
`define WIREPAXOS_SVH

// ---- Messages

localparam logic [7:0] WIRE_VERSION = 8'd1;
localparam logic [7:0] REQUEST = 8'd0;
localparam logic [7:0] PHASE1A = 8'd1;
localparam logic [7:0] PHASE1B = 8'd2;
localparam logic [7:0] PHASE2A = 8'd3;
localparam logic [7:0] PHASE2B = 8'd4;
localparam logic [7:0] DELIVER = 8'd5;
localparam logic [7:0] REPLY = 8'd6;
localparam logic [7:0] REJECT = 8'd7;
localparam logic [7:0] QUERY = 8'd8;
localparam logic [7:0] TRIM = 8'd9;
localparam logic [7:0] PROBE = 8'd10;
localparam logic [7:0] PROBE_ACK = 8'd11;
localparam logic [7:0] ORDERED = 8'd12;
localparam logic [7:0] MSGTYPES = 8'd26;

localparam logic [15:0] FLAG_TAG = 16'h1;
localparam logic [15:0] FLAG_RANGE = 16'h2;
localparam logic [15:0] FLAG_NOOP = 16'h4;
localparam logic [15:0] FLAG_MULTI = 16'h8;
localparam logic [15:0] FLAGS_OF_VALUE = 16'h1c;

// The flags that a message of this type may carry besides FLAG_TAG, in 4 bits a type, the lowest first.
localparam logic [63:0] ALLOWED = 64'he00c000108eeef1c;
// Types with a command, or a no-op, in each message: a bit for each type.
localparam logic [31:0] OF_COMMANDS = 32'h02001039;
// Types that clients send, who may be anywhere: `swid` means nothing there.
localparam logic [31:0] OF_ANYBODY = 32'h02000001;

localparam logic [31:0] MAX_EPOCH = 32'hfffff;
localparam logic [63:0] NO_INSTANCE = 64'hffffffffffffffff;
// A leader stamps below.
localparam logic [63:0] END = 64'h7fffffffffffffff;

localparam logic [15:0] RANGE_REPORT_LEN = 16'd24;
localparam logic [15:0] REJECTION_LEN = 16'd16;
localparam logic [15:0] PROBE_LEN = 16'd2;
localparam logic [15:0] PROBE_REPORT_LEN = 16'd24;
localparam logic [15:0] MARKER_LEN = 16'd4;
localparam logic [15:0] VECTOR_HEAD_LEN = 16'd6;
localparam logic [15:0] VECTOR_ENTRY_LEN = 16'd10;

localparam logic [15:0] PROBE_LEADER = 16'd1;
localparam logic [15:0] PROBE_ACCEPTOR = 16'd2;
localparam logic [15:0] PROBE_SEQUENCER = 16'd4;
// The number of the learner's role in orders; nobody probes it.
localparam logic [15:0] ROLE_LEARNER = 16'd16;

// ---- Reasons and verdicts

localparam logic [7:0] REASON_TRUNCATED = 8'd1;
localparam logic [7:0] REASON_BAD_VERSION = 8'd2;
localparam logic [7:0] REASON_UNKNOWN_TYPE = 8'd3;
localparam logic [7:0] REASON_BAD_LENGTH = 8'd4;
localparam logic [7:0] REASON_BAD_FLAGS = 8'd5;
localparam logic [7:0] REASON_WRONG_CLUSTER = 8'd6;
localparam logic [7:0] REASON_UNKNOWN_GROUP = 8'd7;
localparam logic [7:0] REASON_UNKNOWN_PARTITION = 8'd8;
localparam logic [7:0] REASON_UNKNOWN_SENDER = 8'd9;
localparam logic [7:0] REASON_VALUE_TOO_LARGE = 8'd10;
localparam logic [7:0] REASON_BAD_VALUE = 8'd11;
localparam logic [7:0] REASON_BAD_ROUND = 8'd12;
localparam logic [7:0] REASON_BAD_SESSION = 8'd13;
localparam logic [7:0] REASON_NOT_FOR_ROLE = 8'd14;
localparam logic [7:0] REASON_STRANGER = 8'd15;
localparam logic [7:0] REASON_NOT_LEADER = 8'd16;
localparam logic [7:0] REASON_TRIMMED = 8'd17;
localparam logic [7:0] REASON_WINDOW = 8'd18;
localparam logic [7:0] REASON_PREEMPTED = 8'd19;
localparam logic [7:0] REASON_CONFLICT = 8'd20;
localparam logic [7:0] REASON_STALE = 8'd21;
localparam logic [7:0] REASON_DUPLICATE = 8'd22;
localparam logic [7:0] REASON_UNKNOWN_EPOCH = 8'd23;
localparam logic [7:0] REASON_UNEXPECTED = 8'd24;
localparam logic [7:0] REASON_BAD_CHECKSUM = 8'd25;
localparam logic [7:0] REASON_FULL = 8'd27;
localparam logic [7:0] REASON_FOREIGN_ADDRESS = 8'd29;
// One more than the largest.
localparam logic [7:0] REASONS = 8'd40;

// A verdict is the number of its counter. A dropped packet's is its reason, a rejected one's VERDICT_REJECTED plus that.
localparam logic [7:0] VERDICT_PASSED = 8'd0;
localparam logic [7:0] VERDICT_REJECTED = 8'd48;
localparam logic [7:0] VERDICT_CHANGED = 8'd96;
localparam logic [7:0] VERDICT_ANSWERED = 8'd97;
localparam logic [7:0] COUNT_DECIDED = 8'd98;
localparam logic [15:0] COUNTERS = 16'd128;

// ---- Orders (programs/p4/README.md, "Orders")

localparam logic [15:0] ETHERTYPE_ORDER = 16'h88b5;
localparam logic [7:0] ORDER_BEGIN = 8'd1;
localparam logic [7:0] ORDER_LOOK = 8'd2;
localparam logic [7:0] ORDER_LOOK_SLOT = 8'd3;
localparam logic [7:0] ORDER_LOOK_REPORT = 8'd4;
localparam logic [7:0] ORDER_LOOK_COUNTER = 8'd5;
localparam logic [7:0] ORDER_ENABLE = 8'd6;
localparam logic [7:0] ORDER_MEMBER = 8'd7;
localparam logic [7:0] ORDER_STAGE = 8'd8;
localparam logic [7:0] ORDER_PROGRAM = 8'd9;
localparam logic [7:0] ORDER_RETIRE = 8'd10;
localparam logic [7:0] ORDER_FLOOR = 8'd11;
localparam logic [7:0] ORDER_ABOUT = 8'd12;
localparam logic [7:0] ORDER_SET = 8'd16;
localparam logic [7:0] ORDER_ANSWER = 8'h80;
localparam logic [63:0] ORDERS_VERSION = 64'd1;

// The settings that ORDER_SET writes, by `at` (../README.md, "Settings").
localparam logic [15:0] SET_IDENTITY = 16'd0;
localparam logic [15:0] SET_OWN = 16'd1;
localparam logic [15:0] SET_NODE = 16'd16;
localparam logic [15:0] SET_ASKER = 16'd64;
localparam logic [15:0] SET_MEMBER = 16'd128;
localparam logic [15:0] SET_CONFIGURATION = 16'd256;

// Places for acceptors, and for replicas.
localparam int PLACES = 8;
// Own addresses, one of each family; nodes of the cluster; networks from which commands are taken; members of the
// group to which a role sends; configurations that a learner knows.
localparam int OWN = 2;
localparam int NODES = 16;
localparam int ASKERS = 4;
localparam int MEMBERS = 8;
localparam int CONFIGURATIONS = 16;

// ---- A packet on its way through a role

localparam logic [15:0] ETHERTYPE_IPV4 = 16'h0800;
localparam logic [15:0] ETHERTYPE_IPV6 = 16'h86dd;
localparam logic [7:0] PROTOCOL_UDP = 8'd17;
localparam logic [7:0] HOPS = 8'd64;
localparam int ETHERNET_LEN = 14;
localparam int IPV4_LEN = 20;
localparam int IPV6_LEN = 40;
localparam int UDP_LEN = 8;
localparam int HEADER_LEN = 48;
localparam int TAG_LEN = 24;
localparam int ORDER_LEN = 92;

localparam logic [1:0] NOWHERE = 2'd0;
localparam logic [1:0] BACK = 2'd1;
localparam logic [1:0] TO_MEMBERS = 2'd2;
localparam logic [1:0] TO_PROCESS = 2'd3;

// The header of a message as it lies in the frame.
typedef struct packed {
    logic [7:0] version;
    logic [7:0] msgtype;
    logic [15:0] value_len;
    logic [15:0] group;
    logic [15:0] pid;
    logic [63:0] inst;
    logic [31:0] rnd;
    logic [31:0] vrnd;
    logic [15:0] swid;
    logic [15:0] flags;
    logic [31:0] cluster;
    logic [63:0] client;
    logic [63:0] request;
} wire_t;

// An order as it lies in the frame.
typedef struct packed {
    logic [7:0] op;
    logic [7:0] result;
    logic [15:0] node;
    logic [15:0] group;
    logic [15:0] pid;
    logic [15:0] at;
    logic [15:0] number;
    logic [31:0] epoch;
    logic [31:0] round;
    logic [63:0] nonce;
    logic [63:0] a;
    logic [63:0] b;
    logic [63:0] c;
    logic [63:0] d;
    // Acceptors, then replicas.
    logic [255:0] places;
} order_t;

// What a role gets and sends. Addresses of both families have 128 bits, IPv4's the mapped ones; a value comes beside
// it. An order lies in the same fields: op in `msgtype`, result in `flags`, at in `swid`, epoch in `rnd`, round in
// `vrnd`, a, b and c in `inst`, `client` and `request`, d and nonce in the halves of `ip_to`, number in `port_from`,
// node in `port_to`, group in the lowest bits of `ip_from`, places in the first bytes of the value.
typedef struct packed {
    // It is a message, or an order, for this role.
    logic ours;
    logic ordered;
    // Why it is refused; 0 = it isn't.
    logic [7:0] refused;
    logic [1:0] goes;
    // Partitions that a stamped command names; 0 = it has no vector.
    logic [3:0] copies;
    // It has a UDP checksum.
    logic summed;
    logic v6;
    logic [47:0] mac_to;
    logic [47:0] mac_from;
    logic [127:0] ip_from;
    logic [127:0] ip_to;
    logic [15:0] port_from;
    logic [15:0] port_to;
    logic [7:0] msgtype;
    logic [15:0] value_len;
    logic [15:0] pid;
    logic [63:0] inst;
    logic [31:0] rnd;
    logic [31:0] vrnd;
    logic [15:0] swid;
    logic [15:0] flags;
    logic [63:0] client;
    logic [63:0] request;
} record_t;

`endif
