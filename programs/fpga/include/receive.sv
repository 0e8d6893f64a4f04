// SPDX-License-Identifier: Apache-2.0
// From a frame to a packet for a role: what every role checks of it, in the order of docs/wire.md (`Packet::parse`,
// `Senders::parse`, `Deployment::check`), and its UDP checksum. Packets wait in a queue until the role takes them.
`include "wirepaxos.svh"
module receive #(
    parameter int VALUE_BYTES = 64,
    // Messages of this type only, if it isn't MSGTYPES; others are `not_for_role` before their checksum is looked at.
    parameter logic [7:0] ONLY = MSGTYPES
) (
    input  logic clk,
    input  logic rst,
    input  logic [511:0] s_tdata,
    input  logic [63:0] s_tkeep,
    input  logic s_tlast,
    input  logic s_tvalid,
    output logic s_tready,
    input  logic [511:0] c_tdata,
    input  logic [63:0] c_tkeep,
    input  logic c_tlast,
    input  logic c_tvalid,
    output logic c_tready,
    // Settings.
    input  logic set_now,
    input  record_t set_to,
    // The first packet that waits.
    output record_t packet,
    output logic [8*VALUE_BYTES-1:0] value,
    output logic waits,
    input  logic pop,
    output logic idle
);
    localparam int BEATS = (ETHERNET_LEN + IPV6_LEN + UDP_LEN + HEADER_LEN + TAG_LEN + VALUE_BYTES + 63) / 64;
    localparam int FRAME = 512 * BEATS;
    // A datagram's bytes, with its UDP header.
    localparam int DATAGRAM_BYTES = UDP_LEN + HEADER_LEN + TAG_LEN + VALUE_BYTES;
    localparam int DATAGRAM = 8 * DATAGRAM_BYTES;
    localparam int VALUE = 8 * VALUE_BYTES;
    localparam int WORDS = DATAGRAM_BYTES / 2;
    // Words that are added up at once.
    localparam int STRIDE = 8;
    localparam int SUMS = (WORDS + STRIDE - 1) / STRIDE;

    // ---- Settings

    logic [15:0] own_node, own_group, own_port, partitions, max_value;
    logic [31:0] own_cluster;
    logic anybody;
    logic [128*OWN-1:0] own_ip;
    logic [OWN-1:0] own_is_set;
    logic [128*NODES-1:0] node_ip;
    logic [16*NODES-1:0] node_id;
    logic [128*ASKERS-1:0] asker_ip;
    logic [128*ASKERS-1:0] asker_mask;
    logic [ASKERS-1:0] asker_is_set;

    always_ff @(posedge clk) begin
        if (rst) begin
            own_port <= '0;
            own_is_set <= '0;
            node_id <= '0;
            asker_is_set <= '0;
            anybody <= 1'b0;
            partitions <= '0;
            own_node <= '0;
        end else if (set_now) begin
            if (set_to.swid == SET_IDENTITY) begin
                own_node <= set_to.port_to;
                own_group <= set_to.ip_from[15:0];
                own_cluster <= set_to.inst[31:0];
                own_port <= set_to.client[15:0];
                partitions <= set_to.request[15:0];
                max_value <= set_to.rnd[15:0];
                anybody <= set_to.vrnd[0];
            end
            for (int i = 0; i < OWN; i++)
                if (set_to.swid == SET_OWN + 16'(i)) begin
                    own_ip[128*i +: 128] <= {set_to.inst, set_to.client};
                    own_is_set[i] <= set_to.vrnd[0];
                end
            for (int i = 0; i < NODES; i++)
                if (set_to.swid == SET_NODE + 16'(i)) begin
                    node_ip[128*i +: 128] <= {set_to.inst, set_to.client};
                    node_id[16*i +: 16] <= set_to.request[15:0];
                end
            for (int i = 0; i < ASKERS; i++)
                if (set_to.swid == SET_ASKER + 16'(i)) begin
                    asker_ip[128*i +: 128] <= {set_to.inst, set_to.client};
                    asker_mask[128*i +: 128] <= {set_to.request, set_to.ip_to[127:64]};
                    asker_is_set[i] <= set_to.vrnd[0];
                end
        end
    end

    // ---- First: the frame's own headers

    logic whole, from_process, room;
    logic [FRAME-1:0] frame;
    logic [15:0] length;

    collect #(.BEATS(BEATS)) collector (.*);

    logic is_ipv4, is_ipv6, is_order;
    logic [15:0] ethertype;
    assign ethertype = frame[FRAME-1-96 -: 16];
    // Options and fragments are not ours; "don't fragment" is no fragment.
    assign is_ipv4 = ethertype == ETHERTYPE_IPV4 && frame[FRAME-1-112 -: 8] == 8'h45 &&
                     frame[FRAME-1-184 -: 8] == PROTOCOL_UDP && (frame[FRAME-1-160 -: 16] & 16'hbfff) == 0 &&
                     length >= 16'(ETHERNET_LEN + IPV4_LEN + UDP_LEN);
    assign is_ipv6 = ethertype == ETHERTYPE_IPV6 && frame[FRAME-1-112 -: 4] == 4'd6 &&
                     frame[FRAME-1-160 -: 8] == PROTOCOL_UDP && length >= 16'(ETHERNET_LEN + IPV6_LEN + UDP_LEN);
    assign is_order = from_process && ethertype == ETHERTYPE_ORDER && length >= 16'(ETHERNET_LEN + ORDER_LEN);

    logic first, first_v6, first_udp, first_order;
    logic [DATAGRAM-1:0] datagram;
    logic [15:0] ip_payload, frame_payload;
    logic [95:0] macs;
    logic [127:0] from, to;

    always_ff @(posedge clk) begin
        first <= whole && !rst;
        first_v6 <= is_ipv6;
        first_udp <= (is_ipv4 || is_ipv6) && !from_process;
        first_order <= is_order;
        macs <= frame[FRAME-1 -: 96];
        datagram <= is_order ? DATAGRAM'(frame[FRAME-1-112 -: 8*ORDER_LEN]) << (DATAGRAM - 8*ORDER_LEN) :
                    is_ipv6 ? frame[FRAME-1-8*(ETHERNET_LEN+IPV6_LEN) -: DATAGRAM]
                            : frame[FRAME-1-8*(ETHERNET_LEN+IPV4_LEN) -: DATAGRAM];
        ip_payload <= is_ipv6 ? frame[FRAME-1-144 -: 16] : frame[FRAME-1-128 -: 16] - 16'(IPV4_LEN);
        frame_payload <= length - (is_ipv6 ? 16'(ETHERNET_LEN+IPV6_LEN) : 16'(ETHERNET_LEN+IPV4_LEN));
        from <= is_ipv6 ? frame[FRAME-1-176 -: 128] : {96'hffff, frame[FRAME-1-208 -: 32]};
        to <= is_ipv6 ? frame[FRAME-1-304 -: 128] : {96'hffff, frame[FRAME-1-240 -: 32]};
    end

    // ---- Second: the message's header, and whether the packet is for this role

    wire_t head;
    order_t order;
    logic [15:0] udp_len;
    logic has_tag;
    assign head = datagram[DATAGRAM-1-8*UDP_LEN -: 8*HEADER_LEN];
    assign order = datagram[DATAGRAM-1 -: 8*ORDER_LEN];
    assign udp_len = datagram[DATAGRAM-1-32 -: 16];
    assign has_tag = (head.flags & FLAG_TAG) != 0;

    logic own;
    always_comb begin
        own = 1'b0;
        for (int i = 0; i < OWN; i++)
            if (own_is_set[i] && to == own_ip[128*i +: 128]) own = 1'b1;
    end

    // What is wrong with the lengths and the header, whatever it is about [M-PACKET].
    logic [7:0] malformed;
    logic [15:0] allowed, expected;
    always_comb begin
        allowed = FLAG_TAG;
        if (head.msgtype < 8'd16)
            allowed = FLAG_TAG | {11'd0, 4'(ALLOWED >> {head.msgtype[3:0], 2'd0}), 1'b0};
        expected = head.value_len + 16'(UDP_LEN + HEADER_LEN) + (has_tag ? 16'(TAG_LEN) : 16'd0);
        if (udp_len < 16'(UDP_LEN) || udp_len != ip_payload || udp_len > frame_payload)
            malformed = REASON_BAD_LENGTH;
        else if (udp_len < 16'(UDP_LEN + HEADER_LEN)) malformed = REASON_TRUNCATED;
        else if (head.version != WIRE_VERSION) malformed = REASON_BAD_VERSION;
        else if (head.msgtype >= MSGTYPES) malformed = REASON_UNKNOWN_TYPE;
        else if ((head.flags & ~allowed) != 0) malformed = REASON_BAD_FLAGS;
        else if (has_tag && udp_len < 16'(UDP_LEN + HEADER_LEN + TAG_LEN)) malformed = REASON_TRUNCATED;
        else if (udp_len != expected || head.value_len[15]) malformed = REASON_BAD_LENGTH;
        else malformed = 8'd0;
    end

    // The value, with zeros behind it.
    logic [VALUE-1:0] bytes;
    always_comb begin
        bytes = has_tag ? datagram[VALUE-1:0] : datagram[VALUE+8*TAG_LEN-1 -: VALUE];
        for (int i = 0; i < VALUE_BYTES; i++)
            if (head.value_len <= 16'(i)) bytes[VALUE-1-8*i -: 8] = 8'd0;
        if (first_order) bytes = VALUE'(order.places) << (VALUE - 256);
    end

    // Nodes speak from their own addresses, and commands come from where they are taken [M-SENDER] [M-ASKER].
    logic at_home;
    always_comb begin
        at_home = anybody;
        for (int i = 0; i < NODES; i++)
            if (!OF_ANYBODY[head.msgtype[4:0]] && node_id[16*i +: 16] == head.swid && head.swid != 0 &&
                node_ip[128*i +: 128] == from) at_home = 1'b1;
        for (int i = 0; i < ASKERS; i++)
            if (OF_ANYBODY[head.msgtype[4:0]] && asker_is_set[i] &&
                ((from ^ asker_ip[128*i +: 128]) & asker_mask[128*i +: 128]) == 0) at_home = 1'b1;
    end

    logic [15:0] words [WORDS];
    logic [18:0] sums [SUMS];
    always_comb begin
        for (int i = 0; i < WORDS; i++) begin
            words[i] = datagram[DATAGRAM-1-16*i -: 16];
            if (udp_len <= 16'(2*i)) words[i][15:8] = 8'd0;
            if (udp_len <= 16'(2*i+1)) words[i][7:0] = 8'd0;
        end
        for (int i = 0; i < SUMS; i++) begin
            sums[i] = '0;
            for (int j = 0; j < STRIDE; j++)
                if (STRIDE*i+j < WORDS) sums[i] = sums[i] + 19'(words[STRIDE*i+j]);
        end
    end

    logic second;
    record_t record;
    logic [VALUE-1:0] record_value;
    logic [7:0] second_malformed;
    logic second_cluster, second_home;
    logic [15:0] second_group, second_len;
    logic [19*SUMS-1:0] second_sums;

    always_ff @(posedge clk) begin
        second <= first && !rst;
        second_malformed <= malformed;
        second_cluster <= head.cluster == own_cluster;
        second_group <= head.group;
        second_home <= at_home;
        second_len <= udp_len;
        for (int i = 0; i < SUMS; i++) second_sums[19*i +: 19] <= sums[i];
        record <= '0;
        record.ours <= first_udp && own && own_node != 0 && datagram[DATAGRAM-1-16 -: 16] == own_port;
        record.v6 <= first_v6;
        record.summed <= datagram[DATAGRAM-1-48 -: 16] != 0;
        record.mac_to <= macs[95:48];
        record.mac_from <= macs[47:0];
        record.ip_from <= from;
        record.ip_to <= to;
        record.port_from <= datagram[DATAGRAM-1 -: 16];
        record.port_to <= datagram[DATAGRAM-1-16 -: 16];
        record.msgtype <= head.msgtype;
        record.value_len <= head.value_len;
        record.pid <= head.pid;
        record.inst <= head.inst;
        record.rnd <= head.rnd;
        record.vrnd <= head.vrnd;
        record.swid <= head.swid;
        record.flags <= head.flags;
        record.client <= head.client;
        record.request <= head.request;
        if (first_order) begin
            record.ordered <= order.op == ORDER_SET || order.op == ORDER_ABOUT ||
                              (own_node != 0 && order.node == own_node);
            if (order.op == ORDER_SET || order.op == ORDER_ABOUT) record.refused <= 8'd0;
            else if (order.group != own_group) record.refused <= REASON_UNKNOWN_GROUP;
            else if (order.pid >= partitions) record.refused <= REASON_UNKNOWN_PARTITION;
            record.msgtype <= order.op;
            record.flags <= 16'(order.result);
            record.port_to <= order.node;
            record.port_from <= order.number;
            record.ip_from <= 128'(order.group);
            record.ip_to <= {order.d, order.nonce};
            record.pid <= order.pid;
            record.swid <= order.at;
            record.rnd <= order.epoch;
            record.vrnd <= order.round;
            record.inst <= order.a;
            record.client <= order.b;
            record.request <= order.c;
        end
        record_value <= bytes;
    end

    // ---- Third: what the message is about

    logic [7:0] improper;
    logic is_command, is_noop;
    assign is_command = OF_COMMANDS[record.msgtype[4:0]];
    assign is_noop = (record.flags & FLAG_NOOP) != 0;
    always_comb begin
        if (second_malformed != 0) improper = second_malformed;
        else if (!second_cluster) improper = REASON_WRONG_CLUSTER;
        else if (!second_home) improper = REASON_FOREIGN_ADDRESS;
        else if (second_group != own_group) improper = REASON_UNKNOWN_GROUP;
        else if (record.pid >= partitions) improper = REASON_UNKNOWN_PARTITION;
        else if ((record.value_len > max_value || record.value_len > 16'(VALUE_BYTES)) && record.msgtype != REPLY)
            improper = REASON_VALUE_TOO_LARGE;
        else if (is_noop && (record.client != 0 || record.request != 0)) improper = REASON_BAD_SESSION;
        else if (!is_noop && record.client == 0 && is_command) improper = REASON_BAD_SESSION;
        else if (ONLY != MSGTYPES && record.msgtype != ONLY) improper = REASON_NOT_FOR_ROLE;
        else improper = 8'd0;
    end

    // A pseudo header has the addresses, the length and the protocol. The mapped address's own bits don't count.
    logic [21:0] pseudo, sum;
    always_comb begin
        pseudo = 22'(second_len) + 22'(PROTOCOL_UDP);
        for (int i = 0; i < 8; i++)
            if (record.v6 || i < 2)
                pseudo = pseudo + 22'(record.ip_from[16*i +: 16]) + 22'(record.ip_to[16*i +: 16]);
        sum = '0;
        for (int i = 0; i < SUMS; i++) sum = sum + 22'(second_sums[19*i +: 19]);
    end

    logic third;
    record_t third_record;
    logic [VALUE-1:0] third_value;
    logic [21:0] third_pseudo, third_sum;
    always_ff @(posedge clk) begin
        third <= second && !rst;
        third_record <= record;
        third_value <= record_value;
        if (record.ours) third_record.refused <= improper;
        third_pseudo <= pseudo;
        third_sum <= sum;
    end

    // ---- Fourth: the checksum [M-CHECKSUM]

    logic fourth;
    record_t fourth_record;
    logic [VALUE-1:0] fourth_value;
    logic [22:0] total;
    logic [16:0] folded;
    logic wrong;
    assign total = 23'(third_sum) + 23'(third_pseudo);
    assign folded = 17'(total[15:0]) + 17'(total[22:16]);
    // All ones, or all ones but the carry that comes back.
    assign wrong = third_record.summed ? 16'(folded[15:0] + 16'(folded[16])) != 16'hffff : third_record.v6;
    always_ff @(posedge clk) begin
        fourth <= third && !rst;
        fourth_record <= third_record;
        fourth_value <= third_value;
        if (third_record.ours && third_record.refused == 0 && third_record.msgtype != REPLY && wrong)
            fourth_record.refused <= REASON_BAD_CHECKSUM;
    end

    // ---- The queue

    localparam int RECORD = $bits(packet);
    logic empty;
    logic [4:0] count, outstanding;
    fifo #(.WIDTH(RECORD + VALUE), .DEPTH_LOG2(4)) queue (
        .clk, .rst, .push(fourth), .in({fourth_record, fourth_value}), .pop, .first({packet, value}), .empty, .count
    );
    assign waits = !empty;
    // Frames that are still on their way have room, too.
    assign room = outstanding < 5'd16 && !rst;
    assign idle = outstanding == 0;

    logic admitted;
    assign admitted = (s_tvalid && s_tready && s_tlast) || (c_tvalid && c_tready && c_tlast);
    always_ff @(posedge clk)
        if (rst) outstanding <= '0;
        else outstanding <= outstanding + 5'(admitted) - 5'(pop);
endmodule
