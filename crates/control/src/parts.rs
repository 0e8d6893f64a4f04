// SPDX-License-Identifier: Apache-2.0
//! Sends a status document in parts, since it may be larger than a datagram.
//!
//! The asker draws a random id and asks for one part after the other. The node keeps the document
//! under that id for a while, so that all parts are of one document. If it has forgotten the
//! document it makes a new one, and the asker notices by `parts` and `sum` that it must begin
//! again.

use std::collections::{BTreeMap, VecDeque};

use crate::Message;
use crate::message::fnv;

/// The largest size of a part in bytes. As a string in a message a part takes up to twice as many,
/// since every `"` and `\` gets another `\`; a document's control characters are escaped already.
const PART_LEN: usize = 16 << 10;

/// The largest number of parts that an asker accepts, which is 16 MiB.
const MAX_PARTS: u32 = 1024;

/// How many documents a node keeps.
const KEPT: usize = 8;

/// The documents with which a node has answered lately.
#[derive(Default)]
pub struct Documents {
    kept: VecDeque<Document>,
}

struct Document {
    id: u64,
    sum: u64,
    parts: Vec<String>,
}

impl Documents {
    /// Returns whether there is a document under this id.
    pub fn has(&self, id: u64) -> bool {
        self.kept.iter().any(|document| document.id == id)
    }

    /// Keeps a document, and drops the oldest if there are too many.
    pub fn keep(&mut self, id: u64, document: &str) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Document {
            id,
            sum: fnv(document.as_bytes()),
            parts: cut(document),
        });
    }

    /// Returns a part of the document under this id. Beyond its end this is the last part, which
    /// shows an asker for a longer document that it is another one.
    pub fn part(&self, id: u64, part: u32) -> Option<Message> {
        let document = self.kept.iter().find(|document| document.id == id)?;
        let parts = document.parts.len() as u32;
        let part = part.min(parts - 1);
        Some(Message::Status {
            id,
            part,
            parts,
            sum: document.sum,
            json: document.parts[part as usize].clone(),
        })
    }
}

/// Cuts a document into at least one part, each at most [`PART_LEN`] bytes long.
fn cut(document: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = document;
    while rest.len() > PART_LEN {
        let mut at = PART_LEN;
        while !rest.is_char_boundary(at) {
            at -= 1;
        }
        let (part, behind) = rest.split_at(at);
        parts.push(part.to_owned());
        rest = behind;
    }
    parts.push(rest.to_owned());
    parts
}

/// The effect of a message on an [`Assembler`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The message brought nothing new. The missing part may still come, or is lost.
    None,
    /// A missing part came; [`Assembler::request`] asks for the next one.
    Part,
    /// The last part came, and this is the document.
    Whole(String),
}

/// The parts of one node's document, while it is assembled.
pub struct Assembler {
    id: u64,
    /// The events that are asked for, instead of the status: those after a number, and how many at
    /// most.
    events: Option<(u64, u32)>,
    /// The number of parts and the sum, which identify the document.
    of: (u32, u64),
    parts: BTreeMap<u32, String>,
}

impl Assembler {
    /// Returns an assembler that asks under this id, which nobody else uses.
    pub fn new(id: u64) -> Assembler {
        Assembler {
            id,
            events: None,
            of: (0, 0),
            parts: BTreeMap::new(),
        }
    }

    /// Returns an assembler that asks for the last events after one with a number, at most `limit`.
    pub fn of_events(id: u64, after: u64, limit: u32) -> Assembler {
        Assembler {
            events: Some((after, limit)),
            ..Assembler::new(id)
        }
    }

    /// Returns the request to send at first, after each [`Progress::Part`], and after a while
    /// without an answer.
    pub fn request(&self) -> Message {
        let missing = |part: &u32| !self.parts.contains_key(part);
        let id = self.id;
        let part = (0..MAX_PARTS).find(missing).unwrap_or(0);
        match self.events {
            None => Message::StatusRequest { id, part },
            Some((after, limit)) => Message::EventsRequest {
                id,
                part,
                after,
                limit,
            },
        }
    }

