// SPDX-License-Identifier: Apache-2.0
// The sequencer: gives requests their slots (section 4 of the NOPaxos paper; docs/protocol/nopaxos.md).
//
// The same rules, step by step, as crates/paxos/src/nopaxos/sequencer.rs. How it stamps is told in include/stamp.svh.
`include "wirepaxos.svh"
module sequencer #(
    parameter int PARTITIONS = 1,
    parameter int VALUE_BYTES = 64
) (
`include "ports.svh"
);
    localparam logic [7:0] STAMPED = ORDERED;
    localparam logic [15:0] ROLE = PROBE_SEQUENCER;
    `include "stamp.svh"

    // A replica names its view.
    function automatic logic names_round(input logic [31:0] rnd);
        names_round = rnd[31:12] != 0;
    endfunction

    // A member's TRIM opens the window. Nobody else's does: a session has no candidate [Q-WINDOW].
    task automatic trim_to();
        if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else if (h.rnd != 0) verdict = REASON_BAD_ROUND;
        else report();
    endtask
endmodule
