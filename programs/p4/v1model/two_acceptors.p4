/* SPDX-License-Identifier: Apache-2.0 */
/* Two acceptors in one switch: each has its own node, address and registers, and they fail together. */
#define IN_COMBINATION
#ifdef SIGNED
#error "what one role hands to another in the same switch isn't signed"
#endif
#include "acceptor.p4"

control ingress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    acceptor() first;
    acceptor() second;
    forward() others;

    apply {
        first.apply(hdr, m, standard);
        if (!m.ours && !m.ordered) {
            second.apply(hdr, m, standard);
        }
        if (!m.ours && !m.ordered) {
            others.apply(hdr, m, standard);
        }
    }
}

V1Switch(parse(), no_verify(), ingress(), egress(), no_update(), deparse()) main;
