// SPDX-License-Identifier: Apache-2.0
// TRIM reports of replicas, for acceptors and leaders alike (crates/paxos/src/quorum.rs).
//
// A replica has a place. Who goes on in another configuration keeps it, so that its report stays; a place that becomes
// another's, or nobody's, begins anew. A TRIM or an order passes alone and waits for the trim point, which is there
// three cycles after its packet.
`include "wirepaxos.svh"
module reports #(
    parameter int ENTRIES = 1,
    parameter int ENTRIES_LOG2 = 1
) (
    input  logic clk,
    // Sets an entry to 0.
    input  logic clear,
    input  logic [ENTRIES_LOG2-1:0] clear_at,
    // The entry of the packet's partition.
    input  logic [ENTRIES_LOG2-1:0] at,
    // The packet. As an order it seats the replicas of `nodes`, of whom `g` may fail; otherwise it is a TRIM.
    input  record_t packet,
    input  logic [127:0] nodes,
    input  logic [7:0] g,
    // The entry is empty before.
    input  logic afresh,
    // What became of it is kept.
    input  logic keep,
    // Why a report isn't noted; 0 = it is.
    output logic [7:0] refused,
    // Everything below is covered by g+1 replicas [T-QUORUM].
    output logic [63:0] point,
    // What an order shows.
    input  logic [2:0] show,
    output logic [127:0] shown_nodes,
    output logic [7:0] shown_g,
    output logic [15:0] shown_node,
    output logic [63:0] shown_disk,
    output logic [63:0] shown_inst
);
    // By place: which replica, the number of its disk (0 = nothing was reported), and everything below is durable there.
    typedef struct packed {
        logic [16*PLACES-1:0] node;
        logic [64*PLACES-1:0] disk;
        logic [64*PLACES-1:0] inst;
        logic [7:0] g;
    } reports_t;

    reports_t kept, noted, after;
    localparam int WIDTH = $bits(kept);
    logic [WIDTH-1:0] entries [ENTRIES];
    assign kept = entries[at];

    assign shown_nodes = kept.node;
    assign shown_g = kept.g;
    always_comb begin
        shown_node = '0;
        shown_disk = '0;
        shown_inst = '0;
        for (int i = 0; i < PLACES; i++)
            if (show == 3'(i)) begin
                shown_node = kept.node[16*(PLACES-1-i) +: 16];
                shown_disk = kept.disk[64*(PLACES-1-i) +: 64];
                shown_inst = kept.inst[64*(PLACES-1-i) +: 64];
            end
    end

    // Notes that a replica covers everything below `inst` on the disk of that incarnation [T-NEWEST], or seats all.
    logic [7:0] why;
    always_comb begin
        noted = kept;
        why = REASON_UNKNOWN_SENDER;
        if (packet.ordered) begin
            if (afresh) noted = '0;
            for (int i = 0; i < PLACES; i++)
                if (noted.node[16*i +: 16] != nodes[16*i +: 16]) begin
                    noted.node[16*i +: 16] = nodes[16*i +: 16];
                    noted.disk[64*i +: 64] = '0;
                    noted.inst[64*i +: 64] = '0;
                end
            noted.g = g;
            why = 8'd0;
        end else begin
            for (int i = 0; i < PLACES; i++)
                if (kept.node[16*i +: 16] == packet.swid && packet.swid != 0) begin
                    if (packet.client < kept.disk[64*i +: 64] ||
                        (packet.client == kept.disk[64*i +: 64] && packet.inst < kept.inst[64*i +: 64]))
                        why = REASON_STALE;
                    else if (packet.client == kept.disk[64*i +: 64] && packet.inst == kept.inst[64*i +: 64])
                        why = REASON_DUPLICATE;
                    else begin
                        why = 8'd0;
                        noted.disk[64*i +: 64] = packet.client;
                        noted.inst[64*i +: 64] = packet.inst;
                    end
                end
            if (packet.client == 0) why = REASON_BAD_SESSION;
        end
    end

    // Who covers what who else covers; then the largest report that more than g cover. Places that are nobody's are 0.
    logic [PLACES*PLACES-1:0] covers;
    logic [7:0] count;
    logic [PLACES-1:0] may;
    logic [63:0] largest;
    always_comb begin
        may = '0;
        for (int i = 0; i < PLACES; i++) begin
            count = '0;
            for (int j = 0; j < PLACES; j++) count = count + 8'(covers[PLACES*i+j]);
            may[i] = count > after.g;
        end
        largest = '0;
        for (int i = 0; i < PLACES; i++)
            // Every other candidate is covered by this one.
            if (may[i] && (may & ~covered_by(i)) == 0) largest = after.inst[64*i +: 64];
    end
    function automatic logic [PLACES-1:0] covered_by(input int i);
        for (int j = 0; j < PLACES; j++) covered_by[j] = covers[PLACES*j+i];
    endfunction

    always_ff @(posedge clk) begin
        after <= noted;
        refused <= why;
        for (int i = 0; i < PLACES; i++)
            for (int j = 0; j < PLACES; j++)
                covers[PLACES*i+j] <= after.inst[64*j +: 64] >= after.inst[64*i +: 64];
        point <= largest;
        if (clear || keep) entries[clear ? clear_at : at] <= clear ? '0 : after;
    end
endmodule
