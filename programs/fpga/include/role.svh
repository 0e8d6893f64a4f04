// SPDX-License-Identifier: Apache-2.0
// What surrounds the rules of every role: the way in and out, settings, answers, counters, and orders about them. To be
// included in a module with the ports of ports.svh, the parameters SLOTS, PARTITIONS and VALUE_BYTES, and constants:
// ROLE, its number in PROBE; ONLY, the one message type that it takes, or MSGTYPES; CLEARED, how many entries of its
// memories are set to 0 before it takes a packet, at least 32. The role puts a packet into `h` and `value`, sets
// `decides` in the cycle in which it may be decided, and leaves in `o` and `o_value` what is sent.

localparam int VALUE = 8 * VALUE_BYTES;
localparam int PARTITION_BITS = PARTITIONS > 1 ? $clog2(PARTITIONS) : 1;
localparam int CLEAR_BITS = $clog2(CLEARED);

// The packet that waits, and the one in the role.
record_t waiting, first_h, h, o;
logic [VALUE-1:0] waiting_value, first_value, value, o_value;
// A verdict below VERDICT_REJECTED is a reason; `rejected` is why the packet is answered by REJECT, `result` an order's.
logic [7:0] verdict, rejected, result;
// The packet in `h` is there, and leaves it.
logic there, decided, pop, first;
// A vote has decided its instance.
logic decides_instance;
// The order is a setting that fits this build.
logic sets;

// ---- The way in

logic waits, receive_idle, leave_idle, pace_idle, clearing;
logic [4:0] queued;
receive #(.VALUE_BYTES(VALUE_BYTES), .ONLY(ONLY)) enter (
    .clk, .rst,
    .s_tdata(s_axis_tdata), .s_tkeep(s_axis_tkeep), .s_tlast(s_axis_tlast), .s_tvalid(s_axis_tvalid),
    .s_tready(s_axis_tready),
    .c_tdata(s_order_tdata), .c_tkeep(s_order_tkeep), .c_tlast(s_order_tlast), .c_tvalid(s_order_tvalid),
    .c_tready(s_order_tready),
    .set_now(sets), .set_to(h),
    .packet(waiting), .value(waiting_value), .waits, .pop, .idle(receive_idle)
);

pace paces (
    .clk, .rst, .waits(waits && !clearing),
    .touches(waiting.ordered || (waiting.ours && waiting.refused == 0)),
    .alone(waiting.ordered || (waiting.ours && waiting.refused == 0 && waiting.msgtype == TRIM)),
    .queued, .decided, .pop, .idle(pace_idle)
);

always_ff @(posedge clk) begin
    first <= pop && !rst;
    first_h <= waiting;
    first_value <= waiting_value;
end

