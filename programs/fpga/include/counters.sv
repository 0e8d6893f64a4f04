// SPDX-License-Identifier: Apache-2.0
// Counts verdicts by name: 128 counters in four banks, of which an order shows four in a row.
module counters (
    input  logic clk,
    // Sets the entries of place `clear_at` to 0.
    input  logic clear,
    input  logic [4:0] clear_at,
    input  logic count,
    input  logic [6:0] verdict,
    // A decision, which is counted beside the verdict.
    input  logic decided,
    input  logic [6:0] look_at,
    output logic [255:0] shown
);
    logic [63:0] decisions;
    for (genvar i = 0; i < 4; i++) begin : bank
        logic [47:0] counts [32];
        logic [6:0] at;
        logic [1:0] step;
        logic [4:0] written;
        logic [63:0] value;

        assign written = clear ? clear_at : verdict[6:2];
        assign step = 2'(i) - look_at[1:0];
        assign at = look_at + {5'd0, step};
        assign value = at == 7'd98 ? decisions : {16'd0, counts[at[6:2]]};
        always_ff @(posedge clk)
            if (clear || (count && verdict[1:0] == 2'(i)))
                counts[written] <= clear ? 48'd0 : counts[written] + 48'd1;
    end

    // The counters of the banks in turn, from `look_at` on.
    logic [1:0] first;
    assign first = look_at[1:0];
    always_comb begin
        case (first)
            2'd0: shown = {bank[0].value, bank[1].value, bank[2].value, bank[3].value};
            2'd1: shown = {bank[1].value, bank[2].value, bank[3].value, bank[0].value};
            2'd2: shown = {bank[2].value, bank[3].value, bank[0].value, bank[1].value};
            default: shown = {bank[3].value, bank[0].value, bank[1].value, bank[2].value};
        endcase
    end

    always_ff @(posedge clk)
        if (clear) decisions <= '0;
        else if (decided) decisions <= decisions + 64'd1;
endmodule
