// SPDX-License-Identifier: Apache-2.0
//! News that a replica's workers tell its front end while they execute: changes of keys for which
//! clients wait, and published messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::notifications::{self, Notifications};
use super::resp::Value;
use super::server::Home;

/// The prefix of the names of shards' channels in the server, which has no patterns for them. No
/// other channel's name begins so.
pub(super) const SHARDED: &[u8] = b"wirepaxos:shard:";

/// The channel in which front ends tell one another who has subscribed to what. Its messages are
/// always told, but only those that a front end has put into the log by themselves.
pub const AUDIENCE: &[u8] = b"wirepaxos:audience";

/// One piece of news.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A key for which somebody waits may have changed.
    Changed(Vec<u8>),
    /// Any key may have changed, since scripts change what they like.
    AnyChanged,
    /// A message was published.
    Message(Message),
    /// The replica has taken over another one's state, and nothing was told of the commands in
    /// between.
    Leapt,
}

/// A published message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The channel's name.
    pub channel: Vec<u8>,
    /// The message was sent by SPUBLISH.
    pub is_sharded: bool,
    /// The message's text.
    pub text: Vec<u8>,
}

impl Message {
    /// Returns whether front ends send this to one another, rather than to clients.
    pub fn is_of_front_ends(&self) -> bool {
        self.is_sharded && self.channel == AUDIENCE
    }
}

type Tell = Box<dyn Fn(u16, Event) + Send + Sync>;

/// Passes events to the front end. Without a front end nothing is told.
#[derive(Clone, Default)]
pub struct News(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tell: OnceLock<Tell>,
    /// The keys for which clients wait, with the number of clients.
    awaited: Mutex<HashMap<Vec<u8>, usize>>,
    awaited_keys: AtomicUsize,
    is_listened_to: AtomicBool,
    /// Somebody has subscribed to what may be events of keys.
    is_asked_of_keys: AtomicBool,
    /// The [`Notifications`] that are set.
    notifications: AtomicU16,
}

impl News {
    /// Sets the function that is told of each event, with its partition.
    pub fn tell(&self, tell: impl Fn(u16, Event) + Send + Sync + 'static) {
        // A replica has one front end, so this is set once.
        let _ = self.0.tell.set(Box::new(tell));
    }

    /// Counts one more client that waits for a key. Changes after this call are told.
    pub fn wait_for(&self, key: &[u8]) {
        let mut awaited = self.awaited();
        *awaited.entry(key.to_vec()).or_default() += 1;
        self.0.awaited_keys.store(awaited.len(), Ordering::SeqCst);
    }

    /// Counts one client less that waits for a key.
    pub fn forget(&self, key: &[u8]) {
        let mut awaited = self.awaited();
        if let Some(count) = awaited.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                awaited.remove(key);
            }
        }
        self.0.awaited_keys.store(awaited.len(), Ordering::SeqCst);
    }

    /// Says whether anybody has subscribed to anything.
    pub fn listen(&self, listens: bool) {
        self.0.is_listened_to.store(listens, Ordering::SeqCst);
    }

    /// Says whether anybody has subscribed to what may be events of keys.
    pub fn listen_to_keys(&self, listens: bool) {
        self.0.is_asked_of_keys.store(listens, Ordering::SeqCst);
    }

    /// Returns the classes of events that are set, as far as this replica has executed the log.
    pub fn notifications(&self) -> Notifications {
        let bits = self.0.notifications.load(Ordering::SeqCst);
        Notifications::of_bits(bits).unwrap_or_default()
    }

    pub(super) fn notify(&self, notifications: Notifications) {
        let bits = notifications.bits();
        self.0.notifications.store(bits, Ordering::SeqCst);
    }

    fn awaited(&self) -> MutexGuard<'_, HashMap<Vec<u8>, usize>> {
        self.0
            .awaited
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The means by which one partition tells news.
#[derive(Clone, Default)]
pub(super) struct Voice {
    pub home: Home,
    pub news: News,
}

impl Voice {
    pub fn is_awaited(&self) -> bool {
        self.news.0.awaited_keys.load(Ordering::SeqCst) > 0
    }

    pub fn is_listened_to(&self) -> bool {
        self.news.0.is_listened_to.load(Ordering::SeqCst)
    }

