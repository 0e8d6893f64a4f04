/* SPDX-License-Identifier: Apache-2.0 */
/* The forwarder: a switch without roles, the path that they are measured against. */
#include "include/parse.p4"
#include "include/forward.p4"

control no_egress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    apply {}
}

V1Switch(parse(), no_verify(), forward(), no_egress(), no_update(), deparse()) main;
