// SPDX-License-Identifier: Apache-2.0
// Asks for the cluster's status again and again, and shows it.

import { Curve, recent } from "/curves.js";
import { verdict, writeEvents, writeMembers, writeTiles, writeWarnings } from "/lists.js";
import { clock, percent, rate, sample, time } from "/numbers.js";
import { picture, squeeze } from "/picture.js";

const PAUSE_MS = 1_000;
const HIDDEN_PAUSE_MS = 5_000;
const TIMEOUT_MS = 8_000;

const byId = (id) => document.getElementById(id);
const curves = [
  new Curve("Commands per second", [
    { name: "executed", of: (s) => s.executed },
    { name: "from Redis clients, reads included", of: (s) => s.asked },
  ], rate, 10),
  new Curve("Time to answer a Redis client", [
    { name: "median", of: (s) => s.answer50 },
    { name: "99 of 100 within", of: (s) => s.answer99 },
  ], time, 0.001),
  new Curve("Time to write votes to the disk", [
    { name: "median", of: (s) => s.sync50 },
    { name: "99 of 100 within", of: (s) => s.sync99 },
  ], time, 0.001),
  new Curve("Acceptors' rings in use", [{ name: "the fullest", of: (s) => s.ring }], percent, 0.1),
];

const shown = { cluster: null, group: null, samples: new Map() };

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.text()).trim()}`);
  return answer.json();
}

// Adds what has happened in each group since the last look.
function take(cluster) {
  const before = shown.cluster;
  shown.cluster = cluster;
  shown.group ??= cluster.groups[0]?.id ?? 0;
  if (!before || cluster.at_ms <= before.at_ms) return;
  for (const { id } of cluster.groups) {
    const samples = shown.samples.get(id) ?? [];
    samples.push(sample(before, cluster, id));
    shown.samples.set(id, recent(samples, cluster.at_ms));
  }
}

function draw() {
  const { cluster, group: id } = shown;
  const group = cluster?.groups.find((g) => g.id === id);
  if (!group) return;
  const samples = shown.samples.get(id) ?? [];
  const last = samples.at(-1) ?? null;
  byId("cluster").textContent = `cluster ${cluster.cluster}, ${group.application} by ${group.protocol === "nopaxos" ? "NOPaxos" : "Paxos"}, ` +
    `${cluster.nodes.length} nodes, at ${clock(cluster.at_ms)}`;
  writeWarnings(cluster, byId("warnings"));
  writeTiles(cluster, group, last, byId("tiles"));
  const room = byId("picture").clientWidth;
  const drawn = picture(cluster, group, last, room);
  byId("picture").replaceChildren(drawn);
  squeeze(drawn);
  byId("key").textContent = "★ numbers commands · ▲ has a warning · ✕ is silent · numbers are commands per second · dotted lines: the controller watches";
  curves.forEach((curve) => curve.draw(samples));
  byId("curves").classList.toggle("odd", curves.filter((curve) => !curve.root.hidden).length % 2 === 1);
  writeMembers(cluster, id, byId("members"));
  writeGroups(cluster);
  say(verdict(cluster));
}

function writeGroups(cluster) {
  if (cluster.groups.length < 2) return;
  const buttons = cluster.groups.map((group) => {
    const button = document.createElement("button");
    button.textContent = `group ${group.id}: ${group.application}`;
    button.setAttribute("aria-pressed", String(group.id === shown.group));
    button.addEventListener("click", () => { shown.group = group.id; draw(); });
    return button;
  });
  const has = document.activeElement?.parentElement === byId("groups");
  const at = [...byId("groups").children].indexOf(document.activeElement);
  byId("groups").replaceChildren(...buttons);
  if (has) byId("groups").children[at]?.focus();
}

// Says the judgement, but only when it changes, since a screen reader reads it aloud.
function say({ kind, words }) {
  const place = byId("verdict");
  if (place.textContent !== words) place.textContent = words;
  place.className = `verdict ${kind}`;
  document.title = `${words} – WirePaxos`;
}

async function look() {
  try {
    const [cluster, events] = await Promise.all([ask("/status.json"), ask("/events.json").catch(() => null)]);
    document.body.classList.remove("old");
    take(cluster);
    draw();
    if (events) writeEvents(events.events ?? [], byId("events"));
  } catch (why) {
    document.body.classList.add("old");
    const since = shown.cluster ? ` since ${clock(shown.cluster.at_ms)}` : "";
    say({ kind: "bad", words: `✕ no answer from this controller${since}` });
    console.warn(String(why));
  }
  setTimeout(look, document.hidden ? HIDDEN_PAUSE_MS : PAUSE_MS);
}

byId("curves").append(...curves.map((curve) => curve.root));
addEventListener("resize", draw);
look();