    /// Takes a message of the node.
    pub fn take(&mut self, message: Message) -> Progress {
        let Message::Status {
            id,
            part,
            parts,
            sum,
            json,
        } = message
        else {
            return Progress::None;
        };
        let sound = part < parts && parts <= MAX_PARTS && json.len() <= PART_LEN;
        if id != self.id || !sound {
            return Progress::None;
        }
        if self.of != (parts, sum) {
            self.of = (parts, sum);
            self.parts.clear();
        }
        if self.parts.insert(part, json).is_some() {
            return Progress::None;
        }
        if self.parts.len() < parts as usize {
            return Progress::Part;
        }
        let document: String = std::mem::take(&mut self.parts).into_values().collect();
        match fnv(document.as_bytes()) == sum {
            true => Progress::Whole(document),
            false => Progress::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a document longer than two parts, with a letter of two bytes across the first cut.
    fn long(letter: char) -> String {
        let begin = "x".repeat(PART_LEN - 1);
        begin + &letter.to_string().repeat(PART_LEN)
    }

    fn parts(documents: &Documents, id: u64) -> Vec<Message> {
        let Some(Message::Status { parts, .. }) = documents.part(id, 0) else {
            panic!("nothing is kept under {id}");
        };
        (0..parts).filter_map(|n| documents.part(id, n)).collect()
    }

    fn kept(document: &str) -> Vec<Message> {
        let mut documents = Documents::default();
        documents.keep(7, document);
        parts(&documents, 7)
    }

    fn asked(assembler: &Assembler) -> (u64, u32) {
        match assembler.request() {
            Message::StatusRequest { id, part } => (id, part),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_parts_in_any_order_and_twice_make_the_document() {
        let document = long('ä');
        let all = kept(&document);
        assert_eq!(all.len(), 3);
        let mut assembler = Assembler::new(7);
        assert_eq!(asked(&assembler), (7, 0));
        assert_eq!(assembler.take(all[2].clone()), Progress::Part);
        assert_eq!(asked(&assembler), (7, 0));
        assert_eq!(assembler.take(all[0].clone()), Progress::Part);
        assert_eq!(asked(&assembler), (7, 1));
        assert_eq!(assembler.take(all[2].clone()), Progress::None);
        assert_eq!(assembler.take(all[0].clone()), Progress::None);
        assert_eq!(assembler.take(all[1].clone()), Progress::Whole(document));
    }

    #[test]
    fn a_short_one_and_none_at_all_are_one_part() {
        for document in ["", "{}", &"x".repeat(PART_LEN)] {
            let [part] = &kept(document)[..] else {
                panic!("more than one part");
            };
            let whole = Progress::Whole(document.to_owned());
            assert_eq!(Assembler::new(7).take(part.clone()), whole);
        }
    }

    #[test]
    fn parts_of_two_documents_are_never_joined() {
        let (old, new) = (kept(&long('ä')), kept(&long('ö')));
        let mut assembler = Assembler::new(7);
        assert_eq!(assembler.take(old[0].clone()), Progress::Part);
        assert_eq!(assembler.take(old[1].clone()), Progress::Part);
        assert_eq!(assembler.take(new[2].clone()), Progress::Part);
        assert_eq!(asked(&assembler), (7, 0));
        assert_eq!(assembler.take(new[0].clone()), Progress::Part);
        let whole = assembler.take(new[1].clone());
        assert_eq!(whole, Progress::Whole(long('ö')));
    }

    #[test]
    fn what_was_not_asked_for_and_what_cannot_be_changes_nothing() {
        let status = |id, part, parts, json: &str| Message::Status {
            id,
            part,
            parts,
            sum: fnv(b"{}"),
            json: json.to_owned(),
        };
        let mut assembler = Assembler::new(7);
        for message in [
            Message::Stop,
            status(8, 0, 1, "{}"),
            status(7, 0, 0, "{}"),
            status(7, 1, 1, "{}"),
            status(7, 0, MAX_PARTS + 1, "{}"),
            status(7, u32::MAX - 1, u32::MAX, "{}"),
            status(7, 0, 1, &"x".repeat(PART_LEN + 1)),
            // The document doesn't match its sum.
            status(7, 0, 1, "{ }"),
        ] {
            assert_eq!(assembler.take(message), Progress::None);
            assert_eq!(asked(&assembler), (7, 0));
        }
        let whole = Progress::Whole("{}".to_owned());
        assert_eq!(assembler.take(status(7, 0, 1, "{}")), whole);
    }

    #[test]
    fn the_last_documents_are_kept() {
        let mut documents = Documents::default();
        for id in 0..=KEPT as u64 {
            assert!(!documents.has(id));
            documents.keep(id, &id.to_string());
        }
        assert!(!documents.has(0));
        assert_eq!(documents.part(0, 0), None);
        for id in 1..=KEPT as u64 {
            assert!(documents.has(id));
            let whole = Progress::Whole(id.to_string());
            let part = documents.part(id, u32::MAX).unwrap();
            assert_eq!(Assembler::new(id).take(part), whole);
        }
    }
}