    /// Returns the events of keys that the servers are to tell at present.
    pub fn wanted(&self) -> Notifications {
        match self.news.0.is_asked_of_keys.load(Ordering::SeqCst) {
            true => self.news.notifications(),
            false => Notifications::default(),
        }
    }

    /// Tells that a key may change, if somebody waits for it.
    pub fn changed(&self, key: &[u8]) {
        if self.is_awaited() && self.news.awaited().contains_key(key) {
            self.say(Event::Changed(key.to_vec()));
        }
    }

    pub fn any_changed(&self) {
        if self.is_awaited() {
            self.say(Event::AnyChanged);
        }
    }

    pub fn leapt(&self) {
        self.say(Event::Leapt);
    }

    pub fn publish(&self, message: Message) {
        if self.is_listened_to() || message.is_of_front_ends() {
            self.say(Event::Message(message));
        }
    }

    /// Tells of a message that a server has reported.
    pub fn heard(&self, told: &[u8]) {
        let told = Value::parse(told);
        let items = told.as_ref().map_or(&[][..], Value::items);
        let [kind, _, channel, text] = items else {
            return;
        };
        if let (Some(b"pmessage"), Some(channel), Some(text)) =
            (kind.text(), channel.text(), text.text())
        {
            let sharded = channel.strip_prefix(SHARDED);
            let message = Message {
                channel: sharded.unwrap_or(channel).to_vec(),
                is_sharded: sharded.is_some(),
                text: text.to_vec(),
            };
            if !message.is_of_front_ends() && !notifications::is_own(&message.channel) {
                self.publish(message);
            }
        }
    }

    fn say(&self, event: Event) {
        if let Some(tell) = self.news.0.tell.get() {
            tell(self.home.pid, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice() -> (Voice, Arc<Mutex<Vec<Event>>>) {
        let (voice, told) = (Voice::default(), Arc::<Mutex<Vec<Event>>>::default());
        let heard = told.clone();
        voice
            .news
            .tell(move |_, event| heard.lock().unwrap().push(event));
        (voice, told)
    }

    #[test]
    fn only_keys_for_which_somebody_waits_are_told() {
        let (voice, told) = voice();
        voice.changed(b"k");
        voice.any_changed();
        voice.news.wait_for(b"k");
        voice.news.wait_for(b"k");
        voice.changed(b"other");
        voice.changed(b"k");
        voice.news.forget(b"k");
        voice.any_changed();
        voice.news.forget(b"k");
        voice.changed(b"k");
        voice.any_changed();
        let expected = [Event::Changed(b"k".to_vec()), Event::AnyChanged];
        assert_eq!(*told.lock().unwrap(), expected);
    }

    #[test]
    fn messages_are_told_while_somebody_listens() {
        let (voice, told) = voice();
        let by_script = b"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        voice.heard(by_script);
        voice.news.listen(true);
        voice.heard(by_script);
        voice.heard(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n");
        let shard = b"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$17\r\nwirepaxos:shard:c\r\n$0\r\n\r\n";
        voice.heard(shard);
        let forged = b"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$34\r\n\
                       wirepaxos:shard:wirepaxos:audience\r\n$0\r\n\r\n";
        voice.heard(forged);
        let own =
            b"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$22\r\n__keyspace@1__:records\r\n$4\r\nhset\r\n";
        voice.heard(own);
        let message = |is_sharded, text: &[u8]| {
            Event::Message(Message {
                channel: b"c".to_vec(),
                is_sharded,
                text: text.to_vec(),
            })
        };
        assert_eq!(
            *told.lock().unwrap(),
            [message(false, b"hi"), message(true, b"")]
        );
    }

    #[test]
    fn nothing_is_wanted_of_keys_unless_it_is_set_and_somebody_asks() {
        let (voice, _) = voice();
        let all = Notifications::of_bits(3).unwrap();
        voice.news.notify(all);
        assert_eq!(voice.wanted(), Notifications::default());
        voice.news.listen_to_keys(true);
        assert_eq!(voice.wanted(), all);
        voice.news.notify(Notifications::default());
        assert_eq!(voice.wanted(), Notifications::default());
    }
}
