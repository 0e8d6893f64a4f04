// SPDX-License-Identifier: Apache-2.0
// Writes the warnings, the numbers, the events and the members. All text from the cluster is set as
// text, never as HTML.

import { clock, count, lasted, leader, rate, time, told } from "/numbers.js";
import { describe } from "/picture.js";

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Returns all warnings, each with the node's name if it is one node's.
export function warningsOf(cluster) {
  const ofNodes = cluster.nodes.flatMap((node) =>
    node.warnings.map((text) => ({ who: node.name, text, isSilent: !node.up })));
  const ofAll = cluster.warnings.map((text) => ({ who: null, text, isSilent: false }));
  return [...ofNodes, ...ofAll].sort((a, b) => Number(b.isSilent) - Number(a.isSilent));
}

// Returns the judgement in a few words, and its kind.
export function verdict(cluster) {
  const silent = cluster.nodes.filter((node) => !node.up).length;
  const warned = warningsOf(cluster).length - silent;
  const many = (n, one, all) => `${n} ${n === 1 ? one : all}`;
  if (cluster.is_well) return { kind: "ok", words: "✓ all is well" };
  if (silent) return { kind: "bad", words: `✕ ${many(silent, "node is", "nodes are")} silent` };
  return { kind: "warn", words: `▲ ${many(warned, "warning", "warnings")}` };
}

export function writeWarnings(cluster, into) {
  const notices = warningsOf(cluster).map(({ who, text, isSilent }) => {
    const notice = element("p", undefined, `notice ${isSilent ? "bad" : "warn"}`);
    notice.append(element("strong", `${isSilent ? "✕" : "▲"} ${who ? `${who}: ` : ""}`), element("span", text));
    return notice;
  });
  into.hidden = notices.length === 0;
  into.replaceChildren(...notices);
}

export function writeTiles(cluster, group, last, into) {
  const own = told(cluster, group.id);
  const failover = own.last_failover;
  const kept = group.protocol === "nopaxos" ? "session" : "epoch";
  const tiles = [
    ["commands/s executed", rate(last?.executed), ""],
    last?.answer50 !== undefined && last?.answer50 !== null ? ["median answer time", time(last.answer50), ""] : null,
    [group.protocol === "nopaxos" ? "stamps" : "leads", leader(cluster, group.id)?.name ?? "nobody", "word"],
    [`${kept} in force`, count(own.active), ""],
    ["last change of leader took", time(typeof failover?.duration_us === "number" ? failover.duration_us / 1e6 : null), ""],
    ["replicas apart, instances", count(last?.lag), ""],
  ];
  into.replaceChildren(...tiles.filter(Boolean).map(([name, value, kind]) => {
    const tile = element("div", undefined, `tile ${kind}`);
    tile.append(element("strong", value), element("span", name, "quiet"));
    return tile;
  }));
}

export function writeEvents(events, into) {
  const lines = [...events].reverse().map((event) => {
    const line = element("li", undefined, event.is_warning ? "warn" : "");
    const at = element("time", clock(event.at_ms));
    at.dateTime = new Date(event.at_ms).toISOString();
    at.title = new Date(event.at_ms).toLocaleString();
    const group = typeof event.group === "number" && event.group > 0 ? `group ${event.group}: ` : "";
    line.append(element("span", event.is_warning ? "▲" : "·"), at, element("span", group + event.text));
    return line;
  });
  into.replaceChildren(...(lines.length ? lines : [element("li", "no events")]));
}

const KINDS = { silent: "bad", warned: "warn", leads: "ok", works: "ok", idle: "" };

export function writeMembers(cluster, group, into) {
  const head = element("thead");
  const titles = element("tr");
  for (const title of ["node", "state", "version", "up for", "address"]) titles.append(element("th", title));
  head.append(titles);
  const body = element("tbody");
  for (const node of cluster.nodes) {
    const of = node.group ?? group;
    const { kind, words } = describe(cluster, node, of);
    const row = element("tr");
    const commit = node.status?.commit;
    const version = node.up ? `${node.status.version}${commit ? `+${commit.slice(0, 7)}` : ""}` : "–";
    const plane = node.status?.plane?.name;
    const state = element("td", words + (node.leaving ? " (leaving)" : ""), KINDS[kind]);
    row.append(element("td", node.name), state, element("td", version, "more"),
      element("td", node.up ? lasted(node.status.uptime_s) : "–", "more"),
      element("td", plane ? `${node.address} ${plane}` : node.address, "more"));
    body.append(row);
  }
  into.replaceChildren(head, body);
}
