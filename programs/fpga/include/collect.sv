// SPDX-License-Identifier: Apache-2.0
// Collects the beats of a frame from the network, or from the process, whose frames go first.
module collect #(
    parameter int BEATS = 4
) (
    input  logic clk,
    input  logic rst,
    // There is room for another packet.
    input  logic room,
    // Frames from the network.
    input  logic [511:0] s_tdata,
    input  logic [63:0] s_tkeep,
    input  logic s_tlast,
    input  logic s_tvalid,
    output logic s_tready,
    // Frames from the process.
    input  logic [511:0] c_tdata,
    input  logic [63:0] c_tkeep,
    input  logic c_tlast,
    input  logic c_tvalid,
    output logic c_tready,
    // A frame is whole: its first bytes, the first one highest; its length; and whether it is the process's. What lies
    // behind its end is of no meaning.
    output logic whole,
    output logic [512*BEATS-1:0] frame,
    output logic [15:0] length,
    output logic from_process
);
    logic midst, held, chosen, valid, last;
    logic [511:0] beat;
    logic [63:0] keep;
    logic [15:0] earlier;
    logic [6:0] kept;
    logic [3:0] at;

    assign chosen = midst ? held : c_tvalid;
    assign s_tready = room && !chosen;
    assign c_tready = room && chosen;
    assign valid = room && (chosen ? c_tvalid : s_tvalid);
    assign last = chosen ? c_tlast : s_tlast;
    assign beat = chosen ? c_tdata : s_tdata;
    assign keep = chosen ? c_tkeep : s_tkeep;

    always_comb begin
        kept = 7'd0;
        for (int i = 0; i < 64; i++) if (keep[i]) kept = 7'(i) + 7'd1;
    end

    always_ff @(posedge clk) begin
        whole <= valid && last;
        if (valid) begin
            held <= chosen;
            from_process <= chosen;
            for (int i = 0; i < BEATS; i++)
                if (at == 4'(i))
                    for (int j = 0; j < 64; j++)
                        frame[512*BEATS-1-512*i-8*j -: 8] <= beat[8*j +: 8];
            // A frame is never as long as that; its length stays too large.
            length <= earlier[15] ? earlier : earlier + 16'(kept);
            earlier <= last ? 16'd0 : (earlier[15] ? earlier : earlier + 16'd64);
            at <= last ? 4'd0 : (at == 4'(BEATS) ? at : at + 4'd1);
            midst <= !last;
        end
        if (rst) begin
            whole <= 1'b0;
            midst <= 1'b0;
            earlier <= '0;
            at <= '0;
        end
    end
endmodule
