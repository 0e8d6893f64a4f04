//! The measurement itself: every message of every role is accepted. No figure is asserted.

mod common;

#[test]
fn every_role_can_be_measured() {
    let Some(dir) = common::objects_or_skip() else {
        return;
    };
    let measured = loader::measure::roles_from(&dir).expect("every repetition is accepted");
    for m in &measured {
        println!(
            "{:>10}: {:6.1} ns a message, {:5.1} M/s (wrapper {:.1} ns, forwarding {:.1} ns, {} messages)",
            m.role,
            m.ns_per_msg,
            m.msgs_per_s / 1e6,
            m.wrapper_ns,
            m.forwarding_ns_per_msg,
            m.messages
        );
    }
    let names: Vec<_> = measured.iter().map(|m| m.role).collect();
    assert_eq!(
        names,
        ["forwarder", "leader", "egress", "acceptor", "learner"]
    );
}
