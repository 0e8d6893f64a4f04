// SPDX-License-Identifier: Apache-2.0
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, version};
use test_world::Rng;
use test_world::certificates::{Certificates, set_mode};

use super::*;

/// Makes an authority and a server's certificate for one test.
fn certificates(name: &str) -> Option<Certificates> {
    let all = Certificates::new(name)?;
    all.sign("server", "ca");
    Some(all)
}

fn files(all: &Certificates, client_ca: Option<&str>) -> Files {
    Files {
        certificate: all.path("server.pem"),
        key: all.path("server.key"),
        client_ca: client_ca.map(|name| all.path(name)),
    }
}

/// Returns a client that trusts an authority and shows the certificate `shows`.pem, if there is
/// one.
fn client(all: &Certificates, trusts: &str, shows: Option<&str>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    let read = |name: &str| CertificateDer::from_pem_file(all.path(&format!("{name}.pem")));
    roots.add(read(trusts).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match shows {
        None => config.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(all.path(&format!("{name}.key"))).unwrap();
            let own = vec![read(name).unwrap()];
            config.with_client_auth_cert(own, key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// Returns the bytes that the client has to send.
fn leaving(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Passes messages between both sides until both are silent. Returns what the client has said, or
/// why the server ended the session.
fn talk(server: &mut TlsSession, client: &mut ClientConnection) -> Result<Vec<u8>, Failure> {
    let mut said = Vec::new();
    loop {
        let bytes = leaving(client);
        let received = server.receive(&bytes, |more| said.extend_from_slice(more));
        let mut answer = Vec::new();
        server.flush(&mut answer).unwrap();
        received?;
        if bytes.is_empty() && answer.is_empty() {
            return Ok(said);
        }
        let mut answer = &answer[..];
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            // The client tells the server what it refuses.
            let _ = client.process_new_packets();
        }
    }
}

#[test]
fn a_server_and_a_client_understand_each_other() {
    let Some(all) = certificates("talk") else {
        return;
    };
    all.sign("some", "ca");
    for client_ca in [None, Some("ca.pem")] {
        let mut server = Server::open(files(&all, client_ca)).unwrap();
        let mut session = server.session().unwrap();
        let mut client = client(&all, "ca", client_ca.map(|_| "some"));
        assert!(session.is_handshaking());
        talk(&mut session, &mut client).unwrap();
        assert!(!session.is_handshaking());
        // This is more than a record, in small pieces.
        let request = vec![7; 3 * RECORD_LEN];
        io::Write::write_all(&mut client.writer(), &request).unwrap();
        let mut said = Vec::new();
        for piece in leaving(&mut client).chunks(100) {
            session
                .receive(piece, |more| said.extend_from_slice(more))
                .unwrap();
        }
        assert_eq!(said, request);
        assert_eq!(session.send(&request), RECORD_LEN);
        assert!(!session.is_flushed());
        talk(&mut session, &mut client).unwrap();
        let mut answer = vec![0; RECORD_LEN];
        io::Read::read_exact(&mut client.reader(), &mut answer).unwrap();
        assert!(answer == request[..RECORD_LEN] && session.is_flushed());
        // There is no ticket by which the session could be resumed.
        assert_eq!(client.tls13_tickets_received(), 0);
        client.send_close_notify();
        assert!(!session.is_at_end());
        talk(&mut session, &mut client).unwrap();
        assert!(session.is_at_end());
    }
}

#[test]
fn who_is_refused_is_told_why_in_words() {
    let Some(all) = certificates("refused") else {
        return;
    };
    all.authority("other");
    all.sign("some", "ca");
    all.sign("stranger", "other");
    all.sign_expired("old");
    let why = |client_ca, trusts: &str, shows| {
        let mut server = Server::open(files(&all, client_ca)).unwrap();
        let mut session = server.session().unwrap();
        let ended = talk(&mut session, &mut client(&all, trusts, shows));
        ended.unwrap_err().to_string()
    };
    let asks = Some("ca.pem");
    let said = [
        (why(None, "other", None), "--cacert"),
        (why(asks, "ca", None), "shows no certificate"),
        (why(asks, "ca", Some("stranger")), "isn't signed by any"),
        (
            why(asks, "ca", Some("old")),
            "client's certificate has expired",
        ),
        (
            why(Some("other.pem"), "ca", Some("some")),
            "isn't signed by any",
        ),
    ];
    for (said, expected) in said {
        assert!(said.contains(expected), "{said}");
    }
    // The certificate that the server itself shows has expired.
    fs::copy(all.path("old.pem"), all.path("server.pem")).unwrap();
    fs::copy(all.path("old.key"), all.path("server.key")).unwrap();
    let said = why(None, "ca", None);
    assert!(
        said.contains("this server's certificate has expired"),
        "{said}"
    );
}

#[test]
fn what_is_no_tls_fails_whatever_it_is() {
    let Some(all) = certificates("random") else {
        return;
    };
    let mut server = Server::open(files(&all, Some("ca.pem"))).unwrap();
    let nobody = |_: &[u8]| panic!("nobody has said anything");
    let mut session = server.session().unwrap();
    assert_eq!(session.receive(b"PING\r\n", nobody), Err(Failure::Plain));
    let hello = leaving(&mut client(&all, "ca", None));
    let mut random = Rng::new(7);
    for n in 0..3_000 {
        let mut session = server.session().unwrap();
        let bytes = match n % 3 {
            0 => random.bytes(200),
            1 => [&[22, 3, 1][..], &random.bytes(200)].concat(),
            _ => {
                let mut damaged = hello.clone();
                for _ in 0..=random.next() % 4 {
                    let at = random.next() as usize % damaged.len();
                    damaged[at] = random.next() as u8;
                }
                damaged
            }
        };
        // Part of these bytes may still be a hello, but it proves no identity.
        let _ = session.receive(&bytes, nobody);
        let _ = session.receive(&random.bytes(100), nobody);
        assert!(session.is_handshaking());
        session.flush(&mut Vec::new()).unwrap();
    }
}

/// Files that can't be used are refused by name, with the problem.
#[test]
fn files_that_make_no_server_are_refused_by_name() {
    let Some(all) = certificates("files") else {
        return;
    };
    all.authority("other");
    all.sign("some", "ca");
    let good = files(&all, Some("ca.pem"));
    Server::open(good.clone()).unwrap();
    let at = |name: &str| all.path(name);
    let write = |name: &str, text: &str| {
        fs::write(at(name), text).unwrap();
        set_mode(&at(name), 0o600);
        at(name)
    };
    let refused = |files: Files, said: &[&str]| {
        let why = Server::open(files).err().unwrap().to_string();
        assert!(said.iter().all(|said| why.contains(said)), "{why}");
    };
    let certificate = |path: &Path| Files {
        certificate: path.into(),
        ..good.clone()
    };
    let key = |path: &Path| Files {
        key: path.into(),
        ..good.clone()
    };
    let ca = |path: &Path| Files {
        client_ca: Some(path.into()),
        ..good.clone()
    };
    let garbage = write("garbage", "garbage\n");
    let cut = fs::read_to_string(at("server.pem")).unwrap();
    let cut = write("cut", &cut[..cut.len() / 2]);
    let no_der = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";
    let no_der = write("no_der", no_der);
    refused(certificate(&at("none")), &["none", "can't be read"]);
    refused(
        certificate(&garbage),
        &[
            "garbage",
            "no certificate in PEM",
            "docs/operations/redis-and-tls.md",
        ],
    );
    refused(certificate(&cut), &["cut", "is no certificate"]);
    refused(certificate(&no_der), &["no_der", "can't be used"]);
    refused(
        certificate(&at("some.pem")),
        &["server.key", "isn't the private key", "some.pem"],
    );
    refused(
        key(&at("some.key")),
        &["some.key", "isn't the private key", "server.pem"],
    );
    refused(key(&at("none")), &["private key can't be read"]);
    refused(key(&garbage), &["garbage", "no private key in PEM"]);
    all.openssl(&[
        "pkey",
        "-in",
        "server.key",
        "-aes256",
        "-passout",
        "pass:x",
        "-out",
        "locked",
    ]);
    set_mode(&at("locked"), 0o600);
    refused(
        key(&at("locked")),
        &["locked", "is encrypted", "openssl pkey"],
    );
    all.openssl(&[
        "genpkey",
        "-algorithm",
        "RSA",
        "-pkeyopt",
        "rsa_keygen_bits:1024",
        "-out",
        "short",
    ]);
    set_mode(&at("short"), 0o600);
    refused(
        key(&at("short")),
        &["short", "can't be used as private key", "2,048"],
    );
    for mode in [0o640, 0o604, 0o620] {
        set_mode(&at("server.key"), mode);
        refused(
            good.clone(),
            &["server.key", "others than its owner", "chmod 600"],
        );
    }
    set_mode(&at("server.key"), 0o600);
    refused(ca(&at("none")), &["none", "can't be read"]);
    refused(ca(&garbage), &["garbage", "no certificate in PEM"]);
    refused(ca(&no_der), &["no_der", "as an authority"]);
    Server::open(ca(&at("other.pem"))).unwrap();
}

#[test]
fn files_that_are_replaced_are_read_and_bad_ones_change_nothing() {
    let Some(all) = certificates("replaced") else {
        return;
    };
    all.authority("other");
    let mut server = Server::open(files(&all, None)).unwrap();
    let mut trusted_by = |authority: &str| {
        server.config.looked -= std::time::Duration::from_secs(5);
        let mut session = server.session().unwrap();
        let talked = talk(&mut session, &mut client(&all, authority, None));
        (talked.is_ok(), server.is_in_trouble())
    };
    assert_eq!(trusted_by("ca"), (true, false));
    all.sign("next", "other");
    // The certificate is replaced first, while its key isn't there yet.
    fs::rename(all.path("next.pem"), all.path("server.pem")).unwrap();
    assert_eq!(trusted_by("ca"), (true, true));
    assert_eq!(trusted_by("ca"), (true, true));
    fs::rename(all.path("next.key"), all.path("server.key")).unwrap();
    assert_eq!(trusted_by("ca"), (false, false));
    assert_eq!(trusted_by("other"), (true, false));
    fs::remove_file(all.path("server.pem")).unwrap();
    assert_eq!(trusted_by("other"), (true, true));
}

/// Connects two nodes with the same files, and returns what one of them reads from the other.
fn between(peers: &Peers) -> io::Result<Vec<u8>> {
    let (asks, answers) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let source = scope.spawn(move || peers.answer(answers)?.write_all(b"a state"));
        let mut said = vec![0; 7];
        peers
            .ask(asks, Ipv4Addr::LOCALHOST.into())?
            .read_exact(&mut said)?;
        source.join().unwrap()?;
        Ok(said)
    })
}

/// The errors of a node point to the part of the documentation about nodes.
#[test]
fn files_that_make_no_node_are_refused_by_name() {
    let Some(all) = certificates("node-files") else {
        return;
    };
    fs::write(all.path("garbage"), "garbage\n").unwrap();
    set_mode(&all.path("garbage"), 0o600);
    let refused = |certificate, key, ca| {
        let peers = Peers::open(PeerFiles {
            certificate: all.path(certificate),
            key: all.path(key),
            ca: all.path(ca),
        });
        peers.err().unwrap().to_string()
    };
    for said in [
        refused("garbage", "server.key", "ca.pem"),
        refused("server.pem", "garbage", "ca.pem"),
        refused("server.pem", "server.key", "garbage"),
        refused("server.pem", "server.key", "none"),
    ] {
        assert!(said.contains("\"TLS for states\""), "{said}");
    }
    let clients = Server::open(files(&all, Some("garbage")));
    let said = clients.err().unwrap().to_string();
    assert!(said.contains("\"TLS for Redis clients\""), "{said}");
}

#[test]
fn nodes_follow_their_files() {
    let Some(all) = certificates("peers") else {
        return;
    };
    let peers = Peers::open(PeerFiles {
        certificate: all.path("server.pem"),
        key: all.path("server.key"),
        ca: all.path("ca.pem"),
    });
    let peers = peers.unwrap();
    assert_eq!(between(&peers).unwrap(), b"a state");
    fs::write(all.path("new"), "nothing").unwrap();
    fs::rename(all.path("new"), all.path("ca.pem")).unwrap();
    peers.followed().look();
    assert_eq!(between(&peers).unwrap(), b"a state", "those of before");
    all.authority("other");
    fs::rename(all.path("other.pem"), all.path("ca.pem")).unwrap();
    peers.followed().look();
    let why = between(&peers).unwrap_err().to_string();
    assert!(why.contains("`ca` of `state_tls`"), "{why}");
}
