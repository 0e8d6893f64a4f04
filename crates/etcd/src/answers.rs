// SPDX-License-Identifier: Apache-2.0
//! What etcd answers, as JSON. Bytes are in base64, and 64-bit numbers are text; fields that are
//! empty, false or zero are left out. An answer without etcd's header is somebody else's.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Lease, Swap};

/// The result of parsing an answer; the error says what is wrong with it.
type Parsed<T> = Result<T, String>;

pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decoded(text: &str) -> Parsed<Vec<u8>> {
    let decoded = STANDARD.decode(text);
    decoded.map_err(|e| format!("a value isn't in base64: {e}"))
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Parsed<T> {
    serde_json::from_slice(body).map_err(|e| format!("the answer isn't etcd's: {e}"))
}

fn number<T: std::str::FromStr>(text: &str) -> Parsed<T> {
    let number = text.parse();
    number.map_err(|_| format!("{text:?} isn't a number"))
}

/// Every answer has one. Its fields don't matter.
#[derive(Deserialize)]
struct Header {}

#[derive(Deserialize)]
struct Range {
    #[serde(rename = "header")]
    _header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    value: String,
}

impl Range {
    fn value(&self) -> Parsed<Option<Vec<u8>>> {
        match &self.kvs[..] {
            [] => Ok(None),
            [found] => decoded(&found.value).map(Some),
            _ => Err("the answer has more than one key".to_owned()),
        }
    }
}

/// Returns the value of the one key that was asked for, if it is there.
pub(crate) fn value(body: &[u8]) -> Parsed<Option<Vec<u8>>> {
    parsed::<Range>(body)?.value()
}

#[derive(Deserialize)]
struct Transaction {
    #[serde(rename = "header")]
    _header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Deserialize)]
struct Response {
    response_range: Option<Range>,
}

/// Returns the end of a compare-and-swap, whose failure asks for the value that is there.
pub(crate) fn swap(body: &[u8]) -> Parsed<Swap> {
    let answer: Transaction = parsed(body)?;
    if answer.succeeded {
        return Ok(Swap::Done);
    }
    match &answer.responses[..] {
        [
            Response {
                response_range: Some(range),
            },
        ] => Ok(Swap::Other(range.value()?)),
        _ => Err("the answer lacks the value that is there".to_owned()),
    }
}

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "header")]
    _header: Header,
    #[serde(rename = "ID")]
    id: String,
    /// Left out if the lease has ended.
    #[serde(rename = "TTL", default)]
    ttl_s: String,
}

impl Granted {
    fn lease(&self) -> Parsed<Lease> {
        let ttl_s = match &self.ttl_s[..] {
            "" => 0,
            text => number(text)?,
        };
        let id = number(&self.id)?;
        Ok(Lease { id, ttl_s })
    }
}

/// Returns the lease that was granted.
pub(crate) fn granted(body: &[u8]) -> Parsed<Lease> {
    let lease = parsed::<Granted>(body)?.lease()?;
    match lease.ttl_s {
        0 => Err("the lease ends at once".to_owned()),
        _ => Ok(lease),
    }
}

#[derive(Deserialize)]
struct Renewed {
    result: Granted,
}

/// Returns whether a lease was renewed; otherwise it had ended.
pub(crate) fn renewed(body: &[u8]) -> Parsed<bool> {
    let lease = parsed::<Renewed>(body)?.result.lease()?;
    Ok(lease.ttl_s > 0)
}

#[derive(Deserialize)]
struct Revoked {
    #[serde(rename = "header")]
    _header: Header,
}

/// Checks the answer to an end of a lease.
pub(crate) fn revoked(body: &[u8]) -> Parsed<()> {
    parsed::<Revoked>(body).map(drop)
}

#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

/// Returns the token by which etcd knows a user.
pub(crate) fn token(body: &[u8]) -> Parsed<String> {
    let token = parsed::<Authenticated>(body)?.token;
    let is_sound = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    match is_sound {
        true => Ok(token),
        false => Err("the token isn't etcd's".to_owned()),
    }
}

/// An error, as etcd tells it.
pub(crate) struct Told {
    pub error: String,
    /// The number of the error in gRPC.
    pub code: u64,
}

/// Returns the error of an answer, if it is one. The answers of renewals, which are streams, have
/// another form.
pub(crate) fn told(body: &[u8]) -> Option<Told> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let (error, code) = match answer.get("error")? {
        Value::Object(error) => (error.get("message"), error.get("grpc_code")),
        error => (Some(error), answer.get("code")),
    };
    Some(Told {
        error: error?.as_str()?.to_owned(),
        code: code.and_then(Value::as_u64).unwrap_or(0),
    })
}
