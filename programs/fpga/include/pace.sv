// SPDX-License-Identifier: Apache-2.0
// Decides when the next packet enters a role.
//
// A role reads what it keeps, compares, decides and writes in a pipeline without stalls. Between two packets that touch
// state there is one cycle, so the later one compares after the earlier one has decided; for the memory of slots the
// roles bypass what is on its way there. Since no message of ours fits one beat of 64 bytes, that cycle costs nothing.
// TRIMs and orders pass alone, and may take several cycles to be decided.
module pace (
    input  logic clk,
    input  logic rst,
    // A packet waits, it touches state, and it passes alone.
    input  logic waits,
    input  logic touches,
    input  logic alone,
    // The queue behind the role has this many entries, of 16.
    input  logic [4:0] queued,
    // A packet has been decided.
    input  logic decided,
    output logic pop,
    output logic idle
);
    logic [4:0] entered;
    logic touched, closed;

    assign idle = entered == 0;
    assign pop = waits && !closed && 6'(entered) + 6'(queued) < 6'd15 && !(touches && touched) &&
                 !(alone && !idle);

    always_ff @(posedge clk) begin
        if (rst) begin
            entered <= '0;
            touched <= 1'b0;
            closed <= 1'b0;
        end else begin
            entered <= entered + 5'(pop) - 5'(decided);
            touched <= pop && touches;
            if (pop && alone) closed <= 1'b1;
            else if (decided) closed <= 1'b0;
        end
    end
endmodule
