// SPDX-License-Identifier: Apache-2.0
//! The thread that keeps the record of epochs in an etcd, and by it decides which controller acts.
//!
//! Who acts holds the key `acting`, which etcd removes a few seconds after its holder ceased to
//! renew the lease. That only says who should act. A take-over writes a new term into the record,
//! and every change replaces the record as it was read: whoever acted before finds another one at
//! its next write, and stands by. [E-ETCD]

use std::time::{Duration, Instant};

use control::StoreError;
use control::register::Ballot;
use etcd::{Lease, Swap as Swapped};
use paxos::NodeId;
use serde::{Deserialize, Serialize};

use super::term::{Request, StoreThread, Swap, Term, ThreadEnd};
use crate::cluster_file::{ClusterFile, EtcdSettings, Node};
use crate::host::wait;
use crate::store::{EtcdRecord, EtcdStore, EtcdTerm, OwnFile, was_moved};
use crate::{Error, random_nonce};

/// The lease ends so long after it was renewed last, if etcd agrees. An election in etcd is over
/// before.
const TTL_S: u64 = 3;
/// How often the lease is renewed.
const RENEWAL: Duration = Duration::from_millis(500);
/// How often a controller that stands by looks who acts.
const LOOK: Duration = Duration::from_millis(250);
/// How long etcd may take for a question.
const ANSWER: Duration = Duration::from_millis(800);
/// How long it may take for a change, less than the main thread waits, and for the end of a lease,
/// which ends by itself otherwise.
const CHANGE: Duration = Duration::from_millis(900);
const REVOCATION: Duration = Duration::from_millis(200);

/// Starts the thread.
pub(super) fn start(
    cluster: &ClusterFile,
    node: &Node,
    etcd: &EtcdSettings,
) -> Result<StoreThread, Error> {
    let path = cluster.node_dir(node).join("epochs.json");
    let file = OwnFile::open(&path, cluster.cluster).map_err(|e| Error::store(e.to_string()))?;
    let store = EtcdStore::open(etcd, cluster.cluster)?;
    let acting_key = format!("{}acting", etcd.prefix);
    let (me, nonce) = (node.id, random_nonce()?);
    let members = cluster.controllers().map(|n| n.id).collect();
    StoreThread::start("etcd", move |main| {
        let mut keeper = Keeper {
            me,
            nonce,
            members,
            store,
            acting_key,
            file,
            main,
            held: None,
            last_count: 0,
            due: Instant::now(),
            trouble: None,
        };
        keeper.run();
    })
}

/// The value of the key `acting`.
#[derive(Serialize, Deserialize)]
struct Acting {
    by: NodeId,
    /// Tells processes of one controller from one another.
    nonce: u64,
}

/// What this controller holds while it acts.
struct Held {
    name: Ballot,
    record: EtcdRecord,
    /// The record as it is in etcd.
    bytes: Vec<u8>,
    lease: Lease,
    /// A time before which the lease can't end.
    lasts_until: Instant,
}

/// The thread's state.
struct Keeper {
    me: NodeId,
    nonce: u64,
    members: Vec<NodeId>,
    store: EtcdStore,
    acting_key: String,
    file: OwnFile,
    main: ThreadEnd,
    held: Option<Held>,
    /// The count of this process's last term, so that no two have one name.
    last_count: u64,
    /// The time of the next look or renewal.
    due: Instant,
    /// Why etcd or the record can't be used.
    trouble: Option<String>,
}

impl Keeper {
    fn run(&mut self) {
        while !self.main.stops() {
            let left = self.due.saturating_duration_since(Instant::now());
            // An error of poll would come again at once, and the deadlines go on in any case.
            if wait(&[self.main.bell()], Some(left)).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.take_requests();
            if Instant::now() >= self.due {
                self.turn();
            }
        }
        // Another controller may act at once.
        self.leave();
    }

