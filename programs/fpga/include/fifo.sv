// SPDX-License-Identifier: Apache-2.0
// A queue in distributed RAM. Its first entry is shown while it isn't empty. Whoever pushes counts the room: nothing is
// pushed into a full queue.
module fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH_LOG2 = 4
) (
    input  logic clk,
    input  logic rst,
    input  logic push,
    input  logic [WIDTH-1:0] in,
    input  logic pop,
    output logic [WIDTH-1:0] first,
    output logic empty,
    output logic [DEPTH_LOG2:0] count
);
    (* ram_style = "distributed" *)
    logic [WIDTH-1:0] entries [1 << DEPTH_LOG2];
    logic [DEPTH_LOG2-1:0] head, tail;

    assign first = entries[head];
    assign empty = count == 0;

    always_ff @(posedge clk) begin
        if (push) entries[tail] <= in;
        if (rst) begin
            head <= '0;
            tail <= '0;
            count <= '0;
        end else begin
            if (push) tail <= tail + 1'b1;
            if (pop) head <= head + 1'b1;
            if (push && !pop) count <= count + 1'b1;
            if (pop && !push) count <= count - 1'b1;
        end
    end
endmodule
