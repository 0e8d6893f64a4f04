// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn a_run_ends_when_every_store_has_written() {
    let dir = std::env::temp_dir().join(format!("wirepaxos-bench-full-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let tables = Tables::since_now(vec![dir.clone()]);
    let waited = run_until_full(&tables, true, |enough| {
        assert!(!enough.load(Ordering::Relaxed));
        std::fs::write(dir.join("000001.sst"), "")?;
        while !enough.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Ok(())
    });
    assert!(waited.is_ok());
    let at_once = run_until_full(&tables, false, |enough| Ok(enough.load(Ordering::Relaxed)));
    assert!(at_once.unwrap());
    // A run that fails ends the waiting, too.
    let tables = Tables::since_now(vec![dir.clone()]);
    let failed = run_until_full(&tables, true, |_| Err::<(), _>(Error::new("no replies")));
    assert!(failed.is_err());
    std::fs::remove_dir_all(dir).unwrap();
}
