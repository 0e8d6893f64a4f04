// SPDX-License-Identifier: Apache-2.0
//! The application, and what a replica sends.

use super::*;

#[derive(Default)]
pub(super) struct Nowhere(pub(super) Option<Vec<u8>>);

impl Storage for Nowhere {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.clone())
    }

    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()> {
        self.0 = Some(checkpoint.to_vec());
        Ok(())
    }
}

impl StateMachine for Tally {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        Tally::execute(self, command);
        reply.extend(self.answer());
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.answer())
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let mut number = || {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes)?;
            io::Result::Ok(u64::from_be_bytes(bytes))
        };
        Ok(Tally {
            total: number()?,
            chain: number()?,
        })
    }
}

pub(super) type App = InMemory<Tally, Nowhere>;

pub(super) type Reply = (Option<Basis>, u64, u64, Vec<u8>);

#[derive(Default)]
pub(super) struct Out {
    pub(super) packets: Vec<(To, Header, Vec<u8>)>,
    pub(super) replies: Vec<Reply>,
}

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        assert_eq!(usize::from(header.value_len), value.len());
        self.packets.push((to, *header, value.to_vec()));
    }
}

impl Output for Out {
    fn reply(
        &mut self,
        _: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    ) {
        let answer = [&[status], bytes].concat();
        self.replies.push((basis, client, request, answer));
    }

    fn ack(&mut self, _: &ReplyTo, _: &Header) {
        unreachable!("peers acknowledge nothing to clients");
    }

    fn sibling(&mut self, _: PartitionId, _: SiblingMessage) {
        unreachable!("there is one partition");
    }
}
