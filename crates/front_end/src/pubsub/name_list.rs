// SPDX-License-Identifier: Apache-2.0
//! The names of a command, of which there may be hundreds of thousands.

/// The names of a command, in one piece of memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct NameList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The number of names that were taken.
    taken: usize,
}

impl NameList {
    pub fn of(names: &[&[u8]]) -> NameList {
        let ends = names.iter().scan(0, |end, name| {
            *end += name.len();
            Some(*end)
        });
        NameList {
            ends: ends.collect(),
            bytes: names.concat(),
            taken: 0,
        }
    }

    /// Takes the next name.
    pub fn take(&mut self) -> Option<&[u8]> {
        let end = *self.ends.get(self.taken)?;
        let begin = match self.taken {
            0 => 0,
            at => self.ends[at - 1],
        };
        self.taken += 1;
        Some(&self.bytes[begin..end])
    }

    /// Returns the bytes of memory that the list takes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_in_their_order() {
        let mut names = NameList::of(&[b"a", b"", b"bcd"]);
        let taken: Vec<Vec<u8>> = std::iter::from_fn(|| names.take().map(<[u8]>::to_vec)).collect();
        assert_eq!(taken, [&b"a"[..], b"", b"bcd"]);
    }
}
