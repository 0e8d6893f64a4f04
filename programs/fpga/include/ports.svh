// SPDX-License-Identifier: Apache-2.0
// The streams of every role, each AXI-Stream with 512 bits: frames from and to the network, the first byte lowest.
input  logic clk,
input  logic rst,
input  logic [511:0] s_axis_tdata,
input  logic [63:0] s_axis_tkeep,
input  logic s_axis_tlast,
input  logic s_axis_tvalid,
output logic s_axis_tready,
output logic [511:0] m_axis_tdata,
output logic [63:0] m_axis_tkeep,
output logic m_axis_tlast,
output logic m_axis_tvalid,
input  logic m_axis_tready,
// Orders of the process, and their answers.
input  logic [511:0] s_order_tdata,
input  logic [63:0] s_order_tkeep,
input  logic s_order_tlast,
input  logic s_order_tvalid,
output logic s_order_tready,
output logic [511:0] m_order_tdata,
output logic [63:0] m_order_tkeep,
output logic m_order_tlast,
output logic m_order_tvalid,
input  logic m_order_tready,
// No packet is on its way.
output logic idle
