// SPDX-License-Identifier: Apache-2.0
//! The actors of each protocol's clusters.

pub mod nopaxos;
pub mod paxos;

use ::paxos::NodeId;

use crate::actor::Outputs;
use crate::explore::Fingerprint;
use crate::network::{ActorId, Message, MessageId, Sent};

/// An actor after an event, and the packets that it sends.
pub struct Happened<A> {
    /// The actor.
    pub after: A,
    /// The packets that the actor sends, and what it reports.
    pub out: Outputs,
    /// The rule that this breaks, if any.
    pub flaw: Option<Box<str>>,
}

/// A state that was reached for the first time.
pub struct Reached<'a, A> {
    /// All states of actors that were ever reached.
    pub all: &'a [A],
    /// The number of each actor's state, by the actor's place.
    pub numbers: &'a [u32],
    /// The places whose actors aren't what they were in the state before.
    pub changed: &'a [usize],
    /// All messages in ascending order.
    pub sent: &'a Sent,
    /// The messages that were not sent in the state before.
    pub fresh: &'a [MessageId],
}

impl<'a, A> Reached<'a, A> {
    /// Returns the actor at a place.
    pub fn actor(&self, place: usize) -> &'a A {
        &self.all[self.numbers[place] as usize]
    }
}

/// The roles of a protocol within bounds: where they are, what may happen to them, and what must
/// hold.
///
/// *Locals* are what happens without a message.
pub trait System {
    /// An actor: one variant for each role.
    type Actor: Clone;

    /// Returns a fingerprint that is equal for actors in the same state.
    fn fingerprint(actor: &Self::Actor) -> Fingerprint;

    /// Returns the number of places.
    fn places(&self) -> usize;
    /// Returns the node at a place.
    fn node(&self, place: ActorId) -> NodeId;
    /// Returns the ways to exchange actors that make no difference, the identity first: each says
    /// where the first places go.
    fn symmetries(&self) -> Vec<Vec<u8>>;
    /// Returns the message with actors exchanged.
    fn exchanged(&self, way: &[u8], message: Message) -> Message;

    /// Returns how they begin, by place.
    fn first_actors(&mut self) -> Vec<Self::Actor>;
    /// Returns what was sent before.
    fn first_messages(&self) -> Vec<Message>;

    /// Returns what an actor makes of a message.
    fn take(&self, actor: &Self::Actor, message: &Message) -> Happened<Self::Actor>;
    /// Returns the messages for an actor's outputs, which it made for something sent by the actor
    /// at `sender`.
    fn messages_of(
        &self,
        place: ActorId,
        sender: ActorId,
        after: &Self::Actor,
        out: Outputs,
    ) -> Vec<Message>;

    /// Returns how many locals there are.
    fn locals(&self) -> usize;
    /// Returns the place at which the event happens.
    fn place_of_local(&self, at: usize) -> ActorId;
    /// Returns whether it may happen more than once.
    fn repeats(&self, at: usize) -> bool;
    /// Returns whether it may happen now. `used`: which of those that happen once have happened,
    /// one bit each.
    fn may_happen(&self, at: usize, used: u32, sent: &Sent) -> bool;
    /// Returns what becomes of an actor to which it happens.
    fn happen(&self, at: usize, actor: &Self::Actor) -> Happened<Self::Actor>;
    /// Returns one line that describes the event.
    fn describe_local(&self, at: usize) -> String;

    /// Notes what a message says, the first time it is sent in any state.
    fn note(&mut self, id: MessageId, message: &Message);
    /// Returns what is wrong with a state.
    fn flaw(&mut self, reached: &Reached<'_, Self::Actor>) -> Option<String>;
    /// Returns how many interesting things were reached.
    fn seen(&self) -> Vec<(&'static str, u64)>;
}
