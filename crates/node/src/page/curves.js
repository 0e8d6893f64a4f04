// SPDX-License-Identifier: Apache-2.0
// Draws what was measured in the last five minutes. Lines differ in their strokes, too, and a change
// of the leader is marked.

import { clock, lasted } from "/numbers.js";

const SPACE = "http://www.w3.org/2000/svg";
const [LEAST_MS, MOST_MS] = [60_000, 300_000];
const [HEIGHT, LEFT, RIGHT, TOP, LOW] = [150, 52, 8, 18, 22];

function shape(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Returns a round number at or above n, for the upper end of the axis.
export function round(n) {
  if (!(n > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((end) => end >= n * 0.999);
}

// A curve: its title, its lines (`name` and `of`, which returns the value in a sample), how values
// are written, and the least upper end of its axis.
export class Curve {
  #title; #lines; #shown; #least;
  #root = element("div"); #now = element("p"); #drawing; #pointer = null; #samples = []; #width = 0;

  constructor(title, lines, shown, least = 0) {
    [this.#title, this.#lines, this.#shown, this.#least] = [title, lines, shown, least];
    this.#root.className = "curve";
    this.#now.className = "now";
    this.#drawing = shape("svg", { role: "img" });
    this.#root.append(element("h2", title), this.#now, this.#drawing);
    this.#drawing.addEventListener("pointermove", (event) => this.#point(event));
    this.#drawing.addEventListener("pointerleave", () => this.#point(null));
  }

  get root() { return this.#root; }

  // Draws the samples, or hides the curve if none of them has a value.
  draw(samples) {
    this.#samples = samples;
    const has = (sample) => this.#lines.some(({ of }) => of(sample) !== null);
    this.#root.hidden = !samples.some(has);
    if (this.#root.hidden) return;
    // A unit of the drawing is a pixel, so that its text has the size of other text.
    this.#width = Math.max(this.#now.clientWidth, 200);
    this.#drawing.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    const end = samples.at(-1).at;
    const values = samples.flatMap((s) => this.#lines.map(({ of }) => of(s) ?? 0));
    const most = round(Math.max(...values, this.#least));
    const span = Math.min(Math.max(end - samples[0].at, LEAST_MS), MOST_MS);
    const x = (at) => LEFT + (1 - (end - at) / span) * (this.#width - LEFT - RIGHT);
    const y = (value) => HEIGHT - LOW - (value / most) * (HEIGHT - LOW - TOP);
    this.#drawing.replaceChildren();
    this.#axes(most, y, span / 1000);
    this.#marks(samples, x);
    this.#lines.forEach(({ of }, n) => this.#line(samples, of, x, y, n));
    const pointed = this.#pointed(x);
    if (pointed) this.#drawing.append(shape("line", { class: "cursor", x1: x(pointed.at), x2: x(pointed.at), y1: TOP, y2: HEIGHT - LOW }));
    this.#say(pointed ?? samples.at(-1), pointed !== null);
  }

  #axes(most, y, seconds) {
    for (const part of [0, 0.5, 1]) {
      const at = y(most * part);
      this.#drawing.append(shape("line", { class: "grid", x1: LEFT, x2: this.#width - RIGHT, y1: at, y2: at }));
      this.#drawing.append(shape("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, this.#shown(most * part)));
    }
    const ago = (part) => `${lasted((1 - part) * seconds)} ago`;
    const times = [[0, ago(0), "start"], [0.5, ago(0.5), "middle"], [1, "now", "end"]];
    for (const [part, text, anchor] of times) {
      const at = LEFT + part * (this.#width - LEFT - RIGHT);
      this.#drawing.append(shape("text", { x: at, y: HEIGHT - 6, "text-anchor": anchor }, text));
    }
  }

  #marks(samples, x) {
    samples.forEach((sample, n) => {
      const before = samples[n - 1];
      if (!before || sample.epoch === null || before.epoch === null || sample.epoch === before.epoch) return;
      const at = x(sample.at);
      this.#drawing.append(shape("line", { class: "mark", x1: at, x2: at, y1: TOP, y2: HEIGHT - LOW }));
      const isRight = at > this.#width / 2;
      this.#drawing.append(shape("text", { class: "mark-name", x: at + (isRight ? -5 : 5), y: TOP - 4, "text-anchor": isRight ? "end" : "start" },
        `epoch ${sample.epoch}${sample.leader ? `: ${sample.leader}` : ""}`));
    });
  }

  #line(samples, of, x, y, n) {
    const pieces = [[]];
    for (const sample of samples) {
      const value = of(sample);
      if (value === null) pieces.push([]);
      else pieces.at(-1).push(`${x(sample.at).toFixed(1)} ${y(value).toFixed(1)}`);
    }
    for (const piece of pieces.filter((points) => points.length)) {
      const d = `M${piece.join("L")}`;
      const [from, to] = [piece[0].split(" ")[0], piece.at(-1).split(" ")[0]];
      if (n === 0) this.#drawing.append(shape("path", { class: "under", d: `${d}L${to} ${y(0)}L${from} ${y(0)}Z` }));
      this.#drawing.append(shape("path", { class: n ? "line second" : "line", d }));
    }
  }

  #point(event) {
    const box = this.#drawing.getBoundingClientRect();
    this.#pointer = event ? ((event.clientX - box.left) / box.width) * this.#width : null;
    this.draw(this.#samples);
  }

  #pointed(x) {
    if (this.#pointer === null) return null;
    const distance = (sample) => Math.abs(x(sample.at) - this.#pointer);
    return this.#samples.reduce((best, one) => (distance(one) < distance(best) ? one : best));
  }

  #say(sample, isPast) {
    const parts = this.#lines.map(({ name, of }, n) => {
      const part = element("span");
      const sign = shape("svg", { viewBox: "0 0 22 8", "aria-hidden": true });
      sign.append(shape("line", { class: n ? "line second" : "line", x1: 0, x2: 22, y1: 4, y2: 4 }));
      const value = of(sample);
      part.append(sign, element("b", value === null ? "–" : this.#shown(value)), ` ${name}`);
      return part;
    });
    if (isPast) parts.push(element("span", `at ${clock(sample.at)}`));
    this.#now.replaceChildren(...parts);
    this.#drawing.setAttribute("aria-label", `${this.#title}: ${parts.map((p) => p.textContent).join(", ")}`);
  }
}

// Returns the samples that are still shown.
export const recent = (samples, now) => samples.filter((sample) => now - sample.at <= MOST_MS);
