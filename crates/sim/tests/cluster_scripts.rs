// SPDX-License-Identifier: Apache-2.0
//! Runs every script of `testdata/cluster`.

use std::path::Path;

use sim::cluster_script::ClusterScript;

#[test]
fn all_cluster_scripts_come_out_as_expected() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cluster");
    let mut paths: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 10, "scripts are missing in {directory:?}");
    let mut failures = Vec::new();
    for path in &paths {
        let text = std::fs::read_to_string(path).unwrap();
        let result = ClusterScript::parse(&text).and_then(|script| script.run());
        if let Err(why) = result {
            failures.push(format!("{}: {why}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
