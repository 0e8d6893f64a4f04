// SPDX-License-Identifier: Apache-2.0
//! Asks etcd's members in turn.

use std::time::{Duration, Instant};

use keys::Error;
use serde_json::{Value, json};

use crate::answers::{self, Told, encoded};
use crate::connection::Connection;
use crate::{Failure, Lease, Settings, Swap};

/// The error of a token that etcd doesn't know any more, as after its restart.
const UNAUTHENTICATED: u64 = 16;
/// The errors that another member may not have: it is unavailable, its answer is late, or it has
/// an error of its own.
const OF_ONE_MEMBER: [u64; 4] = [4, 10, 13, 14];

/// So much is told of an error that isn't etcd's.
const MAX_TEXT: usize = 200;

/// A client of one etcd. It connects when it is first used.
pub struct Client {
    settings: Settings,
    connection: Connection,
    /// The endpoint that is asked first, since it has answered last.
    at: usize,
    /// The token by which etcd knows the user.
    token: Option<String>,
}

/// Why a request to one endpoint failed.
enum Why {
    /// Another endpoint may do better.
    Unanswered(String),
    /// etcd wants to be told the user again.
    UnknownToken(String),
    Refused(String),
}

impl Client {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// If a file can't be read or used.
    pub fn open(settings: &Settings) -> Result<Client, Error> {
        Ok(Client {
            connection: Connection::open(settings)?,
            settings: settings.clone(),
            at: 0,
            token: None,
        })
    }

    /// Returns the value of a key, if it is there: the newest that any member has acknowledged.
    ///
    /// # Errors
    /// If etcd doesn't answer within `patience`, or refuses.
    pub fn get(&mut self, key: &str, patience: Duration) -> Result<Option<Vec<u8>>, Failure> {
        self.call("kv/range", &range(key), answers::value, patience)
    }

    /// Replaces the value of a key if it is `expected`, where `None` stands for a missing key. With
    /// a lease the key is removed when that ends. If an earlier request did the same and its answer
    /// was lost, the swap is done.
    ///
    /// # Errors
    /// If etcd doesn't answer within `patience`, or refuses.
    pub fn swap(
        &mut self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        lease: Option<i64>,
        patience: Duration,
    ) -> Result<Swap, Failure> {
        let mut put = json!({ "key": encoded(key.as_bytes()), "value": encoded(value) });
        if let Some(lease) = lease {
            put["lease"] = lease.to_string().into();
        }
        let body = json!({
            "compare": [compare(key, expected)],
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": range(key) }],
        });
        match self.call("kv/txn", &body, answers::swap, patience)? {
            Swap::Other(Some(found)) if found == value => Ok(Swap::Done),
            end => Ok(end),
        }
    }

    /// Begins a lease of about this many seconds; etcd may choose more.
    ///
    /// # Errors
    /// If etcd doesn't answer within `patience`, or refuses.
    pub fn grant(&mut self, ttl_s: u64, patience: Duration) -> Result<Lease, Failure> {
        let body = json!({ "TTL": ttl_s.to_string() });
        self.call("lease/grant", &body, answers::granted, patience)
    }

    /// Renews a lease. Returns false if it has ended.
    ///
    /// # Errors
    /// If etcd doesn't answer within `patience`, or refuses.
    pub fn renew(&mut self, lease: i64, patience: Duration) -> Result<bool, Failure> {
        let body = json!({ "ID": lease.to_string() });
        self.call("lease/keepalive", &body, answers::renewed, patience)
    }

    /// Ends a lease, and so removes its keys.
    ///
    /// # Errors
    /// If etcd doesn't answer within `patience`, or refuses, as it does if the lease has ended.
    pub fn revoke(&mut self, lease: i64, patience: Duration) -> Result<(), Failure> {
        let body = json!({ "ID": lease.to_string() });
        self.call("lease/revoke", &body, answers::revoked, patience)
    }

