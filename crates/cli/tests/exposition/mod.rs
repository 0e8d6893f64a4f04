// SPDX-License-Identifier: Apache-2.0
//! A strict parser of Prometheus text: what a lenient one forgives is an error here.

use std::collections::{BTreeMap, BTreeSet};

/// A metric with its series.
#[derive(Debug)]
pub struct Family {
    pub kind: String,
    pub samples: Vec<Sample>,
}

#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    pub fn has(&self, label: &str, value: &str) -> bool {
        self.labels.get(label).is_some_and(|is| is == value)
    }
}

/// Returns the families of a text by name, or the first line that isn't as it should be and why.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut families = BTreeMap::<String, Family>::new();
    let mut helped = None;
    let mut current: Option<String> = None;
    let mut series = BTreeSet::new();
    for line in text.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line:?}"));
        if let Some(help) = line.strip_prefix("# HELP ") {
            let Some((name, text)) = help.split_once(' ') else {
                return wrong("HELP without words");
            };
            if text.is_empty() || helped.is_some() {
                return wrong("HELP without words, or twice");
            }
            helped = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = kind.split_once(' ') else {
                return wrong("TYPE without a type");
            };
            if helped.take().as_deref() != Some(name) {
                return wrong("TYPE without HELP before it");
            }
            if !["counter", "gauge", "histogram"].contains(&kind) {
                return wrong("an unknown type");
            }
            if !is_name(name) || name.ends_with("_total") != (kind == "counter") {
                return wrong("the name doesn't fit the type");
            }
            let family = Family {
                kind: kind.to_owned(),
                samples: Vec::new(),
            };
            if families.insert(name.to_owned(), family).is_some() {
                return wrong("a family twice");
            }
            current = Some(name.to_owned());
        } else {
            let sample = sample(line).map_err(|why| format!("{why}: {line:?}"))?;
            let Some((name, family)) = current.as_ref().and_then(|name| {
                let family = families.get_mut(name)?;
                Some((name, family))
            }) else {
                return wrong("a series before any TYPE");
            };
            if helped.is_some() || !belongs(&sample.name, name, &family.kind) {
                return wrong("a series of another family");
            }
            if !series.insert((sample.name.clone(), sample.labels.clone())) {
                return wrong("a series twice");
            }
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        if family.samples.is_empty() {
            return Err(format!("{name} has no series"));
        }
        if family.kind == "histogram" {
            histogram(name, family)?;
        }
    }
    Ok(families)
}

fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    letters.next().is_some_and(is_first) && letters.all(|c| is_first(c) || c.is_ascii_digit())
}

fn belongs(series: &str, family: &str, kind: &str) -> bool {
    match (series.strip_prefix(family), kind) {
        (Some(suffix), "histogram") => ["_bucket", "_sum", "_count"].contains(&suffix),
        (suffix, _) => suffix == Some(""),
    }
}

fn sample(line: &str) -> Result<Sample, String> {
    let (name, mut rest) = line.split_once('{').ok_or("no labels")?;
    if !is_name(name) {
        return Err("no name".to_owned());
    }
    let mut labels = BTreeMap::new();
    loop {
        let (label, after) = rest.split_once("=\"").ok_or("no label")?;
        let (value, after) = quoted(after)?;
        if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
            return Err(format!("the label {label:?} is wrong or there twice"));
        }
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => {
                rest = after.strip_prefix("} ").ok_or("no end of the labels")?;
                break;
            }
        }
    }
    let value: f64 = rest.parse().map_err(|_| "no number")?;
    if !value.is_finite() {
        return Err("no finite number".to_owned());
    }
    let name = name.to_owned();
    Ok(Sample {
        name,
        labels,
        value,
    })
}

/// Returns the text before the closing quote, and what is behind that.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match letters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                _ => return Err("an unknown escape".to_owned()),
            },
            letter => value.push(letter),
        }
    }
    Err("no closing quote".to_owned())
}

/// Checks that each of a histogram's series has rising buckets, up to one with everything, and a
/// sum.
fn histogram(name: &str, family: &Family) -> Result<(), String> {
    let without_bound = |sample: &Sample| {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        labels
    };
    let of = |suffix: &str| {
        let full = format!("{name}{suffix}");
        family.samples.iter().filter(move |s| s.name == full)
    };
    let counts: Vec<_> = of("_count").collect();
    if counts.is_empty() || counts.len() != of("_sum").count() {
        return Err(format!("{name} lacks counts or sums"));
    }
    for count in counts {
        let own = |sample: &&Sample| without_bound(sample) == count.labels;
        if of("_sum").filter(own).count() != 1 {
            return Err(format!("{name} lacks a sum"));
        }
        let buckets = of("_bucket").filter(own);
        let bound = |s: &Sample| s.labels.get("le").and_then(|le| le.parse::<f64>().ok());
        let buckets: Option<Vec<_>> = buckets.map(|s| Some((bound(s)?, s.value))).collect();
        let buckets = buckets.ok_or(format!("{name} has a bucket without `le`"))?;
        let rises = |two: &[(f64, f64)]| two[0].0 < two[1].0 && two[0].1 <= two[1].1;
        let is_whole = buckets.last() == Some(&(f64::INFINITY, count.value));
        if !buckets.windows(2).all(rises) || !is_whole {
            return Err(format!("{name} has wrong buckets"));
        }
    }
    Ok(())
}

#[test]
fn what_a_strict_parser_refuses() {
    let head = "# HELP a_total Words.\n# TYPE a_total counter\n";
    let good = format!("{head}a_total{{x=\"1\"}} 1\na_total{{x=\"\\\"\\n\\\\\"}} 2\n");
    let parsed = parse(&good).unwrap();
    assert!(parsed["a_total"].samples[1].has("x", "\"\n\\"));
    let buckets = |n, all| {
        format!(
            "# HELP h Words.\n# TYPE h histogram\nh_bucket{{x=\"1\",le=\"0.1\"}} {n}\n\
             h_bucket{{x=\"1\",le=\"+Inf\"}} {all}\nh_sum{{x=\"1\"}} 1\nh_count{{x=\"1\"}} 2\n"
        )
    };
    assert!(parse(&buckets(1, 2)).is_ok());
    let wrong = [
        "a_total{x=\"1\"} 1\n".to_owned(),
        format!("{head}a_total{{x=\"1\"}} 1"),
        format!("{head}{head}a_total{{x=\"1\"}} 1\n"),
        format!("{head}a_total{{x=\"1\"}} 1\na_total{{x=\"1\"}} 2\n"),
        format!("{head}a_total{{x=\"1\",y=\"2\"}} 1\na_total{{y=\"2\",x=\"1\"}} 2\n"),
        format!("{head}a_total{{x=\"1\",x=\"1\"}} 1\n"),
        format!("{head}a_total{{x=\"\\t\"}} 1\n"),
        format!("{head}a_total{{x=\"1\"}} one\n"),
        format!("{head}b_total{{x=\"1\"}} 1\n"),
        head.to_owned(),
        "# TYPE a_total counter\na_total{x=\"1\"} 1\n".to_owned(),
        "# HELP a Words.\n# TYPE a counter\na{x=\"1\"} 1\n".to_owned(),
        "# HELP a_total Words.\n# TYPE a_total gauge\na_total{x=\"1\"} 1\n".to_owned(),
        buckets(3, 2),
        buckets(1, 1),
    ];
    for text in wrong {
        assert!(parse(&text).is_err(), "{text}");
    }
}
