// SPDX-License-Identifier: Apache-2.0
//! A headless Chromium that a test drives over a pipe, and which reaches nothing but this machine.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// The names that distributions give it.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The browser speaks at descriptors 3 and 4, which the shell makes of this process's pipes.
const SCRIPT: &str = r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#;

const OPTIONS: [&str; 10] = [
    "--headless=new",
    // Tests run as root, too, for whom it has no sandbox.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.*",
    "--remote-debugging-pipe",
];

/// A browser with one page, which ends when this is dropped.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    profile: PathBuf,
    session: Option<String>,
    requests: u64,
    /// What the page or the browser has complained of.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts a browser, or returns `None` if there is none on this machine.
    pub fn start() -> Option<Browser> {
        let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        let program = PROGRAMS.into_iter().find(is_there)?;
        let profile = format!("wirepaxos-browser-{}", std::process::id());
        let profile = std::env::temp_dir().join(profile);
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "sh", program])
            .args(OPTIONS)
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Browser {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
            profile,
            session: None,
            requests: 0,
            complaints: Vec::new(),
        };
        let targets = browser.call("Target.getTargets", json!({}));
        let mut targets = targets["targetInfos"].as_array().unwrap().iter();
        let page = targets.find(|target| target["type"] == "page").unwrap();
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command of the browser's protocol, and returns its result.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.requests += 1;
        let mut request = json!({ "id": self.requests, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.to
            .write_all(format!("{request}\0").as_bytes())
            .unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let message: Value = serde_json::from_slice(&bytes).unwrap();
            if message["id"] == self.requests {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let is_complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
            _ => false,
        };
        if is_complaint {
            self.complaints.push(message["params"].to_string());
        }
    }

    /// Gives the page a size, and the colours that its reader prefers.
    pub fn look_with(&mut self, (width, height): (u32, u32), colours: &str) {
        let size = json!({
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let colours = json!([{ "name": "prefers-color-scheme", "value": colours }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": colours }));
    }

    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{opened}");
    }

    /// Returns the value of an expression in the page, or what it has thrown as `thrown`.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut result = self.call("Runtime.evaluate", ask);
        match result["exceptionDetails"].take() {
            Value::Null => result["result"]["value"].take(),
            thrown => json!({ "thrown": thrown["exception"]["description"] }),
        }
    }

    /// Writes a picture of the whole page as a PNG.
    pub fn screenshot(&mut self, to: &Path) {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip = json!({
            "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1,
        });
        let ask = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.call("Page.captureScreenshot", ask);
        std::fs::write(to, decoded(shot["data"].as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Returns the bytes of a text in base 64.
fn decoded(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = text.trim_end_matches('=').as_bytes();
    let value = |letter: &u8| LETTERS.iter().position(|l| l == letter).unwrap() as u32;
    let bytes = text.chunks(4).flat_map(|four| {
        let bits = four
            .iter()
            .fold(0, |bits, letter| bits << 6 | value(letter));
        let bits = bits << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    });
    bytes.collect()
}
