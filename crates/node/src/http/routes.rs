// SPDX-License-Identifier: Apache-2.0
//! Finds the answer to a request: metrics, and at a controller the page and what it shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use control::OUTSIDE;
use paxos::NodeId;

use super::answer::Answer;
use super::cached_text::CachedText;
use super::request::Request;
use crate::cluster_file::{ClusterFile, Node, Role};
use crate::cluster_status::ClusterStatus;
use crate::control_peers::ControlPeers;
use crate::{metrics, page, status};

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The time limit for a node's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// A node answers a hundred questions a second, of which those from here must stay a small part.
const METRICS_LIFETIME: Duration = Duration::from_millis(100);
const STATUS_LIFETIME: Duration = Duration::from_millis(500);
/// How many of the last events are shown.
const EVENTS: u32 = 100;

/// What one node serves.
pub(super) struct Routes {
    cluster: ClusterFile,
    node: Node,
    names: BTreeMap<NodeId, String>,
    metrics: CachedText,
    status: CachedText,
    events: CachedText,
}

impl Routes {
    pub fn new(cluster: &ClusterFile, node: &Node) -> Routes {
        let nodes = cluster.nodes.iter();
        Routes {
            cluster: cluster.clone(),
            node: node.clone(),
            names: nodes.map(|n| (n.id, n.name.clone())).collect(),
            metrics: CachedText::new(METRICS_LIFETIME),
            status: CachedText::new(STATUS_LIFETIME),
            events: CachedText::new(STATUS_LIFETIME),
        }
    }

    pub fn answer(&self, request: &Request) -> Answer {
        let is_controller = self.node.role == Role::Controller;
        let answer = match (&*request.path, is_controller) {
            ("/metrics", _) => self.metrics(),
            ("/status.json", true) => self.status(),
            ("/events.json", true) => self.events(),
            (path, true) => page::file(path).map_or_else(
                || Answer::not_found("there are /, /metrics, /status.json and /events.json\n"),
                |(kind, text)| Answer::new(kind, text),
            ),
            (_, false) => Answer::not_found("there is /metrics; a controller has a page, too\n"),
        };
        answer.head_only(request.is_head)
    }

    fn metrics(&self) -> Answer {
        let text = self.metrics.text(|| {
            let peers = ControlPeers::new(&self.cluster, OUTSIDE);
            let answers = status::ask(&peers, &[self.node.control], ANSWER_TIMEOUT);
            let document = answers.ok()?.remove(&self.node.control)?;
            Some(metrics::text(&document, &|id| self.name(id)))
        });
        let answer = |text: Arc<str>| Answer::new(METRICS, text.to_string());
        text.map_or_else(|| Answer::unavailable("the node doesn't answer\n"), answer)
    }

    /// Returns what `wirepaxos status --json` shows.
    fn status(&self) -> Answer {
        let text = self.status.text(|| {
            let status = ClusterStatus::take(&self.cluster).ok()?;
            Some(status.to_json().ok()?.to_string())
        });
        json(text, "the nodes can't be asked\n")
    }

    fn events(&self) -> Answer {
        let text = self.events.text(|| {
            let peers = ControlPeers::new(&self.cluster, OUTSIDE);
            let events = status::ask_events(&peers, (0, EVENTS), ANSWER_TIMEOUT);
            Some(events.ok()??.to_string())
        });
        json(text, "no controller answers\n")
    }

    fn name(&self, id: u64) -> String {
        let name = NodeId::try_from(id).ok();
        let name = name.and_then(|id| self.names.get(&id));
        name.map_or_else(|| format!("node {id}"), Clone::clone)
    }
}

fn json(text: Option<Arc<str>>, why_not: &'static str) -> Answer {
    match text {
        Some(text) => Answer::json(text.to_string()),
        None => Answer::unavailable(why_not),
    }
}
