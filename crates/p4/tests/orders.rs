// SPDX-License-Identifier: Apache-2.0
//! Orders have the same numbers and the same layout in Rust and in P4; no compiler is needed for
//! that.

mod common;

use std::fs;

use p4::order::{ANSWER, ETHERTYPE, FRAME_LEN, LEARNER, VERSION};
use p4::{Op, Order};
use paxos::Round;

#[test]
fn orders_have_the_numbers_of_p4() {
    let text = shared();
    let listed: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("const bit<8> ORDER_")?.strip_suffix(';'))
        .filter_map(|line| line.split_once(" = "))
        .filter(|(name, _)| *name != "ANSWER")
        .map(|(name, number)| (name.replace('_', "").to_lowercase(), number.to_owned()))
        .collect();
    let known = Op::ALL.map(|op| (format!("{op:?}").to_lowercase(), (op as u8).to_string()));
    assert_eq!(listed, known);
}

#[test]
fn an_order_is_laid_out_as_in_p4() {
    let of_v1model = read("v1model/include/headers.p4");
    let widths = [fields(&shared(), "order_t"), fields(&of_v1model, "nodes_t")].map(|fields| {
        let widths: Vec<u32> = fields.iter().map(|(_, width)| *width).collect();
        widths
    });
    let [order, nodes] = &widths;
    assert_eq!(
        order[..],
        [8, 8, 16, 16, 16, 16, 16, 32, 32, 64, 64, 64, 64, 64]
    );
    assert_eq!(nodes[..], [16; 8]);
    let names: Vec<_> = fields(&shared(), "order_t")
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let expected = "op result node group pid at number epoch round nonce a b c d";
    assert_eq!(names.join(" "), expected);
    let bits: u32 = order.iter().chain(nodes).chain(nodes).sum();
    assert_eq!(FRAME_LEN, 14 + bits as usize / 8);
}

#[test]
fn an_order_comes_out_as_it_went_in() {
    let mut order = Order::new(Op::Stage, 0x0102, 0x0304);
    (order.result, order.pid, order.at, order.number) = (5, 0x0607, 0x0809, 0x0a0b);
    (order.epoch, order.round, order.nonce) = (0x0c0d_0e0f, Round(0x1011_1213), 14);
    (order.a, order.b, order.c, order.d) = (15, 16, 17, 18);
    order.acceptors = [1, 2, 3, 4, 5, 6, 7, 8];
    order.replicas = [9, 10, 11, 12, 13, 14, 15, 16];
    let mut frame = order.emit();
    assert_eq!(Order::parse_answer(&frame), None, "it comes back as it was");
    frame[14] |= ANSWER;
    frame.extend(b"value");
    assert_eq!(
        Order::parse_answer(&frame),
        Some((order.clone(), &b"value"[..]))
    );
    assert_eq!(Order::parse_answer(&frame[..FRAME_LEN - 1]), None);
    frame[14] = ANSWER | 99;
    assert_eq!(Order::parse_answer(&frame), None, "no such order");
    frame[14] = ANSWER | Op::Stage as u8;
    frame[13] = 0;
    assert_eq!(Order::parse_answer(&frame), None, "another type");
}

#[test]
fn an_answer_is_of_one_order() {
    let asked = Order {
        number: 7,
        ..Order::new(Op::Look, 1, 2)
    };
    let other = Order {
        number: 8,
        ..asked.clone()
    };
    assert!(asked.answers(&asked) && !other.answers(&asked));
    let look_at_slot = Order {
        op: Op::LookSlot,
        ..asked.clone()
    };
    assert!(!look_at_slot.answers(&asked));
}

/// Numbers that both sides have by name.
#[test]
fn constants_of_orders_are_those_of_p4() {
    let orders = [shared(), read("v1model/include/orders.p4")].concat();
    for (line, number) in [
        ("const bit<8> ORDER_ANSWER = 0x80;", u64::from(ANSWER)),
        ("const bit<16> ETHERTYPE_ORDER = 0x88b5;", ETHERTYPE.into()),
        ("const bit<64> ORDERS_VERSION = 1;", VERSION),
        ("const bit<16> ROLE_LEARNER = 16;", LEARNER.into()),
    ] {
        assert!(orders.contains(line), "{line}");
        let said = line.rsplit(' ').next().expect("a number");
        let said = said.trim_end_matches(';');
        let said = match said.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => said.parse(),
        };
        assert_eq!(said.expect("a number"), number, "{line}");
    }
}

fn shared() -> String {
    read("shared/orders.p4")
}

fn read(file: &str) -> String {
    fs::read_to_string(common::programs().join("..").join(file)).expect("it is there")
}

/// Names and widths of a header's fields.
fn fields(text: &str, header: &str) -> Vec<(String, u32)> {
    let (_, text) = text
        .split_once(&format!("header {header} {{\n"))
        .expect("the header is there");
    let (text, _) = text.split_once("\n}").expect("it ends");
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("bit<")?.strip_suffix(';'))
        .filter_map(|line| line.split_once("> "))
        .map(|(width, name)| (name.to_owned(), width.parse().expect("a width")))
        .collect()
}
