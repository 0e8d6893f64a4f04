// SPDX-License-Identifier: Apache-2.0
//! Certificates for tests, made by the program `openssl` as an operator makes them.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An authority and what it has signed, in a directory of its own, which is removed when this is
/// dropped.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Creates the authority `ca.pem`, or prints that `openssl` isn't installed and returns `None`.
    pub fn new(name: &str) -> Option<Certificates> {
        let version = Command::new("openssl").arg("version").output();
        if version.is_err() {
            println!("SKIPPED: openssl is not installed (./dev setup installs it)");
            return None;
        }
        let directory = format!("wirepaxos-certificates-{}-{name}", std::process::id());
        let all = Certificates(std::env::temp_dir().join(directory));
        let _ = fs::remove_dir_all(&all.0);
        fs::create_dir_all(&all.0).unwrap();
        all.authority("ca");
        Some(all)
    }

    /// Returns the path of one of the files.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Creates another authority, `NAME.pem` with `NAME.key`.
    pub fn authority(&self, name: &str) {
        let (key, pem) = (format!("{name}.key"), format!("{name}.pem"));
        self.key(name);
        self.openssl(&[
            "req",
            "-x509",
            "-new",
            "-key",
            &key,
            "-out",
            &pem,
            "-days",
            "3650",
            "-subj",
            &format!("/CN={name}"),
        ]);
    }

    /// Creates `NAME.pem` with `NAME.key`, signed by the authority `by`, for 127.0.0.1 and
    /// localhost.
    pub fn sign(&self, name: &str, by: &str) {
        self.sign_for(name, by, Ipv4Addr::LOCALHOST);
    }

    /// Signs a certificate for another address.
    pub fn sign_for(&self, name: &str, by: &str, address: Ipv4Addr) {
        self.request(name, &format!("/CN={name}"));
        self.sign_request(name, by, address);
    }

    /// Signs a certificate of nobody by name, as etcd asks for from clients that tell their user.
    pub fn sign_without_name(&self, name: &str, by: &str) {
        self.request(name, "/O=tests");
        self.sign_request(name, by, Ipv4Addr::LOCALHOST);
    }

    fn sign_request(&self, name: &str, by: &str, address: Ipv4Addr) {
        let extensions =
            format!("subjectAltName=IP:{address},DNS:localhost\nbasicConstraints=CA:FALSE\n");
        fs::write(self.path("extensions"), extensions).unwrap();
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &format!("{name}.csr"),
            "-CA",
            &format!("{by}.pem"),
            "-CAkey",
            &format!("{by}.key"),
            "-CAcreateserial",
            "-days",
            "365",
            "-extfile",
            "extensions",
            "-out",
            &format!("{name}.pem"),
        ]);
    }

    /// Signs a certificate by `ca` that was valid in 2020 only.
    pub fn sign_expired(&self, name: &str) {
        self.request(name, &format!("/CN={name}"));
        let configuration = "[ca]\ndefault_ca = own\n[own]\ndatabase = index\nserial = \
                             numbers\nnew_certs_dir = .\n\
             certificate = ca.pem\nprivate_key = ca.key\ndefault_md = sha256\npolicy = any\n\
             x509_extensions = more\n[any]\ncommonName = supplied\n[more]\nbasicConstraints = \
                             CA:FALSE\n\
             subjectAltName = IP:127.0.0.1,DNS:localhost\n";
        fs::write(self.path("ca.cnf"), configuration).unwrap();
        fs::write(self.path("index"), "").unwrap();
        fs::write(self.path("numbers"), "01\n").unwrap();
        self.openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            "ca.cnf",
            "-in",
            &format!("{name}.csr"),
            "-out",
            &format!("{name}.pem"),
            "-startdate",
            "20200101000000Z",
            "-enddate",
            "20201231000000Z",
        ]);
    }

    fn request(&self, name: &str, subject: &str) {
        self.key(name);
        self.openssl(&[
            "req",
            "-new",
            "-key",
            &format!("{name}.key"),
            "-out",
            &format!("{name}.csr"),
            "-subj",
            subject,
        ]);
    }

    fn key(&self, name: &str) {
        let key = format!("{name}.key");
        self.openssl(&[
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-out",
            &key,
        ]);
        set_mode(&self.path(&key), 0o600);
    }

    /// Runs `openssl` in the directory.
    pub fn openssl(&self, arguments: &[&str]) {
        let mut command = Command::new("openssl");
        let ran = command
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::null())
            .output();
        let ran = ran.unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "openssl {arguments:?}: {said}");
    }
}

/// Says who may read a file.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
