// SPDX-License-Identifier: Apache-2.0
//! The files of a controller's web page, as they are in `page/`.

/// The path of each file, with its type and its text.
const FILES: [(&str, &str, &str); 8] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/style.css", CSS, include_str!("page/style.css")),
    ("/main.js", JS, include_str!("page/main.js")),
    ("/numbers.js", JS, include_str!("page/numbers.js")),
    ("/picture.js", JS, include_str!("page/picture.js")),
    ("/curves.js", JS, include_str!("page/curves.js")),
    ("/lists.js", JS, include_str!("page/lists.js")),
];
const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// Returns the type and the text of the file with this path.
pub(crate) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    let found = FILES.iter().find(|(name, ..)| *name == path);
    found.map(|(_, kind, text)| (*kind, *text))
}
