// SPDX-License-Identifier: Apache-2.0
// Draws the cluster: who numbers commands, who votes, who executes, and where packets go. On a wide
// screen packets go from left to right, on a narrow one from top to bottom.

import {
  acting, count, executed, leader, nodesOf, ofGroup, partitions, percent, rate, ringUse, told,
} from "/numbers.js";

const SPACE = "http://www.w3.org/2000/svg";
const [NARROW, NARROWEST] = [640, 300];

// Signs of the roles, 16 by 16.
const SIGNS = {
  clients: "M2 3h12v8H2zM6 14h4M8 11v3",
  controller: "M8 1.5l5.6 3.2v6.6L8 14.5l-5.6-3.2V4.7zM8 6v4M6 8h4",
  leader: "M8 1.5l2 4.3 4.6.5-3.4 3.2.9 4.6L8 11.8l-4.1 2.3.9-4.6L1.4 6.3 6 5.8z",
  acceptor: "M2.5 2.5h11v11h-11zM5 8l2.2 2.4L11.2 5.6",
  learner: "M8 2a6 6 0 1 0 0 12A6 6 0 1 0 8 2M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 1 0 0-5",
  replica: "M2.5 4c0-2.7 11-2.7 11 0v8c0 2.7-11 2.7-11 0zM2.5 4c0 2.7 11 2.7 11 0M2.5 8c0 2.7 11 2.7 11 0",
};
SIGNS.sequencer = SIGNS.leader;

