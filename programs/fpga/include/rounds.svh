// SPDX-License-Identifier: Apache-2.0
// Rounds: `epoch << 12 | attempt << 7 | lane` [E-ROUND]. To be included in a module.

function automatic logic round_is_valid(input logic [31:0] rnd);
    round_is_valid = rnd[31:12] != 0 && (rnd[11:0] == 0 || rnd[6:0] != 0);
endfunction

function automatic logic round_is_base(input logic [31:0] rnd);
    round_is_base = rnd != 0 && rnd[11:0] == 0;
endfunction
