// SPDX-License-Identifier: Apache-2.0
//! The etcd in which controllers keep their record of epochs, instead of their own files.

use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::Spanned;

use super::read::RawEtcd;
use super::validate::{Check, at};

/// How many members of etcd may be named.
const MAX_ENDPOINTS: usize = 9;
/// The longest prefix of keys, in bytes.
const MAX_PREFIX: usize = 200;

/// The etcd in which controllers keep their record of epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdSettings {
    /// The URLs of etcd's members.
    pub endpoints: Vec<String>,
    /// The beginning of the names of all keys.
    pub prefix: String,
    /// The user, if etcd asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The file that holds that user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The authorities of etcd's certificates; PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The certificate that controllers show; PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate; PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl EtcdSettings {
    /// Returns what a client needs.
    pub(crate) fn client(&self) -> etcd::Settings {
        etcd::Settings {
            endpoints: self.endpoints.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            ca: self.ca.clone(),
            certificate: self.certificate.clone().zip(self.key.clone()),
        }
    }

    /// Returns the settings with other paths.
    pub(super) fn with_paths(&self, change: impl Fn(&Path) -> PathBuf) -> EtcdSettings {
        let changed = |path: &Option<PathBuf>| path.as_deref().map(&change);
        EtcdSettings {
            password_file: changed(&self.password_file),
            ca: changed(&self.ca),
            certificate: changed(&self.certificate),
            key: changed(&self.key),
            ..self.clone()
        }
    }
}

impl Check {
    pub(super) fn etcd(
        &mut self,
        raw: &Spanned<RawEtcd>,
        cluster: u32,
        dir: &Path,
    ) -> EtcdSettings {
        let etcd = raw.get_ref();
        let endpoints = self.endpoints(&etcd.endpoints);
        self.pairs(raw, &endpoints);
        let mut file = |key, name: &Option<Spanned<String>>| {
            let name = name.as_ref()?;
            Some(self.file(key, name, dir))
        };
        EtcdSettings {
            password_file: file("password_file", &etcd.password_file),
            ca: file("ca", &etcd.ca),
            certificate: file("certificate", &etcd.certificate),
            key: file("key", &etcd.key),
            prefix: self.prefix(etcd.prefix.as_ref(), cluster),
            user: etcd.user.as_ref().map(|user| user.get_ref().clone()),
            endpoints,
        }
    }

    fn endpoints(&mut self, raw: &Spanned<Vec<Spanned<String>>>) -> Vec<String> {
        let all = raw.get_ref();
        if all.is_empty() || all.len() > MAX_ENDPOINTS {
            self.error(
                at(raw),
                format!("`endpoints` names {} members of etcd", all.len()),
                format!("name 1 to {MAX_ENDPOINTS}, as in [\"http://10.0.0.1:2379\"]"),
            );
        }
        for endpoint in all
            .iter()
            .filter(|endpoint| !is_endpoint(endpoint.get_ref()))
        {
            self.error(
                at(endpoint),
                format!("{:?} is no endpoint of etcd", endpoint.get_ref()),
                "write http:// or https://, a host and a port, and nothing else",
            );
        }
        all.iter()
            .map(|endpoint| endpoint.get_ref().clone())
            .collect()
    }

    fn prefix(&mut self, raw: Option<&Spanned<String>>, cluster: u32) -> String {
        let Some(raw) = raw else {
            return format!("/wirepaxos/{cluster:08x}/");
        };
        let prefix = raw.get_ref();
        let is_usable = !prefix.is_empty()
            && prefix.len() <= MAX_PREFIX
            && prefix.chars().all(|c| !c.is_control());
        if !is_usable {
            self.error(
                at(raw),
                format!("`prefix = {prefix:?}` can't begin the names of keys"),
                format!("choose 1 to {MAX_PREFIX} bytes, such as \"/wirepaxos/shop/\""),
            );
        }
        prefix.clone()
    }

    /// Checks keys of which one means nothing without the other.
    fn pairs(&mut self, raw: &Spanned<RawEtcd>, endpoints: &[String]) {
        let etcd = raw.get_ref();
        let (user, password) = (etcd.user.as_ref(), etcd.password_file.as_ref());
        let (certificate, key) = (etcd.certificate.as_ref(), etcd.key.as_ref());
        for (one, name, other, is_there) in [
            (user, "user", "password_file", password.is_some()),
            (password, "password_file", "user", user.is_some()),
            (certificate, "certificate", "key", key.is_some()),
            (key, "key", "certificate", certificate.is_some()),
        ] {
            if let Some(one) = one.filter(|_| !is_there) {
                self.error(
                    at(one),
                    format!("`{name}` means nothing without `{other}`"),
                    format!("add `{other}`, or remove it"),
                );
            }
        }
        let by_tls = endpoints.iter().any(|e| e.starts_with("https://"));
        match etcd.ca.as_ref() {
            None if by_tls => self.error(
                at(raw),
                "an endpoint is https, and there is no `ca`",
                "add `ca = \"FILE\"`, the authority that has signed etcd's certificates",
            ),
            Some(ca) if !by_tls => self.error(
                at(ca),
                "`ca` means nothing without endpoints that are https",
                "remove it, or write https:// in `endpoints`",
            ),
            _ => {}
        }
        if let Some(certificate) = certificate.filter(|_| !by_tls) {
            self.error(
                at(certificate),
                "`certificate` means nothing without endpoints that are https",
                "remove it, or write https:// in `endpoints`",
            );
        }
    }
}