function shape(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// Says in a few words what a node does for a group, and how that is to be drawn.
export function describe(cluster, node, group) {
  if (!node.up) return { kind: "silent", words: "✕ no answer" };
  const described = ROLES[node.role]?.(cluster, node, group) ?? { kind: "works", words: "" };
  return node.warnings.length ? { ...described, kind: "warned", words: `▲ ${described.words}` } : described;
}

const ROLES = {
  controller: (_, { status }) =>
    status.acts === false ? { kind: "idle", words: "stands by" } : { kind: "works", words: "acts" },
  leader: (cluster, node, group) => stamper(cluster, node, group, "leads epoch", "backup"),
  sequencer: (cluster, node, group) => stamper(cluster, node, group, "stamps session", "spare"),
  acceptor: (_, node, group) => {
    const own = ofGroup(node, group);
    if (own?.member !== true) return { kind: "idle", words: "waits for an epoch" };
    const use = ringUse(node, group);
    return { kind: "works", words: own.mute ? "votes are compared" : `votes, ${percent(use)} full`, use };
  },
  learner: (_, node, group) => {
    const epoch = ofGroup(node, group)?.epoch;
    return typeof epoch === "number" ? { kind: "works", words: `counts epoch ${epoch}` } : { kind: "idle", words: "knows no epoch" };
  },
  replica: (cluster, node, group) => {
    const own = partitions(node, group);
    if (own.some((p) => p.catching_up !== null && p.catching_up !== undefined)) return { kind: "idle", words: "catches up" };
    if (own.some((p) => p.stopped)) return { kind: "idle", words: "waits for an epoch" };
    const leads = own.some((p) => p.nopaxos?.leads);
    const behind = lag(cluster, node, group);
    const words = behind > 1_000 ? `${count(behind)} behind` : `executed ${count(executed(node, group))}`;
    return leads ? { kind: "leads", words: `★ leads, ${words}` } : { kind: "works", words };
  },
};

function stamper(cluster, node, group, does, rests) {
  const is = leader(cluster, group)?.name === node.name;
  const epoch = told(cluster, group).active;
  return is && typeof epoch === "number" ? { kind: "leads", words: `★ ${does} ${epoch}` } : { kind: "idle", words: rests };
}

function lag(cluster, node, group) {
  const all = nodesOf(cluster, "replica", group).map((n) => executed(n, group)).filter((n) => n !== null);
  return Math.max(...all) - executed(node, group);
}

// --- where things are ----------------------------------------------------------------------------

// Returns the steps of a command's way, each with its nodes and the name of what they send.
function steps(cluster, group, protocol) {
  const clients = { role: "clients", title: "clients", nodes: [null], sends: "requests" };
  const step = (role, title, sends) => ({ role, title, sends, nodes: nodesOf(cluster, role, group) });
  const all = protocol === "nopaxos"
    ? [clients, step("sequencer", "sequencers", "numbered requests"), step("replica", "replicas", "replies")]
    : [clients, step("leader", "leaders", "proposals"), step("acceptor", "acceptors", "votes"),
       step("learner", "learners", "decisions"), step("replica", "replicas", "replies")];
  return all.filter((one) => one.nodes.length);
}

// Places everything on a wide screen: a column for each step.
function wide(all, controllers) {
  const [width, box, gap] = [1100, { w: 164, h: 62 }, 18];
  const rows = Math.max(...all.map((one) => one.nodes.length));
  const top = 112;
  const height = top + rows * (box.h + gap) + 34;
  const pitch = (width - box.w - 4) / (all.length - 1);
  const places = all.map((one, at) => one.nodes.map((_, n) => ({
    x: 2 + at * pitch, y: top + ((rows - one.nodes.length) / 2 + n) * (box.h + gap), ...box,
  })));
  const above = controllers.map((_, n) => ({ x: 2 + pitch + n * (box.w + 14), y: 2, ...box }));
  return { width, height, places, above, isWide: true, top, pitch, box };
}

// Places everything on a narrow screen: rows for each step.
function narrow(all, controllers, width) {
  const gap = 10;
  const box = { w: (width - 2 * gap - 16) / 3, h: 58 };
  let y = 4;
  const row = (nodes) => {
    const lines = Math.ceil(nodes.length / 3);
    const made = nodes.map((_, n) => {
      const line = Math.floor(n / 3);
      const inLine = line === lines - 1 ? nodes.length - 3 * line : 3;
      const left = (width - 16 - inLine * box.w - (inLine - 1) * gap) / 2;
      return { x: left + (n % 3) * (box.w + gap), y: y + line * (box.h + gap), ...box };
    });
    y += lines * (box.h + gap) + 44;
    return made;
  };
  const above = row(controllers);
  y -= 24;
  const places = all.map((one) => row(one.nodes));
  return { width, height: y - 44, places, above, isWide: false, box };
}

// Returns a path from one box to another.
function wire(from, to, isWide) {
  if (isWide) {
    const [x1, y1, x2, y2] = [from.x + from.w, from.y + from.h / 2, to.x, to.y + to.h / 2];
    const middle = (x1 + x2) / 2;
    return `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  }
  const [x1, y1, x2, y2] = [from.x + from.w / 2, from.y + from.h, to.x + to.w / 2, to.y];
  const middle = (y1 + y2) / 2;
  return `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}

// Returns the way of the replies, around everything else.
function back(places, { isWide, width, height }) {
  const [first, last] = [places[0][0], places.at(-1)];
  if (isWide) {
    const end = last.at(-1);
    const [x1, y1, x2, y2] = [end.x + end.w / 2, end.y + end.h, first.x + first.w / 2, first.y + first.h];
    const low = height - 8;
    return `M${x1} ${y1}L${x1} ${low - 10}Q${x1} ${low} ${x1 - 10} ${low}L${x2 + 10} ${low}Q${x2} ${low} ${x2} ${low - 10}L${x2} ${y2}`;
  }
  const end = last.slice(0, 3).at(-1);
  const right = width - 5;
  const [y1, y2] = [end.y + end.h / 2, first.y + first.h / 2];
  return `M${end.x + end.w} ${y1}L${right - 8} ${y1}Q${right} ${y1} ${right} ${y1 - 8}L${right} ${y2 + 8}Q${right} ${y2} ${right - 8} ${y2}L${first.x + first.w} ${y2}`;
}

// --- drawing -------------------------------------------------------------------------------------

function card(place, { role, name, kind, words, use }, isWide) {
  const drawn = shape("g", { class: isWide ? kind : `${kind} narrow` });
  drawn.append(shape("title", {}, `${name}: ${words}`));
  drawn.append(shape("rect", { class: "box", x: place.x, y: place.y, width: place.w, height: place.h, rx: 9 }));
  const [left, size] = isWide ? [place.x + 12, 1.1] : [place.x + 8, 0.9];
  const y = place.y + (isWide ? 14 : 10);
  drawn.append(shape("path", { class: "icon", d: SIGNS[role], transform: `translate(${left} ${y}) scale(${size})` }));
  const beside = left + (isWide ? 26 : 19);
  const [state, end] = [isWide ? beside : left, place.x + place.w - 6];
  drawn.append(shape("text", { class: "name", x: beside, y: y + 12.5, "data-room": end - beside }, short(name, 24)));
  drawn.append(shape("text", { class: "state", x: state, y: y + 33, "data-room": end - state }, short(words, 32)));
  if (typeof use === "number") {
    const [w, at] = [place.w - 24, { x: place.x + 12, y: place.y + place.h - 7, height: 3, rx: 1.5 }];
    drawn.append(shape("rect", { class: "room", width: w, ...at }));
    drawn.append(shape("rect", { class: "used", width: Math.max(w * use, use > 0 ? 3 : 0), ...at }));
  }
  return drawn;
}

// Squeezes texts that are too long for their cards, which shows only once they are on the page.
export function squeeze(drawn) {
  for (const text of drawn.querySelectorAll("text[data-room]")) {
    const room = Number(text.dataset.room);
    if (text.getComputedTextLength() <= room) continue;
    text.setAttribute("textLength", room);
    text.setAttribute("lengthAdjust", "spacingAndGlyphs");
  }
}

function label(at, what, speed, isWide) {
  const drawn = shape("g", {});
  const text = speed === null ? what : `${what} ${rate(speed)}/s`;
  if (!isWide) {
    const w = text.length * 6.6 + 14;
    drawn.append(shape("rect", { class: "label-back", x: at.x - w / 2, y: at.y - 13, width: w, height: 19, rx: 9 }));
  }
  const words = shape("text", { class: "rate", x: at.x, y: at.y, "text-anchor": "middle" });
  words.append(shape("tspan", {}, what));
  if (speed !== null) words.append(shape("tspan", { class: "speed" }, ` ${rate(speed)}/s`));
  drawn.append(words);
  return drawn;
}

function wires(drawn, layout, all, described, isFlowing) {
  const goes = (step, n) => {
    const kind = described[step][n].kind;
    return kind !== "silent" && (all[step].role === "clients" || !["leader", "sequencer"].includes(all[step].role) || kind === "leads");
  };
  const lines = [];
  for (let step = 0; step + 1 < all.length; step += 1) {
    layout.places[step].forEach((from, n) => layout.places[step + 1].forEach((to, m) => {
      const isLive = goes(step, n) && goes(step + 1, m) && described[step + 1][m].kind !== "idle";
      const isOrder = (at) => ["leader", "sequencer"].includes(all[at].role);
      // What a backup would send is left out, since the picture is full enough.
      if (isLive || (isOrder(step + 1) && described[step + 1][m].kind === "leads")) lines.push([wire(from, to, layout.isWide), isLive]);
    }));
  }
  lines.push([back(layout.places, layout), described.at(-1).some(({ kind }) => kind !== "silent")]);
  for (const [d, isLive] of lines) drawn.append(shape("path", { class: isLive ? "wire live" : "wire", d }));
  if (!isFlowing) return;
  for (const [d, isLive] of lines) if (isLive) drawn.append(shape("path", { class: "packets", d }));
}

// Returns a picture of a group. `last` has the rates, or is null while there are none.
export function picture(cluster, { id: group, protocol, application }, last, room) {
  const controllers = cluster.nodes.filter((n) => n.role === "controller");
  const all = steps(cluster, group, protocol);
  const layout = room < NARROW ? narrow(all, controllers, Math.max(room, NARROWEST)) : wide(all, controllers);
  const connected = nodesOf(cluster, "replica", group).map((n) => n.status?.front_end?.connected ?? 0).reduce((a, b) => a + b, 0);
  const clients = { role: "clients", name: "clients", kind: "works", words: `${count(connected)} of Redis` };
  const described = all.map((one) => one.nodes.map((node) => node === null
    ? clients : { role: one.role, name: node.name, ...describe(cluster, node, group) }));
  const leads = leader(cluster, group);
  const drawn = shape("svg", {
    class: "picture", viewBox: `0 0 ${layout.width} ${layout.height}`, role: "img",
    "aria-label": `Group ${group} (${application}): ${leads ? `${leads.name} leads` : "nobody leads"}. ` +
      described.flat().map((one) => `${one.name}: ${one.words}`).join("; "),
  });
  watches(drawn, layout, all, described, controllers, cluster);
  wires(drawn, layout, all, described, (last?.executed ?? 0) > 0);
  all.forEach((one, step) => one.nodes.forEach((_, n) => drawn.append(card(layout.places[step][n], described[step][n], layout.isWide))));
  controllers.forEach((node, n) => drawn.append(
    card(layout.above[n], { role: "controller", name: node.name, ...describe(cluster, node, group) }, layout.isWide)));
  labels(drawn, layout, all, last);
  return drawn;
}

// Draws whom the controller that acts watches most: who numbers commands.
function watches(drawn, layout, all, described, controllers, cluster) {
  const at = controllers.findIndex((n) => n.name === acting(cluster)?.name);
  const step = all.findIndex((one) => ["leader", "sequencer"].includes(one.role));
  if (at < 0 || step < 0 || !layout.isWide) return;
  const from = layout.above[at];
  layout.places[step].forEach((to, n) => {
    if (n > 0 && described[step][n].kind !== "leads") return;
    const [x, y] = [from.x + 18 + n * 10, from.y + from.h];
    drawn.append(shape("path", { class: "watch", d: `M${x} ${y}L${x} ${to.y}` }));
  });
}

function labels(drawn, layout, all, last) {
  const { isWide, places, box } = layout;
  const speed = last?.executed ?? null;
  for (let step = 0; step + 1 < all.length; step += 1) {
    const at = isWide
      ? { x: (places[step][0].x + box.w + places[step + 1][0].x) / 2, y: layout.top - 14 }
      : { x: (layout.width - 16) / 2, y: places[step].at(-1).y + box.h + 31 };
    drawn.append(label(at, all[step].sends, isWide || step === 0 ? speed : null, isWide));
  }
  if (isWide) drawn.append(label({ x: layout.width / 2, y: layout.height - 16 }, "replies", speed, isWide));
}
