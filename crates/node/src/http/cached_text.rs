// SPDX-License-Identifier: Apache-2.0
//! Keeps an answer of the nodes for a moment, so that many who ask here are one who asks there.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// A text that is made at most so often.
pub(super) struct CachedText {
    lifetime: Duration,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl CachedText {
    pub fn new(lifetime: Duration) -> CachedText {
        CachedText {
            lifetime,
            last: Mutex::new(None),
        }
    }

    /// Returns the text, which is made if it is too old. Others wait meanwhile, and get the same.
    pub fn text(&self, make: impl FnOnce() -> Option<String>) -> Option<Arc<str>> {
        let mut last = lock(&self.last);
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < self.lifetime) {
            return Some(text.clone());
        }
        let text: Arc<str> = make()?.into();
        *last = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_made_again_only_when_it_is_old() {
        let long = CachedText::new(Duration::from_secs(3_600));
        assert_eq!(long.text(|| None), None);
        assert_eq!(&*long.text(|| Some("a".to_owned())).unwrap(), "a");
        assert_eq!(&*long.text(|| unreachable!()).unwrap(), "a");
        let short = CachedText::new(Duration::ZERO);
        assert!(short.text(|| Some("a".to_owned())).is_some());
        assert_eq!(&*short.text(|| Some("b".to_owned())).unwrap(), "b");
    }
}