    fn turn(&mut self) {
        let begun = Instant::now();
        let (acting, interval) = match self.held {
            Some(_) => (self.renew(begun), RENEWAL),
            None => (self.look(), LOOK),
        };
        let acting = match acting {
            Ok(acting) => {
                self.trouble = None;
                acting
            }
            Err(why) => {
                self.trouble = Some(why);
                self.held.as_ref().map(|_| self.me)
            }
        };
        self.due = begun + interval;
        // Whoever finds the lease gone first acts, so nobody can be named.
        let fellows = Vec::new();
        let warnings = self.trouble.clone().into_iter().collect();
        self.main.show(acting, fellows, warnings);
    }

    fn take_requests(&mut self) {
        self.main.hush();
        while let Some(request) = self.main.next_request() {
            match request {
                Request::Swap(swap) => {
                    let result = self.swap(&swap);
                    // The main thread may have given up.
                    let _ = swap.answer.send(result);
                }
                Request::Resign(term) => {
                    if self.held.as_ref().is_some_and(|held| held.name == term) {
                        self.end("a change wasn't stored in time".to_owned());
                    }
                }
                // Without fellows nobody asks for it.
                Request::HandOn(_) => {}
            }
        }
    }

    // ---- Standing by -----------------------------------------------------------------------

    /// Looks who acts, and takes over if nobody does. Returns who acts; the error says why this
    /// controller can't act.
    fn look(&mut self) -> Result<Option<NodeId>, String> {
        let found = self.store.client.get(&self.acting_key, ANSWER);
        let found = found.map_err(|e| self.with_place(&e))?;
        // A value that can't be read counts as none: it fences nobody.
        let acting = found.as_deref();
        let acting = acting.and_then(|bytes| serde_json::from_slice::<Acting>(bytes).ok());
        match acting {
            Some(Acting { by, .. }) if !self.members.contains(&by) => Err(format!(
                "node {by} acts as controller by etcd's key {}, and this cluster file has no such \
                 controller: give all nodes the same file",
                self.acting_key
            )),
            Some(Acting { by, .. }) if by != self.me => Ok(Some(by)),
            _ if !self.main.main_works() => Ok(None),
            _ => self.take_over(found.as_deref()),
        }
    }

    fn with_place(&self, why: &etcd::Failure) -> String {
        format!("{why} (key {})", self.store.key)
    }

    /// Returns the record that is there, and its value. There is none in a new cluster.
    fn find(&mut self) -> Result<Option<(Vec<u8>, EtcdRecord)>, String> {
        let found = self.store.load(ANSWER).map_err(|e| e.to_string())?;
        let Some(bytes) = found else {
            let may_begin = self.file.against_a_new_record(&self.store.key);
            return may_begin.map(|()| None).map_err(|e| e.to_string());
        };
        let record = self.store.read(&bytes);
        let record = record.map_err(|why| StoreError::from(why).to_string())?;
        match record.is_moved {
            true => Err(was_moved(&self.store.key).to_string()),
            false => Ok(Some((bytes, record))),
        }
    }

    /// Takes the key `acting`, then begins a term in the record. Returns who acts then; if another
    /// controller was quicker, nobody is known.
    fn take_over(&mut self, acting: Option<&[u8]>) -> Result<Option<NodeId>, String> {
        let found = self.find()?;
        let begun = Instant::now();
        let lease = self.store.client.grant(TTL_S, ANSWER);
        let lease = lease.map_err(|e| self.with_place(&e))?;
        let own = Acting {
            by: self.me,
            nonce: self.nonce,
        };
        let own = serde_json::to_vec(&own).map_err(|e| e.to_string())?;
        let (client, key) = (&mut self.store.client, &self.acting_key);
        let taken = client.swap(key, acting, &own, Some(lease.id), ANSWER);
        let begins = match taken {
            Ok(Swapped::Done) => self.begin(found, lease, begun),
            Ok(Swapped::Other(_)) => Ok(None),
            Err(e) => Err(self.with_place(&e)),
        };
        if !matches!(begins, Ok(Some(_))) {
            // Otherwise it ends by itself.
            let _ = self.store.client.revoke(lease.id, REVOCATION);
        }
        begins
    }