    /// Asks each endpoint at most once, beginning with the one that has answered last. With several
    /// none gets more than half of the time, so that one that hangs doesn't hide the next.
    fn call<T>(
        &mut self,
        path: &str,
        body: &Value,
        parse: impl Fn(&[u8]) -> Result<T, String>,
        patience: Duration,
    ) -> Result<T, Failure> {
        let end = Instant::now() + patience;
        let count = self.settings.endpoints.len();
        let body = body.to_string();
        let mut failures = Vec::new();
        self.follow_files();
        for _ in 0..count {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let share = if count > 1 {
                left.min(patience / 2)
            } else {
                left
            };
            match self.ask_as_user(path, &body, share) {
                Ok(answer) => match parse(&answer) {
                    Ok(parsed) => return Ok(parsed),
                    Err(why) => failures.push(self.of_endpoint(&why)),
                },
                Err(Why::Refused(why) | Why::UnknownToken(why)) => {
                    return Err(Failure::Refused(why));
                }
                Err(Why::Unanswered(why)) => failures.push(self.of_endpoint(&why)),
            }
            self.at = (self.at + 1) % count;
        }
        Err(Failure::Unanswered(failures.join("; ")))
    }

    fn of_endpoint(&self, why: &str) -> String {
        format!("{}: {why}", self.settings.endpoints[self.at])
    }

    /// Reads files again that have been replaced. Files that can't be used change nothing.
    fn follow_files(&mut self) {
        if self.connection.is_outdated(&self.settings) {
            if let Ok(connection) = Connection::open(&self.settings) {
                self.connection = connection;
                self.token = None;
            }
        }
    }

    /// Asks the endpoint whose turn it is, and tells it the user first if it doesn't know the
    /// token, as after a restart.
    fn ask_as_user(&mut self, path: &str, body: &str, patience: Duration) -> Result<Vec<u8>, Why> {
        let end = Instant::now() + patience;
        if self.token.is_some() || self.settings.user.is_none() {
            match self.ask(path, body, patience) {
                Err(Why::UnknownToken(_)) if self.settings.user.is_some() => {}
                end => return end,
            }
        }
        let left = || end.saturating_duration_since(Instant::now());
        self.log_in(left())?;
        self.ask(path, body, left())
    }

    fn log_in(&mut self, patience: Duration) -> Result<(), Why> {
        self.token = None;
        let body = json!({ "name": self.settings.user, "password": self.connection.password });
        let answer = self.ask("auth/authenticate", &body.to_string(), patience)?;
        self.token = Some(answers::token(&answer).map_err(Why::Unanswered)?);
        Ok(())
    }

    fn ask(&self, path: &str, body: &str, patience: Duration) -> Result<Vec<u8>, Why> {
        let endpoint = self.settings.endpoints[self.at].trim_end_matches('/');
        let url = format!("{endpoint}/v3/{path}");
        let token = self.token.as_deref();
        let answer = self.connection.post(&url, token, body.as_bytes(), patience);
        let answer = answer.map_err(Why::Unanswered)?;
        match (answers::told(&answer.body), answer.status) {
            (Some(told), status) => Err(why(told, status)),
            (None, 200) => Ok(answer.body),
            (None, status) => {
                let text = String::from_utf8_lossy(&answer.body);
                let text: String = text.trim().chars().take(MAX_TEXT).collect();
                Err(Why::Unanswered(format!("HTTP status {status}: {text:?}")))
            }
        }
    }
}

/// Returns why a request failed, by the error that etcd tells.
fn why(told: Told, status: u16) -> Why {
    let is_stale = told.code == UNAUTHENTICATED || told.error.contains("auth store is old");
    if is_stale {
        Why::UnknownToken(told.error)
    } else if OF_ONE_MEMBER.contains(&told.code) || status >= 500 {
        Why::Unanswered(told.error)
    } else if told.error.contains("user name is empty") {
        Why::Refused(format!(
            "{}: name a `user` and a `password_file`",
            told.error
        ))
    } else {
        Why::Refused(told.error)
    }
}

fn range(key: &str) -> Value {
    json!({ "key": encoded(key.as_bytes()) })
}

/// Returns the condition that a key has this value. A value that was never read twice is safer than
/// a revision, which a restored etcd counts again.
fn compare(key: &str, expected: Option<&[u8]>) -> Value {
    let key = encoded(key.as_bytes());
    match expected {
        Some(value) => json!({
            "key": key, "target": "VALUE", "result": "EQUAL", "value": encoded(value),
        }),
        None => json!({
            "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0",
        }),
    }
}
