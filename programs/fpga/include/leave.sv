// SPDX-License-Identifier: Apache-2.0
// From what a role sends to frames: to whoever asked, to the members of its group, or to the process. Lengths and
// checksums are made anew. A message for the members leaves in one frame for each of them, and for each partition that
// its command names.
`include "wirepaxos.svh"
module leave #(
    parameter int VALUE_BYTES = 64
) (
    input  logic clk,
    input  logic rst,
    input  logic push,
    input  record_t packet,
    input  logic [8*VALUE_BYTES-1:0] value,
    output logic [4:0] queued,
    output logic idle,
    // Settings.
    input  logic set_now,
    input  record_t set_to,
    input  logic [255:0] set_places,
    // Frames to the network.
    output logic [511:0] m_tdata,
    output logic [63:0] m_tkeep,
    output logic m_tlast,
    output logic m_tvalid,
    input  logic m_tready,
    // Frames to the process.
    output logic [511:0] p_tdata,
    output logic [63:0] p_tkeep,
    output logic p_tlast,
    output logic p_tvalid,
    input  logic p_tready
);
    localparam int BEATS = (ETHERNET_LEN + IPV6_LEN + UDP_LEN + HEADER_LEN + VALUE_BYTES + 63) / 64;
    localparam int FRAME = 512 * BEATS;
    localparam int VALUE = 8 * VALUE_BYTES;
    localparam int HEADER = 8 * HEADER_LEN;
    // Places of a vector.
    localparam int VECTOR = (VALUE_BYTES - 6) / 10;

    // ---- Settings

    logic [15:0] own_node, own_group;
    logic [31:0] own_cluster;
    logic [MEMBERS-1:0] member_is_set, member_v6, member_by_partition;
    logic [48*MEMBERS-1:0] member_mac_to, member_mac_from;
    logic [128*MEMBERS-1:0] member_ip_to, member_ip_from;
    logic [16*MEMBERS-1:0] member_port_to, member_port_from;

    always_ff @(posedge clk) begin
        if (rst) member_is_set <= '0;
        else if (set_now) begin
            if (set_to.swid == SET_IDENTITY) begin
                own_node <= set_to.port_to;
                own_group <= set_to.ip_from[15:0];
                own_cluster <= set_to.inst[31:0];
            end
            for (int i = 0; i < MEMBERS; i++)
                if (set_to.swid == SET_MEMBER + 16'(i)) begin
                    member_is_set[i] <= set_to.vrnd[0];
                    member_v6[i] <= set_to.vrnd[1];
                    member_by_partition[i] <= set_to.vrnd[2];
                    member_ip_to[128*i +: 128] <= {set_to.inst, set_to.client};
                    member_ip_from[128*i +: 128] <= {set_to.request, set_to.ip_to[127:64]};
                    member_port_to[16*i +: 16] <= set_to.rnd[31:16];
                    member_port_from[16*i +: 16] <= set_to.rnd[15:0];
                    member_mac_to[48*i +: 48] <= set_places[255 -: 48];
                    member_mac_from[48*i +: 48] <= set_places[255-48 -: 48];
                end
        end
    end

    // ---- The queue, and the next frame of its first entry

    record_t entry;
    logic [VALUE-1:0] entry_value;
    logic empty, pop;
    localparam int RECORD = $bits(packet);
    fifo #(.WIDTH(RECORD + VALUE), .DEPTH_LOG2(4)) queue (
        .clk, .rst, .push, .in({packet, value}), .pop, .first({entry, entry_value}), .empty, .count(queued)
    );

    // What came without a checksum goes on without one, so not in IPv6: a new one would hide what had happened to it.
    logic [MEMBERS-1:0] to_come;
    logic [3:0] place;
    logic [3:0] member, next_member;
    logic has_next, last_place;
    always_comb begin
        to_come = member_is_set & (entry.summed ? '1 : ~member_v6);
        has_next = 1'b0;
        next_member = '0;
        for (int i = MEMBERS - 1; i >= 0; i--)
            if (to_come[i] && 4'(i) >= member) begin
                has_next = 1'b1;
                next_member = 4'(i);
            end
    end
    assign last_place = place + 4'd1 >= entry.copies;

    record_t next;
    always_comb begin
        next = entry;
        if (entry.goes == TO_MEMBERS) begin
            if (entry.copies > 4'd1)
                for (int i = 0; i < VECTOR; i++)
                    if (place == 4'(i)) begin
                        next.pid = entry_value[VALUE-1-8*(6+10*i) -: 16];
                        next.inst = entry_value[VALUE-1-8*(8+10*i) -: 64];
                    end
            for (int i = 0; i < MEMBERS; i++)
                if (next_member == 4'(i)) begin
                    next.v6 = member_v6[i];
                    next.mac_to = member_mac_to[48*i +: 48];
                    next.mac_from = member_mac_from[48*i +: 48];
                    next.ip_to = member_ip_to[128*i +: 128];
                    next.ip_from = member_ip_from[128*i +: 128];
                    next.port_to = member_port_to[16*i +: 16] + (member_by_partition[i] ? next.pid : 16'd0);
                    next.port_from = member_port_from[16*i +: 16];
                end
        end else if (entry.goes == BACK) begin
            next.summed = 1'b1;
            next.mac_to = entry.mac_from;
            next.mac_from = entry.mac_to;
            next.ip_to = entry.ip_from;
            next.ip_from = entry.ip_to;
            next.port_to = entry.port_from;
            next.port_from = entry.port_to;
        end
    end

    logic ready_one, ready_two, ready_three;
    logic one, makes;
    record_t record;
    logic [VALUE-1:0] record_value;

    // A frame is made, or the entry has no further one.
    assign makes = !empty && (entry.goes != TO_MEMBERS || has_next);
    assign pop = !empty && ready_one &&
                 (entry.goes != TO_MEMBERS || (!has_next && last_place) ||
                  (last_place && !(|(to_come >> (next_member + 4'd1)))));
    always_ff @(posedge clk) begin
        if (ready_one) begin
            one <= makes;
            record <= next;
            record_value <= entry_value;
            if (pop) begin
                place <= '0;
                member <= '0;
            end else if (!empty && (!has_next || !(|(to_come >> (next_member + 4'd1))))) begin
                place <= place + 4'd1;
                member <= '0;
            end else if (!empty) member <= next_member + 4'd1;
        end
        if (rst) begin
            one <= 1'b0;
            place <= '0;
            member <= '0;
        end
    end

    // ---- First: the header and the sums of its parts

    wire_t head;
    logic [15:0] udp_len;
    assign udp_len = 16'(UDP_LEN + HEADER_LEN) + record.value_len;
    always_comb begin
        head.version = WIRE_VERSION;
        head.msgtype = record.msgtype;
        head.value_len = record.value_len;
        head.group = own_group;
        head.pid = record.pid;
        head.inst = record.inst;
        head.rnd = record.rnd;
        head.vrnd = record.vrnd;
        head.swid = record.swid;
        head.flags = record.flags;
        head.cluster = own_cluster;
        head.client = record.client;
        head.request = record.request;
    end

    logic [20:0] sum_of_head, sum_of_value, sum_of_addresses;
    always_comb begin
        sum_of_head = '0;
        for (int i = 0; i < HEADER / 16; i++) sum_of_head = sum_of_head + 21'(head[16*i +: 16]);
        sum_of_value = '0;
        for (int i = 0; i < VALUE / 16; i++) sum_of_value = sum_of_value + 21'(record_value[16*i +: 16]);
        sum_of_addresses = '0;
        for (int i = 0; i < 8; i++)
            if (record.v6 || i < 2)
                sum_of_addresses = sum_of_addresses + 21'(record.ip_from[16*i +: 16]) + 21'(record.ip_to[16*i +: 16]);
    end

    logic two;
    record_t second;
    logic [VALUE-1:0] second_value;
    logic [HEADER-1:0] second_head;
    logic [15:0] second_udp_len;
    logic [20:0] second_sum_of_head, second_sum_of_value, second_sum_of_addresses;
    assign ready_one = !one || ready_two;
    always_ff @(posedge clk) begin
        if (ready_two) begin
            two <= one;
            second <= record;
            second_value <= record_value;
            second_head <= head;
            second_udp_len <= udp_len;
            second_sum_of_head <= sum_of_head;
            second_sum_of_value <= sum_of_value;
            second_sum_of_addresses <= sum_of_addresses;
        end
        if (rst) two <= 1'b0;
    end

    // ---- Second: checksums

    logic [22:0] udp_sum;
    logic [16:0] udp_folded;
    logic [20:0] ip_sum;
    logic [16:0] ip_folded;
    logic [15:0] ip_len;
    assign ip_len = second_udp_len + 16'(IPV4_LEN);
    assign udp_sum = 23'(second_sum_of_head) + 23'(second_sum_of_value) + 23'(second_sum_of_addresses) +
                     23'(PROTOCOL_UDP) + 23'(second_udp_len) + 23'(second_udp_len) + 23'(second.port_from) +
                     23'(second.port_to);
    assign udp_folded = 17'(udp_sum[15:0]) + 17'(udp_sum[22:16]);
    // The IPv4 header's other words: version to type of service, "don't fragment", hops and protocol.
    assign ip_sum = second_sum_of_addresses + 21'h04500 + 21'(ip_len) + 21'h04000 +
                    21'({HOPS, PROTOCOL_UDP});
    assign ip_folded = 17'(ip_sum[15:0]) + 17'(ip_sum[20:16]);

    logic three;
    record_t third;
    logic [VALUE-1:0] third_value;
    logic [HEADER-1:0] third_head;
    logic [15:0] third_udp_len, third_ip_len, udp_check, ip_check;
    assign ready_two = !two || ready_three;
    always_ff @(posedge clk) begin
        if (ready_three) begin
            three <= two;
            third <= second;
            third_value <= second_value;
            third_head <= second_head;
            third_udp_len <= second_udp_len;
            third_ip_len <= ip_len;
            udp_check <= ~(16'(udp_folded[15:0]) + 16'(udp_folded[16]));
            ip_check <= ~(16'(ip_folded[15:0]) + 16'(ip_folded[16]));
        end
        if (rst) three <= 1'b0;
    end

    // ---- Third: the frame, and its beats

    order_t order;
    always_comb begin
        order.op = third.msgtype | ORDER_ANSWER;
        order.result = third.flags[7:0];
        order.node = third.port_to;
        order.group = third.ip_from[15:0];
        order.pid = third.pid;
        order.at = third.swid;
        order.number = third.port_from;
        order.epoch = third.rnd;
        order.round = third.vrnd;
        order.nonce = third.ip_to[63:0];
        order.a = third.inst;
        order.b = third.client;
        order.c = third.request;
        order.d = third.ip_to[127:64];
        // A slot's value lies behind the order.
        order.places = third.msgtype == ORDER_LOOK_SLOT ? '0 : third_value[VALUE-1 -: 256];
    end

    logic [63:0] udp;
    logic [159:0] ipv4;
    logic [319:0] ipv6;
    logic [FRAME-1:0] made;
    logic [15:0] made_len;
    assign udp = {third.port_from, third.port_to, third_udp_len,
                  third.summed ? (udp_check == 0 ? 16'hffff : udp_check) : 16'd0};
    assign ipv4 = {32'h45000000 | 32'(third_ip_len), 32'h00004000, HOPS, PROTOCOL_UDP, ip_check,
                   third.ip_from[31:0], third.ip_to[31:0]};
    assign ipv6 = {32'h60000000, third_udp_len, PROTOCOL_UDP, HOPS, third.ip_from, third.ip_to};
    always_comb begin
        if (third.goes == TO_PROCESS) begin
            made = FRAME'({96'd0, ETHERTYPE_ORDER, order, third_value}) << (FRAME - 112 - 8*ORDER_LEN - VALUE);
            made_len = 16'(ETHERNET_LEN + ORDER_LEN) + (third.msgtype == ORDER_LOOK_SLOT ? third.value_len : 16'd0);
        end else if (third.v6) begin
            made = FRAME'({third.mac_to, third.mac_from, ETHERTYPE_IPV6, ipv6, udp, third_head, third_value})
                   << (FRAME - 112 - 320 - 64 - HEADER - VALUE);
            made_len = 16'(ETHERNET_LEN + IPV6_LEN) + third_udp_len;
        end else begin
            made = FRAME'({third.mac_to, third.mac_from, ETHERTYPE_IPV4, ipv4, udp, third_head, third_value})
                   << (FRAME - 112 - 160 - 64 - HEADER - VALUE);
            made_len = 16'(ETHERNET_LEN + IPV4_LEN) + third_udp_len;
        end
    end

    logic sending, to_process, taken;
    logic [FRAME-1:0] frame;
    logic [15:0] left;
    logic [511:0] beat;
    logic [63:0] keep;
    assign taken = sending && (to_process ? p_tready : m_tready);
    assign ready_three = !three || !sending || (taken && left <= 16'd64);
    always_ff @(posedge clk) begin
        if (three && ready_three) begin
            sending <= 1'b1;
            to_process <= third.goes == TO_PROCESS;
            frame <= made;
            left <= made_len;
        end else if (taken) begin
            sending <= left > 16'd64;
            frame <= frame << 512;
            left <= left - 16'd64;
        end
        if (rst) sending <= 1'b0;
    end

    always_comb
        for (int i = 0; i < 64; i++) begin
            keep[i] = left > 16'(i);
            beat[8*i +: 8] = keep[i] ? frame[FRAME-1-8*i -: 8] : 8'd0;
        end
    assign m_tdata = beat;
    assign m_tkeep = keep;
    assign m_tlast = left <= 16'd64;
    assign m_tvalid = sending && !to_process;
    assign p_tdata = beat;
    assign p_tkeep = keep;
    assign p_tlast = left <= 16'd64;
    assign p_tvalid = sending && to_process;
    assign idle = empty && !one && !two && !three && !sending;
endmodule