/// Returns whether this is a scheme, a host and a port.
fn is_endpoint(text: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else {
        return false;
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match inside {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(is_plain),
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{ClusterFile, Draft, Role, parse};

    const SAMPLE: &str = include_str!("../../../../testdata/cluster.toml");
    const LEAST: &str = "endpoints = [\"http://10.0.0.1:2379\"]";

    fn with(keys: &str) -> Result<ClusterFile, String> {
        let text = format!("{SAMPLE}\n[controller.etcd]\n{keys}\n");
        parse(&text, "/etc/cluster.toml").map_err(|e| e.to_string())
    }

    #[test]
    fn files_lie_beside_the_cluster_file_and_the_prefix_names_the_cluster() {
        let keys = "endpoints = [\"https://a:1\", \"https://[::1]:2\"]\nuser = \"u\"\n\
                    password_file = \"p\"\nca = \"/ca.pem\"\ncertificate = \"c.pem\"\nkey = \"k\"";
        let file = with(keys).unwrap();
        let etcd = file.controller.etcd.clone().unwrap();
        assert_eq!(etcd.prefix, "/wirepaxos/5eed0001/");
        assert_eq!(etcd.password_file.as_deref(), Some(Path::new("/etc/p")));
        assert_eq!(etcd.ca.as_deref(), Some(Path::new("/ca.pem")));
        let client = etcd.client();
        assert_eq!(
            client.certificate,
            Some(("/etc/c.pem".into(), "/etc/k".into()))
        );
        let again = Draft::from(&file).check().unwrap();
        assert_eq!(again.controller, file.controller);
        let mut named = keys.to_owned();
        named.push_str("\nprefix = \"mine/\"");
        assert_eq!(
            with(&named).unwrap().controller.etcd.unwrap().prefix,
            "mine/"
        );
        let without = parse(SAMPLE, "/etc/cluster.toml").unwrap();
        assert_eq!(without.controller.etcd, None);
    }

    /// With etcd two controllers survive the loss of one, and they don't talk with one another.
    #[test]
    fn any_number_of_controllers_up_to_five_may_share_it_without_peers() {
        let mut draft = Draft::from(&with(LEAST).unwrap());
        let host = draft.nodes[0].address.ip();
        for _ in 1..5 {
            draft.add_nodes(&[(Role::Controller, 1)], host);
            let file = draft.check().unwrap();
            assert!(file.controllers().all(|node| node.peer.is_none()));
        }
        draft.add_nodes(&[(Role::Controller, 1)], host);
        let refused = draft.check().unwrap_err().to_string();
        assert!(refused.contains("take 1 to 5"), "{refused}");
    }

    #[test]
    fn wrong_settings_are_refused_with_what_to_do() {
        let least = |more: &str| format!("{LEAST}\n{more}");
        for (keys, words) in [
            ("user = \"u\"".to_owned(), "missing field `endpoints`"),
            ("endpoints = []".to_owned(), "name 1 to 9"),
            (
                "endpoints = [\"10.0.0.1:2379\"]".to_owned(),
                "http:// or https://",
            ),
            (
                "endpoints = [\"http://u:p@host:1\"]".to_owned(),
                "nothing else",
            ),
            (
                "endpoints = [\"http://host:1/x\"]".to_owned(),
                "nothing else",
            ),
            ("endpoints = [\"http://host\"]".to_owned(), "a port"),
            (
                "endpoints = [\"https://host:1\"]".to_owned(),
                "there is no `ca`",
            ),
            (least("ca = \"ca.pem\""), "without endpoints that are https"),
            (
                least("certificate = \"a\"\nkey = \"b\""),
                "without endpoints that are https",
            ),
            (least("certificate = \"a\""), "add `key`"),
            (least("user = \"u\""), "add `password_file`"),
            (least("password_file = \"p\""), "add `user`"),
            (least("password_file = \"\"\nuser = \"u\""), "name a file"),
            (least("prefix = \"\""), "can't begin"),
            (least("password = \"p\""), "unknown field `password`"),
        ] {
            let refused = with(&keys).unwrap_err();
            assert!(refused.contains(words), "{keys}: {refused}");
        }
        let peer = "role = \"controller\"\npeer = \"127.0.0.1:7999\"";
        let text = SAMPLE.replacen("role = \"controller\"", peer, 1);
        let text = format!("{text}\n[controller.etcd]\n{LEAST}\n");
        let refused = parse(&text, "x").unwrap_err().to_string();
        assert!(refused.contains("`peer` means nothing"), "{refused}");
    }
}
