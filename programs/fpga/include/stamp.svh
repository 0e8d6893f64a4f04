// SPDX-License-Identifier: Apache-2.0
// Putting requests in order: what leader and sequencer have in common (crates/paxos/src/stamping.rs). Nothing is stamped
// until it is programmed, once for each round, by naming the boot nonce. A role that includes this says what becomes of
// a REQUEST (STAMPED) and who may open the window (`trim_to`), and what a refusal may name as its round
// (`names_round`).
//
// A packet decides in one cycle, and an order is one packet: so instances of a vector are taken together, and no packet
// ends in another round than it began in [M-BANK]. A round of several partitions is told by several orders: each stages
// one of them in the other bank, and the last one programs all that were staged for its epoch, or refuses.

// Leaders have no slots.
localparam int SLOTS = 1 << 30;
localparam logic [7:0] ONLY = MSGTYPES;
localparam int CLEARED = 2 * PARTITIONS > 32 ? 2 * PARTITIONS : 32;
`include "role.svh"
`include "rounds.svh"
assign decides_instance = 1'b0;

// ---- Types

localparam int BANK_BITS = $clog2(2 * PARTITIONS);
// Partitions of one command: as many as a value has room for.
localparam int VECTOR = (VALUE_BYTES - 6) / 10;

// State of a group.
typedef struct packed {
    // Which half of the partitions is in force; the next round is staged in the other one.
    logic bank;
    // The memory's; 0 = it has begun with nobody there.
    logic [63:0] nonce;
    // The base round; 0 = never programmed.
    logic [31:0] rnd;
    // A later epoch exists.
    logic retired;
    logic [63:0] window;
    // f+1 of its epoch's acceptors, and whose word came: bit i is the i-th.
    logic [3:0] quorum;
    logic [PLACES-1:0] told;
    logic [16*PLACES-1:0] acceptors;
    // For which epoch partitions are being staged, and how many are.
    logic [31:0] staged_epoch;
    logic [15:0] staged;
} leader_t;

leader_t group, s;
// The partitions of both banks: the next instance, and what acceptors have forgotten.
logic [64*2*PARTITIONS-1:0] nexts, trimmeds;

// ---- Comparing: the packet's partition is place 0, those of a command's vector follow.

logic [16*(VECTOR+1)-1:0] pids;
logic [64*(VECTOR+1)-1:0] looked_next, looked_trimmed, next, trimmed, ahead;
logic [BANK_BITS*(VECTOR+1)-1:0] looked_at, at;
always_comb begin
    pids[15:0] = first_h.pid;
    for (int i = 0; i < VECTOR; i++) pids[16*(i+1) +: 16] = first_value[VALUE-1-8*(6+10*i) -: 16];
    for (int i = 0; i <= VECTOR; i++) begin
        looked_at[BANK_BITS*i +: BANK_BITS] = BANK_BITS'(pids[16*i +: PARTITION_BITS]) +
            (group.bank ? BANK_BITS'(PARTITIONS) : BANK_BITS'(0));
        looked_next[64*i +: 64] = nexts[64*looked_at[BANK_BITS*i +: BANK_BITS] +: 64];
        looked_trimmed[64*i +: 64] = trimmeds[64*looked_at[BANK_BITS*i +: BANK_BITS] +: 64];
    end
end

always_ff @(posedge clk) begin
    if (rst) there <= 1'b0;
    else if (first) there <= 1'b1;
    else if (decided) there <= 1'b0;
    if (first) begin
        h <= first_h;
        value <= first_value;
        next <= looked_next;
        trimmed <= looked_trimmed;
        at <= looked_at;
        for (int i = 0; i <= VECTOR; i++)
            ahead[64*i +: 64] <= looked_next[64*i +: 64] <= looked_trimmed[64*i +: 64]
                ? 64'd0 : looked_next[64*i +: 64] - looked_trimmed[64*i +: 64];
    end
end