    /// Writes a new term into the record, which fences every earlier one.
    fn begin(
        &mut self,
        found: Option<(Vec<u8>, EtcdRecord)>,
        lease: Lease,
        begun: Instant,
    ) -> Result<Option<NodeId>, String> {
        let (expected, record) = found.unzip();
        let count = record.as_ref().map_or(0, |r: &EtcdRecord| r.term.count);
        let term = EtcdTerm {
            count: 1 + count.max(self.last_count),
            by: self.me,
            nonce: random_nonce().map_err(|e| e.to_string())?,
        };
        let record = EtcdRecord {
            cluster: self.store.cluster,
            term,
            is_moved: false,
            groups: record.map(|r| r.groups).unwrap_or_default(),
        };
        let bytes = record.bytes().map_err(|e| e.to_string())?;
        match self.store.swap(expected.as_deref(), &bytes, ANSWER) {
            Ok(()) => {}
            Err(StoreError::Conflict) => return Ok(None),
            Err(why) => return Err(why.to_string()),
        }
        self.file
            .note_that_etcd_has_it()
            .map_err(|e| e.to_string())?;
        self.last_count = term.count;
        let name = Ballot {
            count: term.count,
            by: self.me,
        };
        let states = record.groups.clone();
        self.held = Some(Held {
            name,
            record,
            bytes,
            lease,
            lasts_until: begun + Duration::from_secs(lease.ttl_s),
        });
        self.main.begin(Term { name, states });
        Ok(Some(self.me))
    }

    // ---- Acting ----------------------------------------------------------------------------

    /// Renews the lease while the main thread works, and ends the term if the lease may have ended.
    fn renew(&mut self, now: Instant) -> Result<Option<NodeId>, String> {
        let (works, me) = (self.main.main_works(), self.me);
        let Some(held) = &mut self.held else {
            return Ok(None);
        };
        let mut renewed = Ok(true);
        if works {
            renewed = self.store.client.renew(held.lease.id, ANSWER);
        }
        match renewed {
            Ok(true) if works => held.lasts_until = now + Duration::from_secs(held.lease.ttl_s),
            Ok(false) => {
                self.end("etcd has ended its lease".to_owned());
                return Ok(None);
            }
            _ => {}
        }
        let is_over = self
            .held
            .as_ref()
            .is_some_and(|h| Instant::now() >= h.lasts_until);
        let why = renewed.err().map(|e| self.with_place(&e));
        if is_over {
            let late = "the controller's main thread hangs".to_owned();
            self.end(why.clone().unwrap_or(late));
        }
        match why {
            Some(why) => Err(why),
            None => Ok((!is_over).then_some(me)),
        }
    }

    /// Replaces the record by one with this change. If another one is there, or nobody knows
    /// whether the change is stored, the term is over: whoever acts next reads what is there.
    fn swap(&mut self, swap: &Swap) -> Result<(), StoreError> {
        let failed = |why: &str| StoreError::Failed(why.to_owned());
        let held = self.held.as_mut().filter(|held| held.name == swap.term);
        let Some(held) = held else {
            return Err(failed("this controller doesn't act any more"));
        };
        let known = held.record.groups.get(&swap.group);
        if known.map_or(0, |state| state.version) != swap.expected {
            return Err(StoreError::Conflict);
        }
        let left = CHANGE.saturating_sub(swap.since.elapsed());
        if left.is_zero() {
            return Err(failed("etcd doesn't answer in time"));
        }
        let mut record = held.record.clone();
        record.groups.insert(swap.group, swap.state.clone());
        let bytes = record.bytes()?;
        match self.store.swap(Some(&held.bytes), &bytes, left) {
            Ok(()) => {
                (held.record, held.bytes) = (record, bytes);
                Ok(())
            }
            Err(StoreError::Conflict) => {
                self.end(format!(
                    "another one has written etcd's key {}",
                    self.store.key
                ));
                Err(StoreError::Conflict)
            }
            Err(why) => {
                self.end(why.to_string());
                Err(why)
            }
        }
    }

