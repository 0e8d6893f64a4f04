// SPDX-License-Identifier: Apache-2.0
//! Redis's glob patterns.

/// Whether `text` matches `pattern`: `*`, `?`, `[a-c]`, `[^a]` and `\` as Redis reads them.
/// Takes at most pattern times text steps: only the last `*` is ever tried again.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t == text.len() {
            return p >= pattern.len();
        }
        match match_one(&pattern[p.min(pattern.len())..], text[t]) {
            Some(len) => {
                p += len;
                t += 1;
            }
            None => {
                let Some((after, from)) = star else {
                    return false;
                };
                star = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
        }
    }
}

/// Matches the first element of `pattern`, no `*`, against one byte; says how long the element is.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => match_class(rest, byte).map(|len| len + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Matches the inside of a bracket, up to and including `]`; one that isn't closed ends with the
/// pattern, as in Redis.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
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
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::matches;

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
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
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
}
