// The report's script, first part: the numbers in the page, how they read, and axes. No library, no request, no markup
// from text: every string of a job becomes a text node. The parts are joined in the order in which `page.py` names them.
"use strict";
const page = JSON.parse(document.getElementById("shoal-data").textContent);
const view = { x: page.axes[0], log: false, smooth: false, hidden: new Set(), zoom: null }; // zoom: [from, to] of the axis
const OVER = { step: "steps", samples: "samples", epoch: "epochs", time: "time" };
const COLOURS = 8;
const MOST_DOTS = 80; // points that are drawn one by one
const MOST_ROWS = 500; // of a curve in the table
const LEAST_SMOOTHED = 50; // points; fewer are worth seeing one by one
const LEAST_DRAG = 8; // pixels; a shorter one is a click
const MARGIN = { top: 12, right: 14, bottom: 26 };

// ---- elements

function make(parent, name, attributes = {}, text = "") {
  const drawn = ["svg", "g", "path", "line", "circle", "text", "clipPath", "rect", "title"].includes(name);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  parent.append(made);
  return made;
}

// ---- numbers and axes

const trimmed = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);

function number(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3);
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 1 });
  return trimmed(value.toFixed(size >= 100 ? 2 : 4));
}

function short(value, step) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e12)) return value.toExponential(1).replace(".0e", "e");
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const scale = name === "k" ? 1e3 : unit;
    if (size >= unit) return trimmed((value / scale).toFixed(places(step / scale))) + name;
  }
  return value.toFixed(places(step));
}

const places = (step) => Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));

function clock(seconds) {
  if (seconds < 10 && seconds % 1 !== 0) return `${trimmed(seconds.toFixed(2))} s`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (part) => String(part).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

function nice(span, most, bases = [1, 2, 5, 10]) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return (bases.find((base) => base * power * most >= span * 0.999) ?? 10) * power;
}

function ticks(low, high, step) {
  const found = [];
  for (let count = Math.ceil(low / step - 1e-9); count * step <= high + step * 1e-9; count++) found.push(count * step);
  return found;
}

function axisX(low, high, most) {
  const span = high - low || 1;
  if (view.x !== "time") {
    const step = Math.max(view.x === "epoch" ? 1e-4 : 1, nice(span, most));
    return ticks(low, high, step).map((at) => [at, short(at, step)]);
  }
  const units = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = span < most ? nice(span, most) : units.find((unit) => unit * most >= span) ?? 86400 * nice(span / 86400, most);
  return ticks(low, high, step).map((at) => [at, step < 1 ? `${trimmed(at.toFixed(3))} s` : clock(at)]);
}

function axisY(low, high, most, log) {
  if (!log) {
    const step = nice(high - low || 1, most);
    return ticks(low, high, step).map((at) => [at, short(at, step)]);
  }
  if (high / low < 10) {
    const step = nice(high - low, most);
    return ticks(low, high, step).map((at) => [at, short(at, step)]);
  }
  const found = [];
  const every = Math.max(1, Math.ceil(Math.log10(high / low) / (2 * most)));
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every)
    for (const digit of high / low < 100 ? [1, 2, 5] : [1]) {
      const at = digit * 10 ** power;
      if (at >= low * 0.999 && at <= high * 1.001) found.push([at, short(at, 10 ** power)]);
    }
  return found;
}

function smoothed(values) {
  const reach = Math.max(1, Math.round(values.length / 50));
  const sums = [0], counts = [0];
  for (const value of values) {
    sums.push(sums.at(-1) + (value ?? 0));
    counts.push(counts.at(-1) + (value === null ? 0 : 1));
  }
  return values.map((value, at) => {
    const near = Math.min(reach, at); // the same on both sides, so that a steep beginning stays as it is
    const [from, to] = [at - near, Math.min(values.length, at + near + 1)];
    return value === null ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
}

function notBefore(sorted, x) {
  // The first place whose number is at least x, else the last place.
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(sorted, x) {
  const low = notBefore(sorted, x);
  return low > 0 && x - sorted[low - 1] <= sorted[low] - x ? low - 1 : low;
}

// ---- other measures than steps

function along(way, step) {
  const at = Math.max(1, notBefore(way.step, step));
  const [first, second] = [way.step[at - 1], way.step[at]];
  return way.value[at - 1] + ((way.value[at] - way.value[at - 1]) * (step - first)) / (second - first);
}

for (const measure of ["samples", "epoch"]) {
  const reached = (run, steps) => run[measure] && steps.map((step) => along(run[measure], step));
  for (const chart of page.charts) for (const line of chart.lines) line[measure] = reached(page.runs[line.run], line.step);
  for (const run of page.runs) for (const mark of run.marks) mark[measure] = reached(run, [mark.step])?.[0];
}