    fn end(&mut self, why: String) {
        self.main.end(why);
        self.leave();
    }

    /// Lets the lease go, so that nobody needs to wait for its end.
    fn leave(&mut self) {
        if let Some(held) = self.held.take() {
            let _ = self.store.client.revoke(held.lease.id, REVOCATION);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{ApplicationKind, Draft, Role};
    use crate::test_dir::TestDir;
    use control::{GroupState, Store};
    use test_world::etcd::Etcd;

    const PATIENCE: Duration = Duration::from_secs(40);
    const PREFIX: &str = "/test/";

    /// Returns a cluster with two controllers.
    fn cluster(etcd: &Etcd, directory: &TestDir) -> ClusterFile {
        let mut draft = Draft::on_loopback(directory.path(), ApplicationKind::Echo).unwrap();
        draft.controller.get_or_insert_default().etcd = Some(EtcdSettings {
            endpoints: vec![etcd.endpoint()],
            prefix: PREFIX.to_owned(),
            user: None,
            password_file: None,
            ca: None,
            certificate: None,
            key: None,
        });
        let host = draft.nodes[0].address.ip();
        draft.add_nodes(&[(Role::Controller, 1)], host);
        let cluster = draft.check().unwrap();
        for node in cluster.controllers() {
            std::fs::create_dir_all(cluster.node_dir(node)).unwrap();
        }
        cluster
    }

    /// Waits until one of these controllers acts, whose main threads all work.
    fn acts(thread: &StoreThread, working: &[&StoreThread]) -> Term {
        let since = Instant::now();
        loop {
            working.iter().for_each(|thread| thread.works());
            if let Some(term) = thread.term() {
                return term;
            }
            assert!(
                since.elapsed() < PATIENCE,
                "{:?}",
                thread.standing().warnings
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn state(version: u64) -> GroupState {
        GroupState {
            version,
            ..GroupState::default()
        }
    }

    /// What fences is the record: a controller whose lease still runs can't write once another has
    /// taken over. [E-ETCD]
    #[test]
    fn whoever_acted_before_cannot_write_although_its_lease_runs() {
        let Some(mut etcd) = Etcd::new() else {
            return;
        };
        etcd.start(&[]);
        let directory = TestDir::new();
        let cluster = cluster(&etcd, &directory);
        let settings = cluster.controller.etcd.clone().unwrap();
        let threads = cluster
            .controllers()
            .map(|node| start(&cluster, node, &settings));
        let threads: Vec<StoreThread> = threads.map(Result::unwrap).collect();
        let (first, second) = (&threads[0], &threads[1]);
        let mut earlier = first.store(acts(first, &[first]));
        assert_eq!(earlier.swap(0, 0, &state(1)), Ok(()));
        assert_eq!(earlier.swap(0, 0, &state(1)), Err(StoreError::Conflict));

        // The key says nobody any more, as if the lease had lied.
        let mut client = etcd::Client::open(&settings.client()).unwrap();
        let key = format!("{PREFIX}acting");
        let acting = client.get(&key, PATIENCE).unwrap();
        let freed = client.swap(&key, acting.as_deref(), b"nobody", None, PATIENCE);
        assert_eq!(freed, Ok(Swapped::Done));
        let term = acts(second, &[first, second]);
        assert_eq!(term.states[&0], state(1));
        let mut later = second.store(term);
        assert_eq!(earlier.swap(0, 1, &state(2)), Err(StoreError::Conflict));
        assert_eq!(later.swap(0, 1, &state(2)), Ok(()));
        let since = Instant::now();
        while first.term().is_some() {
            assert!(since.elapsed() < PATIENCE, "it stands by");
        }
        let why = first.standing().ended.unwrap();
        assert!(why.contains("another one has written"), "{why}");
    }
}
