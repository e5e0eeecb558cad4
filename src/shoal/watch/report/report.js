// Draws the report's charts from the numbers in the page, and runs its few controls. No library, no request, no markup
// from text: every string of a job becomes a text node.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("shoal-data").textContent);
  const view = { x: "step", log: false, smooth: false, hidden: new Set() };
  const COLOURS = 8;
  const MOST_DOTS = 80; // points that are drawn one by one
  const MOST_ROWS = 500; // of a curve in the table
  const LEAST_SMOOTHED = 50; // points; fewer are worth seeing one by one
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
    if (view.x === "step") {
      const step = Math.max(1, nice(span, most));
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

  function nearest(sorted, x) {
    let [low, high] = [0, sorted.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - sorted[low - 1] <= sorted[low] - x ? low - 1 : low;
  }

  // ---- a chart

  class Chart {
    constructor(spec) {
      this.spec = spec;
      this.figure = document.getElementById(spec.id);
      this.plot = this.figure.querySelector(".plot");
      this.readout = this.figure.querySelector(".readout");
      this.active = 0; // which visible curve the arrow keys move along
      this.at = null; // index of the point that is read out
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => document.activeElement !== this.plot && this.read(null));
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.plot.addEventListener("focus", () => this.plot.matches(":focus-visible") && this.at === null && this.read(this.last()));
      this.plot.addEventListener("blur", () => this.read(null));
      this.details = this.figure.querySelector("details");
      this.details.addEventListener("toggle", () => this.table());
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }

    visible() {
      return this.spec.lines.filter((line) => line.step.length && !view.hidden.has(line.run));
    }

    isSmooth(line) {
      return view.smooth && line.step.length >= LEAST_SMOOTHED;
    }

    colour(line) {
      // One run: colours tell training from held out. Several: they tell the runs apart, and dots what is held out.
      return `c${(page.runs.length === 1 && line.held_out ? 1 : line.run) % COLOURS}`;
    }

    named(line) {
      const kind = line.held_out ? "held out" : "training";
      const both = this.spec.lines.some((other) => other.held_out !== line.held_out);
      if (page.runs.length === 1) return line.held_out || both ? kind : this.spec.title;
      return page.runs[line.run].label + (both || line.held_out ? `, ${kind}` : "");
    }

    swatch(parent, line) {
      const sample = make(parent, "svg", { class: `swatch ${this.colour(line)}`, width: 30, height: 10, "aria-hidden": "true" });
      make(sample, "line", { x1: 0, x2: 30, y1: 5, y2: 5, "stroke-dasharray": page.runs[line.run].dash });
      if (line.held_out) make(sample, "circle", { cx: 15, cy: 5, r: 3 });
    }

    draw() {
      const lines = this.visible();
      this.plot.replaceChildren();
      this.legend();
      this.table();
      this.active = Math.min(this.active, Math.max(0, lines.length - 1));
      const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
      if (!lines.length || width < 80) {
        this.readout.replaceChildren();
        this.scale = null;
        if (!lines.length) make(make(this.plot, "svg", {}), "text", { x: 0, y: 40 }, "nothing to draw");
        return;
      }
      const shown = lines.map((line) => (this.isSmooth(line) ? smoothed(line.mean) : line.mean));
      this.scale = this.scales(lines, shown, width, height);
      this.picture = make(this.plot, "svg", { "aria-hidden": "true" });
      const clip = `clip-${this.spec.id}`;
      const box = this.scale;
      make(make(this.picture, "clipPath", { id: clip }), "rect",
        { x: box.left - 4, y: MARGIN.top - 6, width: box.right - box.left + 8, height: box.bottom - MARGIN.top + 12 });
      this.axes();
      const inside = make(this.picture, "g", { "clip-path": `url(#${clip})` });
      this.marks(inside);
      lines.forEach((line, index) => this.curve(inside, line, shown[index]));
      this.cursor = make(this.picture, "g");
      this.plot.setAttribute("aria-label", this.described(lines));
      this.read(this.at);
    }

    scales(lines, shown, width, height) {
      const xs = lines.flatMap((line) => [line[view.x][0], line[view.x].at(-1)]);
      const log = view.log && !this.spec.from_zero && shown.flat().some((value) => value > 0);
      let [low, high] = [Infinity, -Infinity];
      for (const values of shown)
        for (const value of values)
          if (value !== null && (!log || value > 0)) [low, high] = [Math.min(low, value), Math.max(high, value)];
      if (low > high) [low, high] = [0, 1];
      if (this.spec.from_zero) low = 0;
      if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
      const pad = log ? 1 : (high - low) * 0.04;
      if (!log) [low, high] = [this.spec.from_zero ? 0 : low - pad, high + pad];
      const yTicks = axisY(low, high, Math.max(2, Math.floor(height / 45)), log);
      const left = 10 + 6.8 * Math.max(...yTicks.map(([, text]) => text.length));
      const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
      const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
      const position = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
      return {
        left, right, bottom, log, yTicks,
        xTicks: axisX(x0, x1, Math.max(2, Math.floor((right - left) / 68))),
        x: (value) => (x1 > x0 ? left + ((value - x0) / (x1 - x0)) * (right - left) : (left + right) / 2),
        y: (value) => (log && value <= 0 ? bottom : bottom - position(value) * (bottom - MARGIN.top)),
        back: (pixel) => x0 + ((pixel - left) / (right - left)) * (x1 - x0),
      };
    }

    axes() {
      const { left, right, bottom, x, y, xTicks, yTicks } = this.scale;
      for (const [at, text] of yTicks) {
        make(this.picture, "line", { class: "grid", x1: left, x2: right, y1: y(at), y2: y(at) });
        make(this.picture, "text", { x: left - 7, y: y(at) + 4, "text-anchor": "end" }, text);
      }
      make(this.picture, "line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom });
      const unit = view.x === "step" ? "steps" : "time";
      const unitAt = right - 7 * unit.length;
      for (const [at, text] of xTicks) {
        make(this.picture, "line", { class: "base", x1: x(at), x2: x(at), y1: bottom, y2: bottom + 4 });
        if (x(at) + 4 * text.length < unitAt)
          make(this.picture, "text", { x: x(at), y: bottom + 17, "text-anchor": x(at) < left + 8 ? "start" : "middle" }, text);
      }
      make(this.picture, "text", { x: right, y: bottom + 17, "text-anchor": "end" }, unit);
    }

    marks(parent) {
      for (const run of page.runs)
        for (const mark of run.marks) {
          const x = this.scale.x(mark[view.x]);
          const isStretch = mark.until !== null;
          if (isStretch && view.x === "step") continue; // no step, no width
          const drawn = isStretch
            ? make(parent, "rect", { class: "pause", x, width: Math.max(1, this.scale.x(mark.until) - x), y: MARGIN.top, height: this.scale.bottom - MARGIN.top })
            : make(parent, "line", { class: mark.is_problem ? "mark problem" : "mark", x1: x, x2: x, y1: MARGIN.top, y2: this.scale.bottom });
          make(drawn, "title", {}, mark.text);
        }
    }

    curve(parent, line, shown) {
      const { x, y } = this.scale;
      const group = make(parent, "g", { class: this.colour(line), "data-run": line.run, "data-held-out": line.held_out });
      const xs = line[view.x].map(x);
      const path = (values) => {
        let [text, pen] = ["", "M"];
        values.forEach((value, at) => {
          if (value === null || (this.scale.log && value <= 0)) pen = "M";
          else {
            text += `${pen}${xs[at].toFixed(1)},${y(value).toFixed(1)}`;
            pen = "L";
          }
        });
        return text;
      };
      if (line.low && !this.isSmooth(line)) {
        const known = xs.map((_, at) => at).filter((at) => line.low[at] !== null);
        const edge = (values, order) => order.map((at) => `${xs[at].toFixed(1)},${y(values[at]).toFixed(1)}`).join("L");
        if (known.length > 1)
          make(group, "path", { class: "band", d: `M${edge(line.high, known)}L${edge(line.low, [...known].reverse())}Z` });
      }
      if (this.isSmooth(line)) make(group, "path", { class: "curve faint", d: path(line.mean) });
      make(group, "path", { class: "curve", d: path(shown), "stroke-dasharray": page.runs[line.run].dash });
      const known = xs.map((_, at) => at).filter((at) => shown[at] !== null);
      if ((line.held_out && known.length <= MOST_DOTS) || known.length === 1)
        for (const at of known) make(group, "circle", { class: "dot", cx: xs[at], cy: y(shown[at]), r: 3.2 });
    }

    legend() {
      const key = this.figure.querySelector(".key");
      key.replaceChildren();
      const lines = this.visible();
      if (lines.length > 2) return; // the read-out names them all
      if (lines.length < 2 && !lines.some((line) => line.held_out)) return;
      for (const line of lines) {
        const item = make(key, "span");
        this.swatch(item, line);
        item.append(this.named(line));
      }
    }

    described(lines) {
      const told = lines.map((line) => {
        const values = line.mean.filter((value) => value !== null);
        if (!values.length) return `${this.named(line)}: no finite value`;
        const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
        return `${this.named(line)}: from ${number(values[0])} to ${number(values.at(-1))}, between ${number(low)} and ${number(high)}`;
      });
      const over = view.x === "step" ? "steps" : "time";
      return `${this.spec.title} over ${over}. ${told.join(". ")}. Arrow keys move along the curve.`;
    }

    // ---- reading values

    last() {
      return (this.visible()[this.active]?.step.length ?? 0) - 1;
    }

    point(event) {
      if (!this.scale) return;
      const x = this.scale.back(event.clientX - this.plot.getBoundingClientRect().left);
      this.read(nearest(this.visible()[this.active][view.x], x));
    }

    key(event) {
      const lines = this.visible();
      if (!lines.length || event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.last();
      const at = this.at ?? last;
      const page_ = Math.max(1, Math.round(last / 10));
      const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - page_, PageDown: at + page_, Home: 0, End: last, Escape: null };
      if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        const x = lines[this.active][view.x][at];
        this.active = (this.active + (event.key === "ArrowDown" ? 1 : lines.length - 1)) % lines.length;
        this.read(nearest(lines[this.active][view.x], x));
      } else if (event.key in moves) {
        this.read(moves[event.key] === null ? null : Math.min(last, Math.max(0, moves[event.key])));
      } else return;
      event.preventDefault();
    }

    read(at) {
      // Without a cursor the last values stand there.
      this.at = at;
      this.readout.replaceChildren();
      if (!this.scale) return;
      this.cursor.replaceChildren();
      const lines = this.visible();
      const main = lines[this.active];
      const index = at === null ? main.step.length - 1 : Math.min(at, main.step.length - 1);
      if (at !== null) this.at = index;
      const x = main[view.x][index];
      const across = this.scale.x(x);
      if (at !== null)
        make(this.cursor, "line", { class: "cursor", x1: across, x2: across, y1: MARGIN.top, y2: this.scale.bottom });
      make(make(this.readout, "span"), "b", {}, `step ${main.step[index].toLocaleString("en")}`);
      make(this.readout, "span", {}, clock(main.time[index]));
      for (const line of lines) {
        const near = line === main ? index : at === null ? line.step.length - 1 : nearest(line[view.x], x);
        this.value(line, near, main.step[index]);
        if (at !== null && line.mean[near] !== null) {
          const place = { class: "at", cx: this.scale.x(line[view.x][near]), cy: this.scale.y(line.mean[near]), r: 4 };
          make(make(this.cursor, "g", { class: this.colour(line) }), "circle", place);
        }
      }
    }

    value(line, near, step) {
      const item = make(this.readout, "span");
      if (this.visible().length > 1) this.swatch(item, line);
      item.append(`${this.named(line)} `);
      make(item, "b", {}, number(line.mean[near]));
      if (line.low && line.low[near] !== line.high[near]) item.append(` (${number(line.low[near])} to ${number(line.high[near])})`);
      if (line.step[near] !== step) item.append(` at step ${line.step[near].toLocaleString("en")}`);
    }

    table() {
      const parent = this.figure.querySelector(".numbers");
      parent.replaceChildren();
      if (!this.details.open) return;
      for (const line of this.visible()) {
        const made = make(parent, "table");
        const every = Math.ceil(line.step.length / MOST_ROWS);
        make(made, "caption", {}, this.named(line) + (every > 1 ? `, every ${every}th point` : ""));
        const head = make(make(made, "thead"), "tr");
        const columns = ["step", "time", this.spec.title, ...(line.low ? ["least", "greatest"] : [])];
        for (const name of columns) make(head, "th", { scope: "col" }, name);
        const body = make(made, "tbody");
        for (let at = 0; at < line.step.length; at += every) {
          const row = make(body, "tr");
          const range = line.low ? [number(line.low[at]), number(line.high[at])] : [];
          for (const cell of [line.step[at].toLocaleString("en"), clock(line.time[at]), number(line.mean[at]), ...range])
            make(row, "td", {}, cell);
        }
      }
    }
  }

  const charts = page.charts.map((spec) => new Chart(spec));
  const redraw = () => charts.forEach((chart) => chart.draw());

  // ---- controls

  for (const choice of document.querySelectorAll("input[name=x]"))
    choice.addEventListener("change", () => {
      view.x = choice.value;
      redraw();
    });
  for (const name of ["log", "smooth"])
    document.getElementById(name).addEventListener("change", (event) => {
      view[name] = event.target.checked;
      redraw();
    });
  for (const button of document.querySelectorAll("button[data-run]"))
    button.addEventListener("click", () => {
      const run = Number(button.dataset.run);
      const shown = view.hidden.delete(run);
      if (!shown) view.hidden.add(run);
      button.setAttribute("aria-pressed", String(shown));
      redraw();
    });

  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const order = { system: "dark", dark: "light", light: "system" };
    const next = order[document.documentElement.dataset.theme ?? "system"];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    theme.textContent = `Theme: ${next}`;
  });

  for (const timeline of document.querySelectorAll(".timeline")) {
    const boxes = [...timeline.querySelectorAll("input")];
    const apply = () => {
      const chosen = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
      for (const entry of timeline.querySelectorAll("li"))
        entry.hidden = !chosen.has(entry.dataset.category) || (chosen.has("problems") && !("problem" in entry.dataset));
    };
    boxes.forEach((box) => box.addEventListener("change", apply));
    apply();
  }
})();
