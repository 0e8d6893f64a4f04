// SPDX-License-Identifier: Apache-2.0
//! Parses TOML into records whose fields know their place in the text.

use serde::Deserialize;
use toml::Spanned;

use super::ErrorAt;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub cluster: Spanned<String>,
    pub data: Spanned<String>,
    pub trace: Option<Spanned<String>>,
    pub bpffs: Option<Spanned<String>>,
    pub keys: Option<Spanned<String>>,
    pub auth: Option<Spanned<String>>,
    pub clients: Option<Spanned<Vec<Spanned<String>>>>,
    pub state_tls: Option<RawPeerTls>,
    #[serde(default)]
    pub group: Vec<Spanned<RawGroup>>,
    #[serde(default)]
    pub node: Vec<Spanned<RawNode>>,
    pub controller: Option<RawController>,
    pub backup: Option<RawBackup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGroup {
    pub id: Spanned<i64>,
    pub protocol: Option<Spanned<String>>,
    pub partitions: Option<Spanned<i64>>,
    pub slots: Option<Spanned<i64>>,
    pub window: Option<Spanned<i64>>,
    pub max_value: Option<Spanned<i64>>,
    pub application: Spanned<String>,
    pub f: Option<Spanned<i64>>,
    pub g: Option<Spanned<i64>>,
    pub checkpoint_every: Option<Spanned<i64>>,
    pub gap_timeout_ms: Option<Spanned<i64>>,
    pub session_timeout_s: Option<Spanned<i64>>,
    pub max_answer_mib: Option<Spanned<i64>>,
    pub max_memory_mib: Option<Spanned<i64>>,
    pub answer: Option<Spanned<String>>,
    pub catch_up_mib_per_s: Option<Spanned<i64>>,
    pub catch_up_kept_mib: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub name: Spanned<String>,
    pub id: Spanned<i64>,
    pub role: Spanned<String>,
    pub address: Spanned<String>,
    pub control: Spanned<String>,
    pub peer: Option<Spanned<String>>,
    pub group: Option<Spanned<i64>>,
    pub plane: Option<Spanned<String>>,
    pub dpdk_port: Option<Spanned<String>>,
    pub dpdk_args: Option<Spanned<Vec<Spanned<String>>>>,
    pub switch: Option<Spanned<String>>,
    pub p4_control: Option<Spanned<String>>,
    pub p4_port: Option<Spanned<i64>>,
    pub storage: Option<Spanned<String>>,
    pub leaving: Option<Spanned<bool>>,
    pub redis: Option<Spanned<String>>,
    pub redis_order: Option<Spanned<String>>,
    pub redis_reads: Option<Spanned<String>>,
    pub redis_password: Option<Spanned<String>>,
    pub redis_password_file: Option<Spanned<String>>,
    pub redis_tls: Option<Spanned<RawTls>>,
    pub metrics: Option<Spanned<String>>,
    pub metrics_open: Option<Spanned<bool>>,
    pub cpu: Option<Spanned<i64>>,
    pub spin_us: Option<Spanned<i64>>,
    pub workers: Option<Spanned<i64>>,
    pub worker_cpus: Option<Spanned<Vec<Spanned<i64>>>>,
    pub directories: Option<Spanned<Vec<Spanned<String>>>>,
    pub copies: Option<Spanned<String>>,
    pub copy_every_s: Option<Spanned<i64>>,
    pub copies_kept: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPeerTls {
    pub certificate: Spanned<String>,
    pub key: Spanned<String>,
    pub ca: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub certificate: Spanned<String>,
    pub key: Spanned<String>,
    pub client_ca: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawController {
    pub probe_ms: Option<Spanned<i64>>,
    pub suspect_after: Option<Spanned<i64>>,
    pub etcd: Option<Spanned<RawEtcd>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEtcd {
    pub endpoints: Spanned<Vec<Spanned<String>>>,
    pub prefix: Option<Spanned<String>>,
    pub user: Option<Spanned<String>>,
    pub password_file: Option<Spanned<String>>,
    pub ca: Option<Spanned<String>>,
    pub certificate: Option<Spanned<String>>,
    pub key: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawBackup {
    pub directory: Spanned<String>,
    pub every_s: Option<Spanned<i64>>,
    pub keep: Option<Spanned<i64>>,
    pub archive: Option<Spanned<bool>>,
}

pub(super) fn read(text: &str) -> Result<RawFile, Vec<ErrorAt>> {
    toml::from_str(text).map_err(|error| {
        let problem = error.message().trim_end().replace('\n', ", ");
        vec![ErrorAt {
            at: error.span().map_or(0, |span| span.start),
            remedy: remedy(&problem).to_owned(),
            problem,
        }]
    })
}

/// Returns the remedy for an error of the TOML reader, according to its kind.
fn remedy(problem: &str) -> &'static str {
    if problem.starts_with("unknown field") {
        "correct its spelling or remove it"
    } else if problem.starts_with("missing field") {
        "add it; examples/cluster.toml shows every key"
    } else if problem.starts_with("invalid type") {
        "give a value of the type expected: text in quotes, numbers without"
    } else if problem.starts_with("duplicate key") {
        "remove one of the two"
    } else {
        "correct the TOML syntax; examples/cluster.toml shows every key"
    }
}
