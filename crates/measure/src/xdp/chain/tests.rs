// SPDX-License-Identifier: Apache-2.0
use super::*;

fn of(inst: u64, client: u64) -> Decision {
    Decision {
        inst,
        client,
        request: ready::REQUEST,
        len: super::super::VALUE_LEN as u16,
        ..Decision::default()
    }
}

#[test]
fn each_instance_counts_once_in_any_order() {
    let mut taken = Taken::new(10, &[0, 2]);
    for inst in [10, 12, 13, 11, 12, 10, 15] {
        taken.take(&of(inst, 3), &ready::value_of(3));
    }
    assert_eq!((taken.count(), taken.repeated, taken.wrong), (5, 2, 0));
    assert_eq!((taken.next, taken.ahead.len()), (14, 1));
}

#[test]
fn what_nobody_sent_doesnt_count() {
    let mut taken = Taken::new(10, &[0, 2]);
    let mut value = ready::value_of(3);
    taken.take(&of(10, 0), &value);
    taken.take(&of(10, 2), &ready::value_of(2));
    taken.take(&of(10, u64::MAX), &value);
    taken.take(&of(9, 3), &value);
    taken.take(&of(10, 3), &value[..63]);
    let noop = Decision {
        flags: 1,
        ..of(10, 3)
    };
    taken.take(&noop, &value);
    value[63] ^= 1;
    taken.take(&of(10, 3), &value);
    assert_eq!((taken.count(), taken.repeated, taken.wrong), (0, 0, 7));
    assert_ne!(ready::value_of(1), ready::value_of(3));
    assert!(
        (0..9).all(|cpu| client_of(cpu) != 0),
        "no leader takes that"
    );
}
