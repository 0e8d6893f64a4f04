// SPDX-License-Identifier: Apache-2.0
// The learner in the network: counts votes (Algorithm 3 of both papers; docs/protocol/learner.md).
//
// The same rules, step by step, as crates/paxos/src/learner.rs. On f+1 equal votes of the round's
// configuration the value in hand is decided, and leaves as one DELIVER [D-OPAQUE]. A decision is
// remembered in its slot, also where a newer round is counted afresh: so no repeated vote, and no
// vote of another round, delivers it again. include/pace.sv tells why no vote is counted on what an
// earlier one is about to change.
//
// A configuration is one setting, so a vote finds all of its acceptors, or none [M-BANK].
`include "wirepaxos.svh"
module learner #(
    parameter int SLOTS = 65536,
    parameter int PARTITIONS = 1,
    parameter int VALUE_BYTES = 64
) (
`include "ports.svh"
);
    localparam logic [15:0] ROLE = ROLE_LEARNER;
    localparam logic [7:0] ONLY = PHASE2B;
    localparam int CLEARED = SLOTS;
    localparam int SLOT_BITS = $clog2(SLOTS);

    // ---- Types

    // All zero is an unused slot: no round, so no votes.
    typedef struct packed {
        logic [63:0] inst;
        logic [63:0] client;
        logic [63:0] request;
        logic [31:0] rnd;
        logic [PLACES-1:0] votes;
        logic noop;
        logic delivered;
    } slot_t;

    // What counting an epoch's votes needs.
    typedef struct packed {
        logic [31:0] epoch;
        // f+1; 0 = there is no configuration here.
        logic [3:0] quorum;
        logic [16*PLACES-1:0] acceptors;
    } known_t;

    // ---- A packet's way

    `include "role.svh"
    `include "rounds.svh"

    slot_t slot, s;
    localparam int SLOT = $bits(slot);
    // The state of a partition: where its window begins, and whether it has one.
    logic [63:0] floor;
    logic bounded;
    // The round's configuration has this quorum, and the sender this bit of it; 0 = none.
    logic [3:0] quorum;
    logic [PLACES-1:0] voter;
    logic moves;

    // First: the slot's address.
    logic second, third;
    record_t second_h, third_h;
    logic [VALUE-1:0] second_value, third_value;
    logic [SLOT_BITS-1:0] first_at, second_at, third_at, at;
    assign first_at = (SLOT_BITS'(first_h.pid) << slots_log2) |
                      (first_h.inst[SLOT_BITS-1:0] & (SLOT_BITS'(slots) - SLOT_BITS'(1)));

    // Second: the slot is read, and the configuration found.
    (* ram_style = "block" *)
    logic [SLOT-1:0] memory [SLOTS];
    logic [SLOT-1:0] second_read, third_read;
    known_t known, found_known, third_known;
    localparam int KNOWN = $bits(known);
    logic [KNOWN*CONFIGURATIONS-1:0] configurations;
    always_comb begin
        found_known = '0;
        for (int i = 0; i < CONFIGURATIONS; i++) begin
            known = configurations[KNOWN*i +: KNOWN];
            if (known.quorum != 0 && known.epoch == 32'(second_h.rnd[31:12])) found_known = known;
        end
    end
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
        third_known <= found_known;
    end

    // Third: comparing. The last two slots that were written may not have been in the memory when
    // this one was read.
    logic last_is, last_but_one_is;
    logic [SLOT_BITS-1:0] last_at, last_but_one_at;
    slot_t last, last_but_one, found;
    always_comb begin
        if (last_is && last_at == third_at) found = last;
        else if (last_but_one_is && last_but_one_at == third_at) found = last_but_one;
        else found = third_read;
    end
    logic [64:0] floors [PARTITIONS];
    logic [63:0] third_floor;
    logic third_bounded;
    assign {third_bounded, third_floor} = floors[PARTITION_BITS'(third_h.pid)];

    logic older_inst, older_round, is_known, again, same_value, below, beyond;
    always_ff @(posedge clk) begin
        if (rst) there <= 1'b0;
        else if (third) there <= 1'b1;
        else if (decided) there <= 1'b0;
        if (third) begin
            h <= third_h;
            value <= third_value;
            at <= third_at;
            slot <= found;
            floor <= third_floor;
            bounded <= third_bounded;
            quorum <= third_known.quorum;
            for (int i = 0; i < PLACES; i++)
                voter[i] <= third_h.swid != 0 && third_known.quorum != 0 &&
                            third_known.acceptors[16*(PLACES-1-i) +: 16] == third_h.swid;
            older_inst <= third_h.inst < found.inst;
            is_known <= third_h.inst == found.inst && found.rnd != 0;
            older_round <= third_h.rnd < found.rnd;
            again <= third_h.rnd == found.rnd;
            same_value <= found.client == third_h.client && found.request == third_h.request &&
                          found.noop == third_h.flags[2];
            below <= third_bounded && third_h.inst < third_floor;
            beyond <= third_bounded && third_h.inst - third_floor >= 64'(slots);
        end
    end

    // ---- Handlers: named as in crates/paxos/src/learner.rs.

    // Counts a vote, and sends what it decides [D-VOTE] [D-WINDOW].
    task automatic phase2b();
        if (!round_is_valid(h.rnd) || h.rnd != h.vrnd) verdict = REASON_BAD_ROUND;
        else if (quorum == 0) verdict = REASON_UNKNOWN_EPOCH;
        else if (voter == 0) verdict = REASON_UNKNOWN_SENDER;
        else if (below) verdict = REASON_STALE;
        else if (beyond) verdict = REASON_WINDOW;
        else begin
            count_vote();
            if (decides_instance) send_multicast(DELIVER, h.flags & FLAGS_OF_VALUE);
        end
    endtask

    // Counts a vote [D-QUORUM].
    logic [3:0] votes;
    task automatic count_vote();
        if (older_inst) verdict = REASON_STALE;  // [D-SLOT]
        else if (is_known && older_round) verdict = REASON_STALE;
        // One round has one value, and so has every round after a decision [D-CONFLICT].
        else if (is_known && (again || slot.delivered) && !same_value) verdict = REASON_CONFLICT;
        else if (is_known && (slot.delivered || (again && (slot.votes & voter) == voter)))
            verdict = REASON_DUPLICATE;
        else begin
            // Votes of a newer round, or of another instance, begin anew; "delivered" has stayed
            // [D-ROUND].
            s.votes = is_known && again ? slot.votes | voter : voter;
            for (int i = 0; i < PLACES; i++) votes = votes + 4'(s.votes[i]);
            decides_instance = votes >= quorum;
            s.inst = h.inst;
            s.client = h.client;
            s.request = h.request;
            s.rnd = h.rnd;
            s.noop = h.flags[2];
            s.delivered = decides_instance;
            verdict = VERDICT_CHANGED;
        end
    endtask

    // ---- Orders

    task automatic take_order();
        case (h.msgtype)
            ORDER_LOOK: {o.inst, o.client} = {floor, 63'd0, bounded};
            ORDER_LOOK_SLOT: begin
                {o.inst, o.client, o.request} = {slot.inst, slot.client, slot.request};
                o.ip_to[127:64] = {40'd0, slot.votes, 7'd0, slot.noop, 7'd0, slot.delivered};
                o.vrnd = slot.rnd;
                o.value_len = '0;
            end
            // It never moves back.
            ORDER_FLOOR: moves = !bounded || h.inst > floor;
            default: result = REASON_NOT_FOR_ROLE;
        endcase
    endtask

    // ---- Deciding

    always_comb begin
        o = h;
        o.goes = NOWHERE;
        o.copies = '0;
        o_value = value;
        s = slot;
        verdict = h.refused;
        {rejected, result, votes} = '0;
        {decides_instance, moves, sets} = '0;
        if (h.ordered) order();
        else if (h.ours && h.refused == 0) phase2b();
    end

    // ---- State

    always_ff @(posedge clk) begin
        if (clearing) floors[PARTITION_BITS'(clear_at)] <= '0;
        else if (decided && moves) floors[PARTITION_BITS'(h.pid)] <= {1'b1, h.inst};
    end

    always_ff @(posedge clk) begin
        if (rst) configurations <= '0;
        else if (sets)
            for (int i = 0; i < CONFIGURATIONS; i++)
                if (h.swid == SET_CONFIGURATION + 16'(i))
                    configurations[KNOWN*i +: KNOWN] <=
                        {h.rnd, h.inst[3:0], value[VALUE-1 -: 16*PLACES]};
    end

    // A slot is written in the cycle after its packet was decided.
    logic takes_slot, write;
    assign takes_slot = decided && !h.ordered && verdict == VERDICT_CHANGED;
    always_ff @(posedge clk) begin
        write <= takes_slot && !rst;
        if (takes_slot) begin
            last_is <= 1'b1;
            last_at <= at;
            last <= s;
            last_but_one_is <= last_is;
            last_but_one_at <= last_at;
            last_but_one <= last;
        end
        if (rst) {last_is, last_but_one_is} <= '0;
        if (clearing || write) memory[clearing ? clear_at : last_at] <= clearing ? '0 : last;
    end
endmodule
