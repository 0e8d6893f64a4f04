// SPDX-License-Identifier: Apache-2.0
//! Tests the client with a real etcd, which must understand it and answer as the scripts of its
//! unit tests say.

use std::time::{Duration, Instant};

use etcd::{Client, Failure, Settings, Swap};
use test_world::certificates::{Certificates, set_mode};
use test_world::etcd::Etcd;

const LONG: Duration = Duration::from_secs(20);

fn settings(etcd: &Etcd) -> Settings {
    Settings {
        endpoints: vec![etcd.endpoint()],
        ..Settings::default()
    }
}

/// Waits until etcd answers after its start.
fn value(client: &mut Client, key: &str) -> Option<Vec<u8>> {
    let since = Instant::now();
    loop {
        match client.get(key, LONG) {
            Ok(value) => return value,
            Err(why) => assert!(since.elapsed() < 2 * LONG, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Of two that read the same value only one replaces it, and keys with a lease end with it.
#[test]
fn a_swap_needs_the_value_that_was_read_and_a_lease_takes_its_keys_along() {
    let Some(mut etcd) = Etcd::new() else {
        return;
    };
    etcd.start(&[]);
    let mut client = Client::open(&settings(&etcd)).unwrap();
    assert_eq!(value(&mut client, "a/k"), None);
    let mut swap = |expected: Option<&[u8]>, new: &[u8]| {
        client.swap("a/k", expected, new, None, LONG).unwrap()
    };
    let other = |value: &[u8]| Swap::Other(Some(value.to_vec()));
    assert_eq!(swap(Some(b"1"), b"2"), Swap::Other(None));
    assert_eq!(swap(None, b"1"), Swap::Done);
    assert_eq!(swap(None, b"2"), other(b"1"));
    assert_eq!(swap(Some(b"1"), b"2"), Swap::Done);
    assert_eq!(swap(Some(b"1"), b"3"), other(b"2"));
    assert_eq!(swap(Some(b"1"), b"2"), Swap::Done, "it was done already");

    let lease = client.grant(60, LONG).unwrap();
    let put = client.swap("a/l", None, b"\0\xff", Some(lease.id), LONG);
    assert_eq!(put, Ok(Swap::Done));
    assert_eq!(client.renew(lease.id, LONG), Ok(true));
    assert_eq!(client.get("a/l", LONG), Ok(Some(b"\0\xff".to_vec())));
    client.revoke(lease.id, LONG).unwrap();
    assert_eq!(client.get("a/l", LONG), Ok(None));
    assert_eq!(client.renew(lease.id, LONG), Ok(false));
    let late = client.swap("a/l", None, b"v", Some(lease.id), LONG);
    assert!(matches!(late, Err(Failure::Refused(_))), "{late:?}");
}

/// Makes etcd ask for the user `wirepaxos` with the password `secret`.
fn enable_users(etcd: &Etcd) {
    etcd.post("auth/role/add", r#"{"name":"root"}"#);
    for user in ["root", "wirepaxos"] {
        let body = format!(r#"{{"name":"{user}","password":"secret"}}"#);
        etcd.post("auth/user/add", &body);
        let body = format!(r#"{{"user":"{user}","role":"root"}}"#);
        etcd.post("auth/user/grant", &body);
    }
    etcd.post("auth/enable", "{}");
}

fn start_with_tls(etcd: &mut Etcd, files: &Certificates) {
    let [certificate, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|f| files.path(f));
    etcd.use_tls();
    etcd.start(&[
        "--cert-file",
        certificate.to_str().unwrap(),
        "--key-file",
        key.to_str().unwrap(),
        "--trusted-ca-file",
        ca.to_str().unwrap(),
        "--client-cert-auth",
    ]);
}

/// Returns why a client with these settings gets no answer.
fn why(settings: &Settings) -> String {
    let end = Client::open(settings).unwrap().get("k", LONG);
    end.unwrap_err().to_string()
}

/// A client names its user and checks etcd's certificate, and etcd checks the client's. After a
/// restart of etcd, which forgets all tokens, the user is told again.
#[test]
fn passwords_and_certificates_are_asked_for() {
    let (Some(mut etcd), Some(files)) = (Etcd::new(), Certificates::new("etcd")) else {
        return;
    };
    files.sign_for("server", "ca", etcd.host());
    files.sign_without_name("client", "ca");
    etcd.start(&[]);
    enable_users(&etcd);
    assert!(why(&settings(&etcd)).contains("name a `user`"));
    etcd.kill();
    start_with_tls(&mut etcd, &files);
    let password = files.path("password");
    std::fs::write(&password, "secret\n").unwrap();
    set_mode(&password, 0o600);
    let shown = Settings {
        user: Some("wirepaxos".to_owned()),
        password_file: Some(password.clone()),
        ca: Some(files.path("ca.pem")),
        certificate: Some((files.path("client.pem"), files.path("client.key"))),
        ..settings(&etcd)
    };
    let mut client = Client::open(&shown).unwrap();
    assert_eq!(value(&mut client, "k"), None);
    etcd.kill();
    start_with_tls(&mut etcd, &files);
    assert_eq!(value(&mut client, "k"), None);
    wrong_certificates_are_refused(&shown, &files);
    // A file that is replaced is read again.
    std::fs::write(&password, "another password\n").unwrap();
    let refused = client.get("k", LONG);
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
}

fn wrong_certificates_are_refused(good: &Settings, files: &Certificates) {
    files.sign("named", "ca");
    files.authority("stranger");
    let anonymous = why(&Settings {
        certificate: None,
        ..good.clone()
    });
    assert!(anonymous.contains("doesn't answer"), "{anonymous}");
    let named = why(&Settings {
        certificate: Some((files.path("named.pem"), files.path("named.key"))),
        ..good.clone()
    });
    assert!(named.contains("CommonName"), "{named}");
    let distrusting = why(&Settings {
        ca: Some(files.path("stranger.pem")),
        ..good.clone()
    });
    assert!(distrusting.contains("UnknownIssuer"), "{distrusting}");
}