// TRIMs and orders wait until their reports are counted.
logic alone;
logic [1:0] waited;
assign alone = h.ordered || (h.ours && h.refused == 0 && h.msgtype == TRIM);
assign decided = there && (!alone || waited == 2'd3);
always_ff @(posedge clk)
    if (!there || decided) waited <= '0;
    else waited <= waited + 2'd1;

// A memory begins empty: all of it is cleared before the first packet is taken.
logic [CLEAR_BITS-1:0] clear_at;
always_ff @(posedge clk) begin
    clear_at <= clear_at + CLEAR_BITS'(1);
    if (clear_at == CLEAR_BITS'(CLEARED - 1)) clearing <= 1'b0;
    if (rst) begin
        clearing <= 1'b1;
        clear_at <= '0;
    end
end

// ---- Settings

logic [15:0] own_node, partitions;
logic [31:0] slots;
logic [4:0] slots_log2;

// A setting asks for sizes within those of this build: 0 or a reason.
logic [7:0] misfit;
logic [63:0] wanted_slots;
assign wanted_slots = h.ip_to[127:64];
always_comb begin
    misfit = 8'd0;
    if (h.swid == SET_IDENTITY) begin
        if (h.port_to == 0 || h.request == 0 || wanted_slots == 0 ||
            (wanted_slots & (wanted_slots - 64'd1)) != 0)
            misfit = REASON_BAD_VALUE;
        else if (h.request > 64'(PARTITIONS) || h.rnd > 32'(VALUE_BYTES) || wanted_slots > 64'(SLOTS) ||
                 48'(h.request[15:0]) * 48'(wanted_slots[31:0]) > 48'(SLOTS))
            misfit = REASON_FULL;
    end else if (!((h.swid >= SET_OWN && h.swid < SET_OWN + 16'(OWN)) ||
                   (h.swid >= SET_NODE && h.swid < SET_NODE + 16'(NODES)) ||
                   (h.swid >= SET_ASKER && h.swid < SET_ASKER + 16'(ASKERS)) ||
                   (h.swid >= SET_MEMBER && h.swid < SET_MEMBER + 16'(MEMBERS)) ||
                   (ROLE == ROLE_LEARNER && h.swid >= SET_CONFIGURATION &&
                    h.swid < SET_CONFIGURATION + 16'(CONFIGURATIONS))))
        misfit = REASON_BAD_VALUE;
end

always_ff @(posedge clk) begin
    if (rst) own_node <= '0;
    else if (sets && h.swid == SET_IDENTITY) begin
        own_node <= h.port_to;
        partitions <= h.request[15:0];
        slots <= wanted_slots[31:0];
        for (int i = 0; i < 32; i++) if (wanted_slots[i]) slots_log2 <= 5'(i);
    end
end

// ---- Answers

// The packet becomes a message from this node, about what it was about: partition, instance, session and round are the
// question's until the caller says otherwise.
task automatic answer_header(input logic [7:0] msgtype);
    o.msgtype = msgtype;
    o.vrnd = '0;
    o.swid = own_node;
    o.flags = '0;
    o.value_len = '0;
    o_value = '0;
    o.goes = BACK;
endtask

task automatic send_multicast(input logic [7:0] msgtype, input logic [15:0] flags);
    o.goes = TO_MEMBERS;
    o.msgtype = msgtype;
    o.swid = own_node;
    o.flags = flags;
endtask

// REJECT names the refused message by its instance, round, client and request [M-REFUSE].
task automatic send_reject(input logic [7:0] reason, input logic [31:0] of_round, input logic [63:0] trim);
    answer_header(REJECT);
    o.value_len = REJECTION_LEN;
    o_value[VALUE-1 -: 128] = {8'd0, reason, 16'd0, of_round, trim};
    verdict = VERDICT_REJECTED + reason;
endtask

// Leaves in `verdict` why a PROBE isn't for this role, or 0.
task automatic probe_is_for();
    if (h.value_len != PROBE_LEN || value[VALUE-1 -: 16] == 0 || value[VALUE-1 -: 16] > PROBE_SEQUENCER)
        verdict = REASON_BAD_VALUE;
    else if (value[VALUE-1 -: 16] != ROLE) verdict = REASON_NOT_FOR_ROLE;
    else verdict = 8'd0;
endtask

task automatic send_probe_ack(
    input logic [31:0] rnd, input logic [63:0] inst, input logic [63:0] boot_nonce, input logic [63:0] trim,
    input logic [63:0] start
);
    answer_header(PROBE_ACK);
    o.inst = inst;
    o.rnd = rnd;
    o.value_len = PROBE_REPORT_LEN;
    o_value[VALUE-1 -: 192] = {boot_nonce, trim, start};
    verdict = VERDICT_ANSWERED;
endtask

// ---- Orders: those that every role takes; the others go to the role's own `take_order`, whose answer follows.

logic [255:0] counts;
task automatic order();
    result = h.refused;
    if (result == 0)
        case (h.msgtype)
            ORDER_SET: begin
                result = misfit;
                sets = misfit == 0 && decided;
            end
            ORDER_ABOUT: begin
                o.swid = ROLE;
                o.inst = 64'(SLOTS);
                o.client = 64'(PARTITIONS);
                o.request = 64'd1;
                o.ip_to[127:64] = ORDERS_VERSION;
                o.rnd = '0;
            end
            ORDER_LOOK_COUNTER:
                if (h.swid > COUNTERS - 16'd4) result = REASON_BAD_VALUE;
                else {o.inst, o.client, o.request, o.ip_to[127:64]} = counts;
            default: take_order();
        endcase
    o.goes = TO_PROCESS;
    o.flags = 16'(result);
endtask

// ---- The way out

logic leaves, counted, counted_decision;
logic [6:0] counted_as;
record_t left;
logic [VALUE-1:0] left_value;
always_ff @(posedge clk) begin
    leaves <= decided && o.goes != NOWHERE && !rst;
    left <= o;
    left_value <= o_value;
    counted <= decided && !h.ordered && !rst;
    counted_as <= verdict[6:0];
    counted_decision <= decided && decides_instance;
end

leave #(.VALUE_BYTES(VALUE_BYTES)) exit (
    .clk, .rst, .push(leaves), .packet(left), .value(left_value), .queued, .idle(leave_idle),
    .set_now(sets), .set_to(h), .set_places(value[VALUE-1 -: 256]),
    .m_tdata(m_axis_tdata), .m_tkeep(m_axis_tkeep), .m_tlast(m_axis_tlast), .m_tvalid(m_axis_tvalid),
    .m_tready(m_axis_tready),
    .p_tdata(m_order_tdata), .p_tkeep(m_order_tkeep), .p_tlast(m_order_tlast), .p_tvalid(m_order_tvalid),
    .p_tready(m_order_tready)
);

counters verdicts (
    .clk, .clear(clearing), .clear_at(5'(clear_at)), .count(counted), .verdict(counted_as),
    .decided(counted_decision), .look_at(h.swid[6:0]), .shown(counts)
);

assign idle = receive_idle && pace_idle && leave_idle && !leaves && !clearing;
