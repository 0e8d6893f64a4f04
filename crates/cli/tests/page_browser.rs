// SPDX-License-Identifier: Apache-2.0
//! The web page of a controller in a real browser, before and after a leader is killed. It writes
//! what it saw into `target/page/`. `./dev test page` runs it.

mod browser;
mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use browser::Browser;
use common::{Lowers, TestCluster, eventually, shape};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};
use serde_json::{Value, json};

const WIDE: (u32, u32) = (1180, 900);
const PHONE: (u32, u32) = (390, 844);

/// Returns an expression that is the texts of all elements that a selector finds.
fn texts(selector: &str) -> String {
    format!("[...document.querySelectorAll({selector:?})].map((one) => one.textContent)")
}

/// Waits until the texts of some elements have a word.
fn see(browser: &mut Browser, selector: &str, word: &str) {
    let mut last = Value::Null;
    eventually(&format!("{word:?} in {selector}"), || {
        last = browser.evaluate(&texts(selector));
        let mut found = last.as_array()?.iter().filter_map(Value::as_str);
        found.find(|text| text.contains(word)).map(|_| ())
    });
}

/// Sends writes until the flag falls.
fn write_on(mut client: Connection, goes_on: &AtomicBool) {
    while goes_on.load(Ordering::Relaxed) {
        // While no leader is there, a write may fail.
        let _ = client.call(&[b"SET", b"fruit", b"apple"]);
    }
}

/// Everything that stands in the picture must be within it, and nothing wider than the screen.
const FITS: &str = "(() => {
    const page = document.documentElement;
    const frame = document.querySelector('.picture').getBoundingClientRect();
    const texts = [...document.querySelectorAll('.picture g > text')];
    const out = texts.filter((text) => {
        const [box, card] = [text, text.parentElement.querySelector('rect') ?? text]
            .map((one) => one.getBoundingClientRect());
        return box.left < frame.left - 1 || box.right > Math.min(frame.right, card.right) + 1;
    });
    return { wide: page.scrollWidth > innerWidth, out: out.map((text) => text.textContent) };
})()";

fn fits(browser: &mut Browser) {
    let shown = browser.evaluate(FITS);
    assert_eq!(shown, json!({ "wide": false, "out": [] }));
}

/// Text of the cluster that looks like HTML stays text, and the browser lets no script change that.
const INJECTS: &str = "import('/lists.js').then(({ writeEvents }) => {
    const list = document.createElement('ol');
    writeEvents([{ at_ms: 1, text: '<img src=x onerror=alert(1)>', is_warning: true }], list);
    let refusal = 'none';
    try { list.innerHTML = '<b>x</b>'; } catch (why) { refusal = why.name; }
    return { children: list.querySelectorAll('img').length, text: list.textContent, refusal };
})";

fn injects_nothing(browser: &mut Browser) {
    let result = browser.evaluate(INJECTS);
    assert_eq!(result["children"], 0, "{result}");
    let text = result["text"].as_str().unwrap();
    assert!(text.contains("<img src=x onerror=alert(1)>"), "{text}");
    assert_eq!(result["refusal"], "TypeError", "{result}");
    // The refused attempt is a complaint of the browser's.
    browser.complaints.clear();
}

fn directory() -> PathBuf {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/page");
    std::fs::create_dir_all(directory).unwrap();
    directory.into()
}

#[test]
fn a_browser_shows_a_killed_leader_and_who_leads_now() {
    if std::env::var_os("WIREPAXOS_PAGE").is_none() {
        println!("SKIPPED: `./dev test page` looks at the page in a browser");
        return;
    }
    let Some(mut browser) = Browser::start() else {
        println!("SKIPPED: there is no Chromium: install the package chromium");
        return;
    };
    let durable = Shape {
        durable: true,
        ..shape("rocksdb")
    };
    let (mut cluster, addresses) = TestCluster::start_with_metrics(&durable);
    let ok = Reply::Simple("OK".into());
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok);
    let client = cluster.connect(0);
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| write_on(client, &goes_on));
        let _ends = Lowers(&goes_on);
        browser.look_with(WIDE, "light");
        browser.open(&format!("http://{}/", addresses["controller"]));
        watch(&mut browser, &mut cluster);
    });
    assert_eq!(browser.complaints, [""; 0]);
    cluster.processes.kill("controller");
    see(&mut browser, "#verdict", "no answer from this controller");
}

fn watch(browser: &mut Browser, cluster: &mut TestCluster) {
    let directory = directory();
    see(browser, "#verdict", "all is well");
    see(browser, ".picture .leads", "leads epoch");
    see(browser, ".picture .speed", "/s");
    see(browser, ".picture", "votes");
    eventually("curves", || {
        let lines = browser.evaluate("document.querySelectorAll('.curve .under').length");
        (lines.as_u64()? >= 2).then_some(())
    });
    fits(browser);
    injects_nothing(browser);
    let leads = browser.evaluate("document.querySelector('.picture .leads .name').textContent");
    let leads = leads.as_str().unwrap().to_owned();
    cluster.processes.kill(&leads);
    see(browser, "#verdict", "1 node is silent");
    see(browser, ".picture .silent .name", &leads);
    let other = if leads == "leader-1" {
        "leader-2"
    } else {
        "leader-1"
    };
    see(browser, ".picture .leads .name", other);
    see(browser, "#warnings", "start with: wirepaxos node");
    see(browser, "#events", "leads: ");
    see(browser, ".curve .mark-name", other);
    see(browser, "#members .bad", "no answer");
    for (name, size, colours) in [
        ("light", WIDE, "light"),
        ("dark", WIDE, "dark"),
        ("phone", PHONE, "light"),
        ("phone-dark", PHONE, "dark"),
    ] {
        browser.look_with(size, colours);
        let width = size.0;
        eventually("the picture for this size", || {
            let is_narrow = browser.evaluate("document.querySelector('.picture .narrow') !== null");
            (is_narrow == (width < 600)).then_some(())
        });
        fits(browser);
        browser.screenshot(&directory.join(format!("{name}.png")));
    }
}
