// SPDX-License-Identifier: Apache-2.0
// Reads numbers out of the cluster's status document, and writes them for people. Whatever a
// document lacks is null: nothing is made up.

const list = (value) => (Array.isArray(value) ? value : []);
const sum = (values) => values.reduce((all, one) => all + one, 0);
const largest = (values) => (values.length ? Math.max(...values) : null);

export const isSilent = (node) => !node.up;
export const partitions = (node, group) => {
  const status = node.status ?? {};
  const own = list(status.groups).find((g) => g.group === group);
  return list(own ? own.partitions : status.partitions);
};
export const ofGroup = (node, group) => list(node.status?.groups).find((g) => g.group === group);

// Returns the controller that acts, as it says itself.
export function acting(document) {
  const all = list(document.nodes).filter((n) => n.role === "controller" && n.up);
  return all.find((n) => n.status?.acts !== false) ?? all[0] ?? null;
}

// Returns what the acting controller says of a group.
export function told(document, group) {
  const controller = acting(document);
  return (controller && ofGroup(controller, group)) || {};
}

// Returns the nodes of a role that serve a group.
export function nodesOf(document, role, group) {
  return list(document.nodes).filter((n) => n.role === role && (n.group ?? group) === group);
}

// Returns the node that numbers a group's commands.
export function leader(document, group) {
  const id = told(document, group).leader;
  return list(document.nodes).find((n) => n.id === id && id !== undefined) ?? null;
}

// Returns the last instance of each replica, all partitions together; null where it is silent.
export const executed = (node, group) =>
  node.up ? sum(partitions(node, group).map((p) => p.next ?? 0)) : null;

// Returns how much of an acceptor's fullest ring is in use, from 0 to 1.
export function ringUse(node, group) {
  const slots = ofGroup(node, group)?.slots;
  const used = largest(partitions(node, group).map((p) => p.used ?? 0));
  return slots && used !== null ? used / slots : null;
}

// Returns the speed of a counter between two documents, if it exists in both and hasn't begun anew.
function speed(before, after, seconds) {
  const isThere = typeof before === "number" && typeof after === "number";
  return isThere && seconds > 0 && after >= before ? (after - before) / seconds : null;
}

// Returns the speed of each node's counter, by the node's name.
function speeds(before, after, counter) {
  const seconds = (after.at_ms - before.at_ms) / 1000;
  const old = new Map(list(before.nodes).map((n) => [n.name, n]));
  const pairs = list(after.nodes).map((node) => {
    const earlier = old.get(node.name);
    // A process that was started in between has begun to count anew.
    const goesOn = earlier?.up && node.up && node.status.uptime_s >= earlier.status.uptime_s;
    return [node.name, goesOn ? speed(counter(earlier), counter(node), seconds) : null];
  });
  return new Map(pairs.filter(([, value]) => value !== null));
}

// Returns the time below which a share of the events stayed that a histogram has counted since an
// earlier look, in seconds.
export function quantile(before, after, share) {
  const old = new Map(list(before?.buckets));
  const buckets = list(after?.buckets).map(([to, n]) => [to, n - (old.get(to) ?? 0)]);
  const count = (after?.count ?? 0) - (before?.count ?? 0);
  if (count <= 0) return null;
  let [from, below] = [0, 0];
  for (const [to, n] of buckets) {
    if (n >= share * count) return from + ((to - from) * (share * count - below)) / (n - below || 1);
    [from, below] = [to, n];
  }
  return from;
}

// Returns the largest quantile of several nodes' histograms, and so that of the slowest node.
function slowest(before, after, histogram, share) {
  const old = new Map(list(before.nodes).map((n) => [n.name, n]));
  const all = list(after.nodes).flatMap((node) => {
    const earlier = old.get(node.name);
    if (!node.up || !earlier?.up || node.status.uptime_s < earlier.status.uptime_s) return [];
    const value = quantile(histogram(earlier), histogram(node), share);
    return value === null ? [] : [value];
  });
  return largest(all);
}

// Returns what the curves show for the time between two looks at a group.
export function sample(before, after, group) {
  const replicas = nodesOf(after, "replica", group);
  const isOf = (node) => node.role === "replica" && (node.group ?? group) === group;
  const commands = (n) => (isOf(n) ? sum(partitions(n, group).map((p) => p.commands ?? 0)) : null);
  const asked = (n) => (isOf(n) ? n.status?.front_end?.commands : null);
  const syncs = (n) => n.status?.log?.syncs ?? list(n.status?.partitions)[0]?.log?.syncs;
  const answers = (n) => (isOf(n) ? n.status?.front_end?.answer_times : null);
  const done = replicas.map((n) => executed(n, group)).filter((n) => n !== null);
  const rings = nodesOf(after, "acceptor", group).map((n) => ringUse(n, group));
  const byClients = [...speeds(before, after, asked).values()];
  return {
    at: after.at_ms,
    rates: speeds(before, after, commands),
    executed: largest([...speeds(before, after, commands).values()]),
    asked: byClients.length ? sum(byClients) : null,
    answer50: slowest(before, after, answers, 0.5),
    answer99: slowest(before, after, answers, 0.99),
    sync50: slowest(before, after, syncs, 0.5),
    sync99: slowest(before, after, syncs, 0.99),
    ring: largest(rings.filter((use) => use !== null)),
    lag: done.length ? largest(done) - Math.min(...done) : null,
    leader: leader(after, group)?.name ?? null,
    epoch: told(after, group).active ?? null,
  };
}

// --- for people ----------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (n) => (typeof n === "number" ? whole.format(n) : "–");

export function rate(n) {
  if (typeof n !== "number") return "–";
  if (n >= 1e6) return `${(n / 1e6).toFixed(2)} M`;
  if (n >= 1e5) return `${whole.format(n / 1e3)} k`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)} k`;
  return n > 0 && n < 10 ? n.toFixed(1) : whole.format(n);
}

export function time(seconds) {
  if (typeof seconds !== "number") return "–";
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return `${whole.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

export function lasted(seconds) {
  if (typeof seconds !== "number") return "–";
  const units = [[86_400, "d"], [3_600, "h"], [60, "min"]];
  const [size, unit] = units.find(([size]) => seconds >= 2 * size) ?? [1, "s"];
  return `${whole.format(Math.floor(seconds / size))} ${unit}`;
}

export const percent = (share) =>
  typeof share === "number" ? `${whole.format(share > 0 ? Math.max(share * 100, 1) : 0)} %` : "–";
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
