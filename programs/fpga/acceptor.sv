// SPDX-License-Identifier: Apache-2.0
// The acceptor: remembers promises and votes (Algorithm 2 of both papers; docs/protocol/acceptor.md).
//
// The same rules, step by step, as crates/paxos/src/acceptor.rs. Membership lies in the same memory as the votes; a
// partition that has promised nothing is a stranger's, which answers PROBE and nothing else.
//
// A packet's way: its slot is read, what decides is compared, a handler decides on a copy, and only what a handler
// called changed is written. So what is refused changes nothing, wherever that is found out [M-REFUSE]. include/pace.sv
// tells why no packet decides on what an earlier one is about to change [A-CPUS].
//
// The memory ends with its power, and nothing is read back from a disk: so it is never mute, and at its first start
// [A-MUTE].
`include "wirepaxos.svh"
module acceptor #(
    parameter int SLOTS = 65536,
    parameter int PARTITIONS = 1,
    parameter int VALUE_BYTES = 64
) (
`include "ports.svh"
);
    localparam logic [15:0] ROLE = PROBE_ACCEPTOR;
    localparam logic [7:0] ONLY = MSGTYPES;
    localparam int CLEARED = SLOTS;
    localparam int SLOT_BITS = $clog2(SLOTS);
    // PROBE shows which start of a memory it is: always the first one.
    localparam logic [63:0] FIRST_START = 64'h100000000;

    // ---- Types

    // All zero is an unused slot: no round, so nothing promised and no vote.
    typedef struct packed {
        logic [63:0] inst;
        logic [63:0] client;
        logic [63:0] request;
        logic [31:0] rnd;
        logic [31:0] vrnd;
        // Bits 2 to 4 of the flags.
        logic [2:0] flags;
        logic [7:0] len;
    } slot_t;

    typedef struct packed {
        // The epoch that enabled this partition last.
        logic [31:0] enabled;
        // Promised for all instances; 0 = a stranger's.
        logic [31:0] floor;
        // The number of the candidate that has the promise of `floor`; 0 = nobody yet.
        logic [63:0] raiser;
        // Everything below is forgotten.
        logic [63:0] trim;
        // 1 + the largest instance voted, at least `trim`; 0 = none.
        logic [63:0] end_;
    } partition_t;

    // ---- A packet's way

    `include "role.svh"
    `include "rounds.svh"
    assign decides_instance = 1'b0;

    // What a handler works on beside the packet: copies of what is kept.
    slot_t slot, s;
    logic [VALUE-1:0] slot_value, s_value;
    partition_t partition, p;
    localparam int SLOT = $bits(slot);
    localparam int PARTITION = $bits(partition);
    // The memory's nonce (0 = nobody has begun it), and the epoch that enabled it last, written when all partitions are.
    logic [63:0] nonce;
    logic [31:0] member_epoch;
    // The promised round, where that refuses.
    logic [31:0] round;
    // What becomes of the copies.
    logic takes_slot, keeps, keeps_reports, begins, joins;

    // First: the slot's address.
    logic second, third;
    record_t second_h, third_h;
    logic [VALUE-1:0] second_value, third_value;
    logic [SLOT_BITS-1:0] first_at, second_at, third_at, at;
    assign first_at = (SLOT_BITS'(first_h.pid) << slots_log2) |
                      (first_h.inst[SLOT_BITS-1:0] & (SLOT_BITS'(slots) - SLOT_BITS'(1)));

    // Second: the slot is read.
    (* ram_style = "block" *)
    logic [SLOT+VALUE-1:0] memory [SLOTS];
    logic [SLOT+VALUE-1:0] second_read, third_read;
    always_ff @(posedge clk) begin
        second <= first && !rst;
        second_h <= first_h;
        second_value <= first_value;
        second_at <= first_at;
        second_read <= memory[first_at];
        third <= second && !rst;
        third_h <= second_h;
        third_value <= second_value;
        third_at <= second_at;
        third_read <= second_read;
    end

    // Third: comparing. The last two slots that were written may not have been in the memory when this one was read.
    logic last_is, last_but_one_is;
    logic [SLOT_BITS-1:0] last_at, last_but_one_at;
    logic [SLOT+VALUE-1:0] last, last_but_one;
    slot_t found;
    logic [VALUE-1:0] found_value;
    always_comb begin
        if (last_is && last_at == third_at) {found, found_value} = last;
        else if (last_but_one_is && last_but_one_at == third_at) {found, found_value} = last_but_one;
        else {found, found_value} = third_read;
    end
    logic [PARTITION-1:0] partitions_kept [PARTITIONS];
    partition_t third_partition;
    assign third_partition = partitions_kept[PARTITION_BITS'(third_h.pid)];

    logic below_trim, beyond, overtaken, same_inst, below_floor, is_floor, below_promise, same_promise, same_vote;
    logic same_value, ends, has_vote, same_raiser;
    always_ff @(posedge clk) begin
        if (rst) there <= 1'b0;
        else if (third) there <= 1'b1;
        else if (decided) there <= 1'b0;
        if (third) begin
            h <= third_h;
            value <= third_value;
            at <= third_at;
            slot <= found;
            slot_value <= found_value;
            partition <= third_partition;
            below_trim <= third_h.inst < third_partition.trim;
            beyond <= third_h.inst - third_partition.trim >= 64'(slots) || third_h.inst == NO_INSTANCE;
            overtaken <= found.inst > third_h.inst;
            same_inst <= found.inst == third_h.inst;
            below_floor <= third_h.rnd < third_partition.floor;
            is_floor <= third_h.rnd == third_partition.floor;
            below_promise <= third_h.rnd < found.rnd;
            same_promise <= found.rnd == third_h.rnd;
            same_vote <= found.vrnd == third_h.rnd;
            has_vote <= found.vrnd != 0;
            same_value <= found.client == third_h.client && found.request == third_h.request &&
                          found.flags[0] == third_h.flags[2];
            same_raiser <= third_partition.raiser == third_h.client;
            ends <= third_partition.end_ <= third_h.inst;
        end
    end

    // ---- Handlers: named as in crates/paxos/src/acceptor.rs. Each leaves a verdict, or why the packet is rejected.

    task automatic handle();
        if (nonce == 0) verdict = REASON_STRANGER;
        else if (h.msgtype == PROBE) probe();
        else if (partition.floor == 0) verdict = REASON_STRANGER;  // [A-STRANGER]
        else
            case (h.msgtype)
                PHASE2A: phase2a();
                PHASE1A: if ((h.flags & FLAG_RANGE) != 0) phase1a_range(); else phase1a();
                QUERY: if ((h.flags & FLAG_RANGE) != 0) query_range(); else query();
                TRIM: trim_to();
                default: verdict = REASON_NOT_FOR_ROLE;
            endcase
        if (rejected != 0) send_reject(rejected, round, partition.trim);
    endtask

    // Votes, unless a higher round was promised [A-VOTE].
    task automatic phase2a();
        if (!round_is_valid(h.rnd)) verdict = REASON_BAD_ROUND;
        else begin
            valid_noop();
            if (verdict == 0) refusal(1'b1);
            if (verdict == 0 && rejected == 0) begin
                vote();
                // The value in hand is the one voted for.
                if (verdict != REASON_CONFLICT) begin
                    o.vrnd = h.rnd;
                    send_multicast(PHASE2B, {11'd0, s.flags, 2'd0});
                end
            end
        end
    endtask

    // Stores the vote, unless it is there.
    task automatic vote();
        if (same_inst && same_vote) begin
            // [A-CONFLICT]
            verdict = same_value ? VERDICT_ANSWERED : REASON_CONFLICT;
        end else begin
            if (ends) p.end_ = h.inst + 64'd1;
            s.inst = h.inst;
            s.client = h.client;
            s.request = h.request;
            s.rnd = h.rnd;
            s.vrnd = h.rnd;
            s.flags = h.flags[4:2];
            s.len = h.value_len[7:0];
            s_value = value;
            takes_slot = 1'b1;
            verdict = VERDICT_CHANGED;
        end
    endtask

    // Promises a round for one instance, and shows the vote [A-PROMISE].
    task automatic phase1a();
        if (!round_is_valid(h.rnd)) verdict = REASON_BAD_ROUND;
        else if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else begin
            refusal(1'b1);
            if (rejected == 0) promise();
        end
    endtask

    task automatic promise();
        verdict = VERDICT_ANSWERED;
        if (!same_inst) begin
            // The old instance lies below `trim`; its promise and its vote are void.
            s = '0;
            s.inst = h.inst;
            s_value = '0;
        end
        if (!same_inst || !same_promise) begin
            s.rnd = h.rnd;
            takes_slot = 1'b1;
            verdict = VERDICT_CHANGED;
        end
        send_slot(PHASE1B);
    endtask

    // Promises a base round for all instances of the partition, and shows how far votes reach [A-RANGE].
    task automatic phase1a_range();
        if (!round_is_base(h.rnd)) verdict = REASON_BAD_ROUND;
        else if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else if (h.client == 0) verdict = REASON_BAD_SESSION;
        else begin
            raise_floor();
            if (rejected == 0 && verdict != REASON_CONFLICT) send_range_report(h.rnd);
        end
    endtask

    // Raises the floor for its candidate, or finds that this has been done. A round has one: another one is that of a
    // second controller, on a copied store [A-ONE].
    task automatic raise_floor();
        if (below_floor) begin
            rejected = REASON_PREEMPTED;
            round = partition.floor;
        end else if (is_floor && partition.raiser != 0) verdict = same_raiser ? VERDICT_ANSWERED : REASON_CONFLICT;
        else begin
            p.floor = h.rnd;
            p.raiser = h.client;
            verdict = VERDICT_CHANGED;
        end
    endtask

    // Shows the vote of an instance: something to learn from, never a promise [A-QUERY].
    task automatic query();
        if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else begin
            refusal(1'b0);
            if (rejected == 0) begin
                verdict = VERDICT_ANSWERED;
                if (same_inst && has_vote) begin
                    o.rnd = slot.vrnd;
                    send_slot(PHASE2B);
                end else begin
                    // No round at all, so that it can't pass for a promise; the asker's own numbers, so that an old
                    // answer can't pass for a new one.
                    answer_header(PHASE1B);
                    o.rnd = '0;
                end
            end
        end
    endtask

    // Shows how far votes reach, and under which floor; linearizable reads rest on it.
    task automatic query_range();
        if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else begin
            verdict = VERDICT_ANSWERED;
            send_range_report(partition.floor);
        end
    endtask

    // TRIM: a replica's report (no round), or the candidate's word (its base round) [A-TRIM].
    task automatic trim_to();
        if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else if (h.rnd == 0) take_report();
        else if (!round_is_base(h.rnd)) verdict = REASON_BAD_ROUND;
        else if (below_floor || below_trim) verdict = REASON_STALE;
        else if (h.inst == partition.trim) verdict = REASON_DUPLICATE;
        else begin
            p.trim = h.inst;
            verdict = VERDICT_CHANGED;
        end
    endtask

    // A replica that doesn't know the epoch may tell of a disk that was gone before this memory was counted in
    // [T-EPOCH].
    task automatic take_report();
        if (h.request < 64'(partition.floor[31:12])) verdict = REASON_STALE;
        else if (report_refused != 0) verdict = report_refused;
        else begin
            if (report_point > partition.trim) p.trim = report_point;
            keeps_reports = 1'b1;
            verdict = VERDICT_CHANGED;
        end
    endtask

    task automatic probe();
        probe_is_for();
        // Nothing in any partition before the order to enable was carried out in all [A-ENABLE].
        if (verdict == 0)
            send_probe_ack(member_epoch == 0 ? 32'd0 : partition.floor, partition.end_, nonce, partition.trim,
                           FIRST_START);
    endtask

    // ---- Helpers

    // Why an instance is refused, as far as its slot tells; 0 = it isn't. `round` is the promised one. In a slot taken
    // over from an older instance the old promise is void and `floor` holds [A-WINDOW] [A-PREEMPT].
    task automatic refusal(input logic of_round);
        if (below_trim) rejected = REASON_TRIMMED;
        else if (beyond) rejected = REASON_WINDOW;
        else if (overtaken) rejected = REASON_TRIMMED;
        else if (of_round && (below_floor || (same_inst && below_promise))) begin
            rejected = REASON_PREEMPTED;
            round = same_inst && slot.rnd > partition.floor ? slot.rnd : partition.floor;
        end
    endtask

    // A no-op has no command in it: it is empty or an EPOCH marker [A-NOOP].
    task automatic valid_noop();
        if ((h.flags & FLAG_NOOP) != 0) begin
            if ((h.flags & FLAGS_OF_VALUE) != FLAG_NOOP) verdict = REASON_BAD_FLAGS;
            else if (h.value_len != 0 && h.value_len != MARKER_LEN) verdict = REASON_BAD_VALUE;
        end
    endtask

    // The slot's vote, or its promise: PHASE2B or PHASE1B with the slot's value, to who asked.
    task automatic send_slot(input logic [7:0] msgtype);
        answer_header(msgtype);
        o.vrnd = s.vrnd;
        o.client = s.client;
        o.request = s.request;
        o.flags = {11'd0, s.flags, 2'd0};
        o.value_len = 16'(s.len);
        o_value = s_value;
    endtask

    task automatic send_range_report(input logic [31:0] rnd);
        answer_header(PHASE1B);
        o.inst = '0;
        o.rnd = rnd;
        o.flags = FLAG_RANGE;
        o.value_len = RANGE_REPORT_LEN;
        o_value[VALUE-1 -: 192] = {p.end_, p.trim, nonce};
    endtask

    // ---- Orders

    task automatic take_order();
        case (h.msgtype)
            ORDER_BEGIN:
                if (h.ip_to[63:0] == 0 || (nonce != 0 && nonce != h.ip_to[63:0])) result = REASON_CONFLICT;
                else begins = 1'b1;
            ORDER_LOOK: begin
                {o.ip_to[63:0], o.rnd, o.vrnd} = {nonce, member_epoch, partition.floor};
                {o.inst, o.client, o.request} = {partition.trim, partition.end_, partition.raiser};
                o.ip_to[127:64] = 64'(report_g);
                o_value[VALUE-129 -: 128] = report_nodes;
            end
            ORDER_LOOK_SLOT: begin
                {o.inst, o.client, o.request} = {slot.inst, slot.client, slot.request};
                o.ip_to[127:64] = {43'd0, slot.flags, 10'd0, slot.len};
                {o.rnd, o.vrnd} = {slot.vrnd, slot.rnd};
                o.value_len = 16'(slot.len);
                o_value = slot_value;
            end
            ORDER_LOOK_REPORT:
                if (h.swid >= 16'(PLACES)) result = REASON_UNKNOWN_SENDER;
                else begin
                    o_value[VALUE-129 -: 16] = report_node;
                    {o.inst, o.client} = {report_disk, report_inst};
                end
            ORDER_ENABLE, ORDER_MEMBER:
                if (nonce == 0 || h.ip_to[63:0] != nonce) result = REASON_STRANGER;
                else if (h.msgtype == ORDER_ENABLE) enable();
                else if (h.rnd < member_epoch) result = REASON_STALE;
                else joins = 1'b1;
            default: result = REASON_NOT_FOR_ROLE;
        endcase
    endtask

    // Counts this memory in, a partition at a time: an epoch of its nonce raises floor, trim and end, and never erases.
    // An order of an older epoch is refused [A-ENABLE].
    task automatic enable();
        if (h.rnd == 0 || h.rnd > MAX_EPOCH) result = REASON_BAD_ROUND;
        else if (h.rnd < partition.enabled) result = REASON_STALE;
        else begin
            p.enabled = h.rnd;
            if (partition.floor < {h.rnd[19:0], 12'd0}) begin
                p.floor = {h.rnd[19:0], 12'd0};
                p.raiser = '0;
            end
            if (p.end_ < h.client) p.end_ = h.client;
            if (p.trim < h.inst) p.trim = h.inst;
            // Fewer replicas may fail now, so what they reported before may suffice.
            if (p.trim < report_point) p.trim = report_point;
            keeps_reports = 1'b1;
            keeps = 1'b1;
        end
    endtask

    // ---- Deciding

    always_comb begin
        o = h;
        o.goes = NOWHERE;
        o.copies = '0;
        o_value = value;
        s = slot;
        s_value = slot_value;
        p = partition;
        verdict = h.refused;
        {rejected, result, round} = '0;
        {takes_slot, keeps, keeps_reports, begins, joins, sets} = '0;
        if (h.ordered) order();
        else if (h.ours && h.refused == 0) begin
            handle();
            keeps = verdict == VERDICT_CHANGED;
        end
        if (p.end_ < p.trim) p.end_ = p.trim;
    end

    // ---- State

    logic [7:0] report_refused, report_g;
    logic [63:0] report_point, report_disk, report_inst;
    logic [127:0] report_nodes;
    logic [15:0] report_node;
    reports #(.ENTRIES(PARTITIONS), .ENTRIES_LOG2(PARTITION_BITS)) told (
        .clk, .clear(clearing), .clear_at(PARTITION_BITS'(clear_at)), .at(PARTITION_BITS'(h.pid)), .packet(h),
        .nodes(value[VALUE-129 -: 128]), .g(h.request[7:0]), .afresh(1'b0), .keep(decided && keeps_reports),
        .refused(report_refused), .point(report_point), .show(h.swid[2:0]), .shown_nodes(report_nodes),
        .shown_g(report_g), .shown_node(report_node), .shown_disk(report_disk), .shown_inst(report_inst)
    );

    always_ff @(posedge clk) begin
        if (clearing) partitions_kept[PARTITION_BITS'(clear_at)] <= '0;
        else if (decided && keeps) partitions_kept[PARTITION_BITS'(h.pid)] <= p;
    end

    // A slot is written in the cycle after its packet was decided.
    logic write;
    always_ff @(posedge clk) begin
        write <= decided && takes_slot && !rst;
        if (decided && takes_slot) begin
            last_is <= 1'b1;
            last_at <= at;
            last <= {s, s_value};
            last_but_one_is <= last_is;
            last_but_one_at <= last_at;
            last_but_one <= last;
        end
        if (rst) {last_is, last_but_one_is} <= '0;
        if (clearing || write) memory[clearing ? clear_at : last_at] <= clearing ? '0 : last;
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            nonce <= '0;
            member_epoch <= '0;
        end else if (decided) begin
            if (begins) nonce <= h.ip_to[63:0];
            if (joins) member_epoch <= h.rnd;
        end
    end
endmodule
