// SPDX-License-Identifier: Apache-2.0
//! Tests of how many states and connections a source has open, and who makes room for whom.

use std::time::Instant as Moment;

use super::*;

/// At most two states are held open, since each costs the store room.
#[test]
fn a_third_one_is_refused() {
    let source = serve(draw(), [stand(77), stand(9)]);
    let mut peer = self::peer(source.address);
    let question = question([Some(70), None]);
    let (first, _) = peer.hold(&question).unwrap();
    peer.hold(&question).unwrap();
    assert!(refused(peer.hold(&question)).contains("others already"));
    peer.release(first);
    peer.hold(&question).unwrap();
}

/// A replica that is killed again and again while it fetches leaves states open that nobody will
/// ask for. These make room for its next one, the oldest first; those of living askers stay.
#[test]
fn who_was_killed_is_in_nobodys_way() {
    let source = serve(draw(), [stand(77), stand(9)]);
    let question = question([Some(70), None]);
    let mut living = peer(source.address);
    let (kept, _) = living.hold(&question).unwrap();
    for _ in 0..3 {
        let mut killed = peer(source.address);
        let begun = Moment::now();
        // The source sees that the connection before has ended, but not at once.
        while let Err(e) = killed.hold(&question) {
            assert!(begun.elapsed() < IDLE_AT_MOST, "{}", refused::<()>(Err(e)));
        }
    }
    living.part(kept, 0, 0).unwrap();
}

/// Strangers who connect and send nothing, or endless data, don't keep others away for good.
#[test]
fn who_connects_must_ask() {
    let source = serve(draw(), [stand(77), stand(9)]);
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(source.address).unwrap())
        .collect();
    for stream in &silent {
        // The other side closes the connection, at once or when its patience ends.
        stream.set_read_timeout(Some(IDLE_AT_MOST)).unwrap();
        let ended = (&*stream).read(&mut [0]);
        assert!(matches!(ended, Ok(0)), "{ended:?}");
    }
    assert!(source.server.refused() > 0);
    let found = search(&[source.address], &question([Some(70), None]));
    assert_eq!(found.unwrap(), [source.address]);
}
