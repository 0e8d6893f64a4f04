// SPDX-License-Identifier: Apache-2.0
//! CLIENT REPLY: which commands of a client are answered.

/// The setting of CLIENT REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Silence {
    off: bool,
    /// True if the current command isn't answered.
    skips: bool,
    skips_next: bool,
}

impl Silence {
    /// Returns true if the current command is answered.
    pub fn answers(self) -> bool {
        !self.off && !self.skips
    }

    /// Notes that the next command begins.
    pub fn next(&mut self) {
        self.skips = std::mem::take(&mut self.skips_next);
    }

    /// Turns replies on again, for CLIENT REPLY ON.
    pub fn begin_to_speak(&mut self) {
        *self = Silence::default();
    }

    /// Answers no command from now on, for CLIENT REPLY OFF.
    pub fn turn_off(&mut self) {
        self.off = true;
    }

    /// Doesn't answer the next command, for CLIENT REPLY SKIP.
    pub fn skip_next(&mut self) {
        self.skips_next = !self.off;
    }

    /// Turns replies on again, for RESET. RESET's own reply is still skipped if REPLY SKIP came
    /// before.
    pub fn end(&mut self) {
        self.off = false;
        self.skips_next = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_is_for_one_command_and_off_for_all() {
        let mut silence = Silence {
            skips_next: true,
            ..Silence::default()
        };
        silence.next();
        assert!(!silence.answers());
        silence.next();
        assert!(silence.answers());
        silence.off = true;
        silence.next();
        assert!(!silence.answers());
        silence.begin_to_speak();
        assert!(silence.answers());
    }
}
