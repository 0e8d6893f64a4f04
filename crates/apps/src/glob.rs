// SPDX-License-Identifier: Apache-2.0
//! Redis's glob patterns.

/// The most bytes of a pattern with which keys are compared.
pub const MAX_PATTERN: usize = 1_024;

/// Returns the error for a pattern that is too long: a comparison with a key may take a step for
/// each of its bytes and each byte of the key.
pub fn long_pattern(pattern: &[u8]) -> Option<String> {
    (pattern.len() > MAX_PATTERN).then(|| {
        format!(
            "LIMIT not executed: a pattern has {MAX_PATTERN} bytes at most, which is fixed, and \
             this one {}; take a shorter one",
            pattern.len()
        )
    })
}

/// Returns whether `text` matches `pattern`: `*`, `?`, `[a-c]`, `[^a]` and `\` as Redis reads them.
/// This takes at most pattern times text steps, since only the last `*` is ever tried again.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut steps = usize::MAX;
    let found = Search::default().go_on(pattern, text, &mut steps);
    found == Some(true)
}

/// A comparison that can be interrupted, since patterns and texts of a megabyte each take longer
/// than others can wait.
#[derive(Clone, Copy, Default, Debug)]
pub struct Search {
    /// The positions in the pattern and in the text.
    at: (usize, usize),
    /// The positions where the last `*` was tried.
    star: Option<(usize, usize)>,
}

impl Search {
    /// Continues with the same pattern and text. Returns whether they match, or `None` if the
    /// `steps`, of a byte each, are used up before.
    pub fn go_on(&mut self, pattern: &[u8], text: &[u8], steps: &mut usize) -> Option<bool> {
        let (mut p, mut t) = self.at;
        let found = loop {
            if *steps == 0 {
                break None;
            }
            if pattern.get(p) == Some(&b'*') {
                *steps -= 1;
                self.star = Some((p + 1, t));
                p += 1;
                continue;
            }
            if t == text.len() {
                break Some(p >= pattern.len());
            }
            let (len, is_alike) = match_one(&pattern[p.min(pattern.len())..], text[t]);
            *steps = steps.saturating_sub(len.max(1));
            if is_alike {
                p += len;
                t += 1;
                continue;
            }
            let Some((after, from)) = self.star else {
                break Some(false);
            };
            self.star = Some((after, from + 1));
            p = after;
            t = from + 1;
        };
        self.at = (p, t);
        found
    }
}

/// Matches the first element of `pattern`, which isn't `*`, against one byte. Returns how long the
/// element is, and whether it matches.
fn match_one(pattern: &[u8], byte: u8) -> (usize, bool) {
    match pattern {
        [] => (0, false),
        [b'?', ..] => (1, true),
        [b'[', rest @ ..] => {
            let (len, is_alike) = match_class(rest, byte);
            (len + 1, is_alike)
        }
        [b'\\', escaped, ..] => (2, *escaped == byte),
        [literal, ..] => (1, *literal == byte),
    }
}

/// Matches the inside of a bracket, up to and including `]`. A bracket that isn't closed ends with
/// the pattern, as in Redis.
fn match_class(class: &[u8], byte: u8) -> (usize, bool) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [low, b'-', high, ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (at, found != negated)
}

#[cfg(test)]
mod tests {
    use super::{Search, matches};

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("*b*", "abc", true),
            ("a**c", "abbbc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("[a", "a", true),
            ("[a", "b", false),
            ("a\\", "a\\", true),
            ("*[0-9]", "key:7", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
        ] {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            assert_eq!(matches(pattern, text), expected, "{pattern:?} {text:?}");
            // The comparison is repeated, a step at a time.
            let mut search = Search::default();
            let found = std::iter::from_fn(|| Some(search.go_on(pattern, text, &mut 1)));
            assert_eq!(found.take(1_000).flatten().next(), Some(expected));
        }
    }

    #[test]
    fn a_hostile_pattern_ends() {
        let pattern = b"a*".repeat(500);
        let text = vec![b'a'; 5000];
        assert!(matches(&pattern, &text));
        let pattern = [pattern, b"b".to_vec()].concat();
        assert!(!matches(&pattern, &text));
    }

    #[test]
    fn a_comparison_takes_no_more_steps_than_it_may() {
        let class = [b"*[", &b"x".repeat(1_000)[..], b"]"].concat();
        let (mut search, mut turns) = (Search::default(), 0);
        loop {
            let mut steps = 100;
            turns += 1;
            match search.go_on(&class, &b"y".repeat(1_000), &mut steps) {
                None => assert_eq!(steps, 0),
                Some(found) => break assert!(!found),
            }
        }
        assert!(turns >= 1_000, "{turns}");
    }
}