// The windows that are open [L-WINDOW] [Q-WINDOW].
logic [VECTOR:0] open;
always_comb
    for (int i = 0; i <= VECTOR; i++)
        open[i] = next[64*i +: 64] < END && ahead[64*i +: 64] < group.window;

// [L-PROGRAM] [Q-PROGRAM]
logic [31:0] round;
assign round = group.retired ? 32'd0 : group.rnd;

// ---- Handlers: named as in crates/paxos/src/stamping.rs.

// The partition's new trim point, and what becomes of the state.
logic [63:0] opened;
logic [VECTOR:0] takes;
logic opens, keeps, keeps_reports, stages;
logic [63:0] closed_trim;
logic [15:0] count, last;

task automatic handle();
    // Nobody has begun this memory, so it has no name.
    if (group.nonce == 0) verdict = REASON_STRANGER;
    else
        case (h.msgtype)
            REQUEST: request();
            TRIM: trim_to();
            REJECT: on_reject();
            PROBE: begin
                probe_is_for();
                if (verdict == 0) send_probe_ack(round, next[63:0], group.nonce, trimmed[63:0], 64'd0);
            end
            default: verdict = REASON_NOT_FOR_ROLE;
        endcase
    if (rejected != 0) send_reject(rejected, rejected == REASON_NOT_LEADER ? group.rnd : 32'd0, closed_trim);
endtask

// Stamps, if it is programmed and the window is open. Instance, round and sender in a REQUEST mean nothing [L-STAMP]
// [Q-STAMP].
task automatic request();
    if (round == 0) rejected = REASON_NOT_LEADER;
    else if ((h.flags & FLAG_MULTI) != 0) stamp_vector();
    else if (!open[0]) rejected = REASON_WINDOW;
    else begin
        takes[0] = 1'b1;
        o.inst = next[63:0];
        verdict = VERDICT_CHANGED;
    end
    if (verdict == VERDICT_CHANGED) begin
        o.rnd = group.rnd;
        o.vrnd = '0;
        send_multicast(STAMPED, h.flags & FLAGS_OF_VALUE);
    end
endtask

// First all windows, then all instances: so there is one of every partition that is named, or none [L-MULTI].
task automatic stamp_vector();
    parse_vector();
    if (verdict == 0) begin
        for (int i = VECTOR; i >= 1; i--)
            if (count >= 16'(i) && !open[i]) begin
                rejected = REASON_WINDOW;
                closed_trim = trimmed[64*i +: 64];
            end
        if (rejected == 0) begin
            for (int i = 1; i <= VECTOR; i++)
                if (count >= 16'(i)) begin
                    takes[i] = 1'b1;
                    o_value[VALUE-1-8*(10*i-2) -: 64] = next[64*i +: 64];
                end
            o_value[VALUE-1 -: 32] = group.rnd;
            o.inst = next[64 +: 64];
            o.copies = count[3:0];
            verdict = VERDICT_CHANGED;
        end
    end
endtask

// Leaves in `verdict` why a vector can't be stamped (`Vector::parse`), or 0. Its partitions ascend.
task automatic parse_vector();
    count = value[VALUE-33 -: 16];
    last = value[VALUE-49 -: 16];
    if (count == 0 || count > 16'(VECTOR) || h.value_len < VECTOR_HEAD_LEN + VECTOR_ENTRY_LEN * count ||
        last != h.pid)
        verdict = REASON_BAD_VALUE;
    else begin
        for (int i = 1; i < VECTOR; i++)
            if (count > 16'(i)) begin
                if (value[VALUE-1-8*(6+10*i) -: 16] <= last) verdict = REASON_BAD_VALUE;
                last = value[VALUE-1-8*(6+10*i) -: 16];
            end
        if (verdict == 0 && last >= partitions) verdict = REASON_UNKNOWN_PARTITION;
    end
endtask

// A replica's TRIM opens the window [L-TRIM] [Q-WINDOW]. One that doesn't know the epoch may tell of a disk that was
// gone before this memory was counted in [T-EPOCH].
task automatic report();
    if (h.request < 64'(group.rnd[31:12])) verdict = REASON_STALE;
    else if (report_refused != 0) verdict = report_refused;
    else begin
        opened = report_point > trimmed[63:0] ? report_point : trimmed[63:0];
        opens = 1'b1;
        keeps_reports = 1'b1;
        verdict = VERDICT_CHANGED;
    end
endtask

// An acceptor refused what was stamped. Promises of f+1 to later epochs, the same one or not, end the stamping: fewer may
// be forged, and the others still make a quorum. One to a repair round of its own epoch concerns that instance alone, and
// whoever repairs it [L-RETIRE] [Q-RETIRE].
logic [31:0] of_round;
task automatic on_reject();
    of_round = value[VALUE-33 -: 32];
    if (h.value_len != REJECTION_LEN || value[VALUE-17 -: 16] != 0 || value[VALUE-1 -: 16] == 0 ||
        value[VALUE-1 -: 16] >= 16'(REASONS))
        verdict = REASON_BAD_VALUE;
    else if (value[VALUE-1 -: 16] != 16'(REASON_PREEMPTED)) verdict = REASON_UNEXPECTED;
    else if (!names_round(of_round)) verdict = REASON_BAD_ROUND;
    else if (round == 0 || h.rnd != group.rnd || of_round[31:12] <= group.rnd[31:12]) verdict = REASON_STALE;
    else note();
endtask

// Notes an acceptor's word.
logic [3:0] words;
task automatic note();
    verdict = REASON_UNKNOWN_SENDER;
    for (int i = 0; i < PLACES; i++)
        if (group.acceptors[16*i +: 16] == h.swid && h.swid != 0) begin
            verdict = group.told[i] ? REASON_DUPLICATE : VERDICT_CHANGED;
            s.told[i] = 1'b1;
        end
    words = '0;
    for (int i = 0; i < PLACES; i++) words = words + 4'(s.told[i]);
    if (words >= group.quorum) s.retired = 1'b1;
    keeps = verdict == VERDICT_CHANGED;
endtask

// ---- Orders

task automatic take_order();
    case (h.msgtype)
        ORDER_BEGIN:
            if (h.ip_to[63:0] == 0 || (group.nonce != 0 && group.nonce != h.ip_to[63:0])) result = REASON_CONFLICT;
            else begin
                s.nonce = h.ip_to[63:0];
                keeps = 1'b1;
            end
        ORDER_LOOK: begin
            {o.ip_to[63:0], o.rnd, o.vrnd} = {group.nonce, group.staged_epoch, group.rnd};
            {o.inst, o.client, o.request} = {next[63:0], trimmed[63:0], group.window};
            o.ip_to[127:64] = {48'd0, group.told, 7'd0, group.retired};
            o_value[VALUE-129 -: 128] = report_nodes;
        end
        ORDER_LOOK_REPORT:
            if (h.swid >= 16'(PLACES)) result = REASON_UNKNOWN_SENDER;
            else begin
                o_value[VALUE-129 -: 16] = report_node;
                {o.inst, o.client} = {report_disk, report_inst};
            end
        ORDER_STAGE, ORDER_PROGRAM, ORDER_RETIRE:
            if (group.nonce == 0 || h.ip_to[63:0] != group.nonce) result = REASON_STRANGER;
            else if (h.msgtype == ORDER_STAGE) stage();
            else if (h.msgtype == ORDER_PROGRAM) program_();
            else if (h.rnd > 32'(group.rnd[31:12]) && group.rnd != 0) begin
                s.retired = 1'b1;
                keeps = 1'b1;
            end
        default: result = REASON_NOT_FOR_ROLE;
    endcase
endtask

// Hands a round over, once: only a larger one, of this memory, and only if every partition was staged for it
// [L-PROGRAM] [Q-PROGRAM].
task automatic program_();
    if (h.rnd == 0 || h.rnd > MAX_EPOCH) result = REASON_BAD_ROUND;
    else if (h.rnd <= 32'(group.rnd[31:12])) result = REASON_STALE;
    else if (group.staged_epoch != h.rnd || group.staged != partitions) result = REASON_UNEXPECTED;
    else begin
        s.rnd = {h.rnd[19:0], 12'd0};
        s.retired = 1'b0;
        s.window = h.inst;
        s.quorum = h.client[3:0];
        s.told = '0;
        s.acceptors = value[VALUE-1 -: 128];
        s.bank = !group.bank;
        s.staged_epoch = '0;
        s.staged = '0;
        keeps = 1'b1;
    end
endtask

// A partition of a round that isn't in force yet: in turn from the first, each of them any number of times.
task automatic stage();
    if (h.rnd <= 32'(group.rnd[31:12])) result = REASON_STALE;
    else if (h.pid != 0 && (group.staged_epoch != h.rnd || h.pid > group.staged)) result = REASON_UNEXPECTED;
    else begin
        if (h.pid == 0) begin
            s.staged_epoch = h.rnd;
            s.staged = 16'd1;
        end else if (h.pid == group.staged) s.staged = group.staged + 16'd1;
        stages = 1'b1;
        keeps = 1'b1;
        keeps_reports = 1'b1;
    end
endtask

// ---- Deciding

always_comb begin
    o = h;
    o.goes = NOWHERE;
    o.copies = '0;
    o_value = value;
    s = group;
    verdict = h.refused;
    opened = trimmed[63:0];
    closed_trim = trimmed[63:0];
    {rejected, result, takes, count, last, of_round, words} = '0;
    {opens, keeps, keeps_reports, stages, sets} = '0;
    if (h.ordered) order();
    else if (h.ours && h.refused == 0) handle();
end

// ---- State

// The packet's partition in the other bank, where nothing was reported yet [T-EPOCH].
logic [BANK_BITS-1:0] other, reports_at;
assign other = BANK_BITS'(h.pid[PARTITION_BITS-1:0]) + (group.bank ? BANK_BITS'(0) : BANK_BITS'(PARTITIONS));
assign reports_at = h.ordered && h.msgtype == ORDER_STAGE ? other : at[BANK_BITS-1:0];

logic [7:0] report_refused, report_g;
logic [63:0] report_point, report_disk, report_inst;
logic [127:0] report_nodes;
logic [15:0] report_node;
reports #(.ENTRIES(2 * PARTITIONS), .ENTRIES_LOG2(BANK_BITS)) reported (
    .clk, .clear(clearing), .clear_at(BANK_BITS'(clear_at)), .at(reports_at), .packet(h),
    .nodes(value[VALUE-129 -: 128]), .g(h.request[7:0]), .afresh(1'b1), .keep(decided && keeps_reports),
    .refused(report_refused), .point(report_point), .show(h.swid[2:0]), .shown_nodes(report_nodes),
    .shown_g(report_g), .shown_node(report_node), .shown_disk(report_disk), .shown_inst(report_inst)
);

always_ff @(posedge clk) begin
    if (rst) begin
        group <= '0;
        nexts <= '0;
        trimmeds <= '0;
    end else if (decided) begin
        if (keeps) group <= s;
        for (int i = 0; i < 2 * PARTITIONS; i++) begin
            for (int j = 0; j <= VECTOR; j++)
                if (takes[j] && at[BANK_BITS*j +: BANK_BITS] == BANK_BITS'(i))
                    nexts[64*i +: 64] <= next[64*j +: 64] + 64'd1;
            if (opens && at[BANK_BITS-1:0] == BANK_BITS'(i)) trimmeds[64*i +: 64] <= opened;
            if (stages && other == BANK_BITS'(i)) begin
                nexts[64*i +: 64] <= h.inst;
                trimmeds[64*i +: 64] <= h.client;
            end
        end
    end
end
