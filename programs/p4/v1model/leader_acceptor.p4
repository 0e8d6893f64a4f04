/* SPDX-License-Identifier: Apache-2.0 */
/* A leader and an acceptor in one switch, as the papers deploy them. Each has its own node, address and registers. What one sends
 * to the other comes in again; everything else leaves. */
#define IN_COMBINATION
#ifdef SIGNED
#error "what one role hands to another in the same switch isn't signed"
#endif
#include "leader.p4"
#include "acceptor.p4"

control ingress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    stamper() leader;
    acceptor() first;
    forward() others;

    apply {
        leader.apply(hdr, m, standard);
        if (!m.ours && !m.ordered) {
            first.apply(hdr, m, standard);
        }
        if (!m.ours && !m.ordered) {
            others.apply(hdr, m, standard);
        }
    }
}

V1Switch(parse(), no_verify(), ingress(), egress(), no_update(), deparse()) main;
