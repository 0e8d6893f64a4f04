// SPDX-License-Identifier: Apache-2.0
// The leader: puts requests in order (Algorithm 1 of both papers; docs/protocol/leader.md).
//
// The same rules, step by step, as crates/paxos/src/leader.rs. How it stamps is told in include/stamp.svh.
`include "wirepaxos.svh"
module leader #(
    parameter int PARTITIONS = 1,
    parameter int VALUE_BYTES = 64
) (
`include "ports.svh"
);
    localparam logic [7:0] STAMPED = PHASE2A;
    localparam logic [15:0] ROLE = PROBE_LEADER;
    `include "stamp.svh"

    function automatic logic names_round(input logic [31:0] rnd);
        names_round = round_is_valid(rnd);
    endfunction

    // TRIM opens the window: a replica's report (no round), or a candidate's word (its base round) [L-TRIM].
    task automatic trim_to();
        if (h.value_len != 0) verdict = REASON_BAD_VALUE;
        else if (h.rnd == 0) report();
        else if (!round_is_base(h.rnd)) verdict = REASON_BAD_ROUND;
        else if (group.rnd == 0 || h.rnd < group.rnd || h.inst < trimmed[63:0]) verdict = REASON_STALE;
        else if (h.inst == trimmed[63:0]) verdict = REASON_DUPLICATE;
        else begin
            opened = h.inst;
            opens = 1'b1;
            verdict = VERDICT_CHANGED;
        end
    endtask
endmodule
