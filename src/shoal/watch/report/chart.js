// A chart: drawing its curves, reading their values, zooming into them.
class Chart {
  constructor(spec) {
    this.spec = spec;
    this.figure = document.getElementById(spec.id);
    this.plot = this.figure.querySelector(".plot");
    this.readout = this.figure.querySelector(".readout");
    this.active = 0; // which visible curve the arrow keys move along
    this.at = null; // index of the point that is read out
    this.from = null; // where a drag that zooms began, in pixels
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.grip(event));
    this.plot.addEventListener("pointerup", (event) => this.release(event));
    this.plot.addEventListener("pointercancel", () => (this.from = null));
    this.plot.addEventListener("dblclick", () => zoom(null));
    this.plot.addEventListener("pointerleave", () => document.activeElement !== this.plot && this.read(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("focus", () => this.plot.matches(":focus-visible") && this.at === null && this.read(this.last()));
    this.plot.addEventListener("blur", () => this.read(null));
    this.details = this.figure.querySelector("details");
    this.details.addEventListener("toggle", () => this.table());
    this.unzoom = this.figure.querySelector(".unzoom");
    this.unzoom.addEventListener("click", () => zoom(null));
    this.figure.querySelector(".csv").addEventListener("click", () => this.save());
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  visible() {
    return this.spec.lines.filter((line) => line.step.length && !view.hidden.has(line.run));
  }

  isSmooth(line) {
    return view.smooth && line.step.length >= LEAST_SMOOTHED;
  }

  colour(line) {
    // One run: colours tell workers apart, or training from held out. Several: they tell the runs apart, and dots what
    // is held out.
    if (line.worker !== null) return `c${this.spec.lines.indexOf(line) % COLOURS}`;
    return `c${(page.runs.length === 1 && line.held_out ? 1 : line.run) % COLOURS}`;
  }

  dash(line) {
    return line.dash ?? page.runs[line.run].dash;
  }

  named(line) {
    if (line.worker !== null) return `worker ${line.worker}`;
    const kind = line.held_out ? "held out" : "training";
    const both = this.spec.lines.some((other) => other.held_out !== line.held_out);
    if (page.runs.length === 1) return line.held_out || both ? kind : this.spec.title;
    return page.runs[line.run].label + (both || line.held_out ? `, ${kind}` : "");
  }

  swatch(parent, line) {
    const sample = make(parent, "svg", { class: `swatch ${this.colour(line)}`, width: 30, height: 10, "aria-hidden": "true" });
    make(sample, "line", { x1: 0, x2: 30, y1: 5, y2: 5, "stroke-dasharray": this.dash(line) });
    if (line.held_out) make(sample, "circle", { cx: 15, cy: 5, r: 3 });
  }

  draw() {
    const lines = this.visible();
    this.plot.replaceChildren();
    this.unzoom.hidden = view.zoom === null;
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
    const ends = lines.flatMap((line) => [line[view.x][0], line[view.x].at(-1)]);
    const [x0, x1] = view.zoom ?? [Math.min(...ends), Math.max(...ends)];
    const log = view.log && !this.spec.from_zero && shown.flat().some((value) => value > 0);
    let [low, high] = [Infinity, -Infinity];
    lines.forEach((line, index) => {
      const [first, last] = this.reach(line);
      for (let at = first; at <= last; at++) {
        const value = shown[index][at];
        if (value !== null && (!log || value > 0)) [low, high] = [Math.min(low, value), Math.max(high, value)];
      }
    });
    if (low > high) [low, high] = [log ? 0.1 : 0, 1]; // nothing in sight
    if (this.spec.from_zero) low = 0;
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
    const pad = log ? 1 : (high - low) * 0.04;
    if (!log) [low, high] = [this.spec.from_zero ? 0 : low - pad, high + pad];
    const yTicks = axisY(low, high, Math.max(2, Math.floor(height / 45)), log);
    const left = 10 + 6.8 * Math.max(...yTicks.map(([, text]) => text.length));
    const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
    const position = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
    return {
      left, right, bottom, log, yTicks, x0, x1,
      xTicks: axisX(x0, x1, Math.max(2, Math.floor((right - left) / 60))),
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
    const unit = OVER[view.x];
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
        if (isStretch && view.x !== "time") continue; // no step, no width
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
    make(group, "path", { class: "curve", d: path(shown), "stroke-dasharray": this.dash(line) });
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
    return `${this.spec.title} over ${OVER[view.x]}. ${told.join(". ")}. Arrow keys move along the curve.`;
  }

  // ---- zooming

  grip(event) {
    if (event.pointerType !== "touch" && event.button === 0 && this.scale) {
      this.from = this.inside(event);
      this.plot.setPointerCapture(event.pointerId);
    }
    this.point(event); // a finger reads values, and scrolls the page
  }

  release(event) {
    if (this.from === null) return;
    const [from, to] = [this.from, this.inside(event)].sort((a, b) => a - b);
    this.from = null;
    if (to - from >= LEAST_DRAG) zoom([this.scale.back(from), this.scale.back(to)]);
    else this.read(this.at);
  }

  inside(event) {
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    return Math.min(this.scale.right, Math.max(this.scale.left, x));
  }

  closer(factor) {
    const { x0, x1 } = this.scale;
    const middle = this.at === null ? (x0 + x1) / 2 : this.visible()[this.active][view.x][this.at];
    const half = ((x1 - x0) * factor) / 2;
    zoom([middle - half, middle + half]);
  }

  // ---- reading values

  reach(line) {
    // The first and the last point in sight; where none is, the one that is nearest to the middle.
    const xs = line[view.x];
    if (view.zoom === null) return [0, xs.length - 1];
    const [from, to] = view.zoom;
    const first = notBefore(xs, from);
    const after = notBefore(xs, to);
    const last = xs[after] > to ? after - 1 : after;
    const middle = nearest(xs, (from + to) / 2);
    return first <= last && xs[first] >= from ? [first, last] : [middle, middle];
  }

  last() {
    const line = this.visible()[this.active];
    return line ? this.reach(line)[1] : -1;
  }

  point(event) {
    if (!this.scale) return;
    const x = this.scale.back(event.clientX - this.plot.getBoundingClientRect().left);
    this.read(nearest(this.visible()[this.active][view.x], x));
    if (this.from === null) return;
    const [from, to] = [this.from, this.inside(event)].sort((a, b) => a - b);
    if (to - from >= LEAST_DRAG)
      make(this.cursor, "rect", { class: "chosen", x: from, width: to - from, y: MARGIN.top, height: this.scale.bottom - MARGIN.top });
  }

  key(event) {
    const lines = this.visible();
    if (!lines.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const [first, last] = this.reach(lines[this.active]);
    const at = this.at ?? last;
    const page_ = Math.max(1, Math.round((last - first) / 10));
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - page_, PageDown: at + page_, Home: first, End: last, Escape: null };
    const zooms = { "+": () => this.closer(0.5), "=": () => this.closer(0.5), "-": () => this.closer(2), 0: () => zoom(null) };
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const x = lines[this.active][view.x][at];
      this.active = (this.active + (event.key === "ArrowDown" ? 1 : lines.length - 1)) % lines.length;
      this.read(nearest(lines[this.active][view.x], x));
    } else if (event.key in moves) {
      this.read(moves[event.key] === null ? null : Math.min(last, Math.max(first, moves[event.key])));
    } else if (event.key in zooms) {
      zooms[event.key]();
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
    const [first, last] = this.reach(main);
    const index = at === null ? last : Math.min(Math.max(at, first), last);
    if (at !== null) this.at = index;
    const x = main[view.x][index];
    const across = this.scale.x(x);
    if (at !== null)
      make(this.cursor, "line", { class: "cursor", x1: across, x2: across, y1: MARGIN.top, y2: this.scale.bottom });
    make(make(this.readout, "span"), "b", {}, `step ${main.step[index].toLocaleString("en")}`);
    if (view.x === "samples" || view.x === "epoch") make(this.readout, "span", {}, measured(view.x, x));
    make(this.readout, "span", {}, clock(main.time[index]));
    for (const line of lines) {
      const near = line === main ? index : at === null ? this.reach(line)[1] : nearest(line[view.x], x);
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

  columns(line) {
    // What table and file have of each point, by heading.
    const known = ["samples", "epoch"].filter((measure) => line[measure]);
    return [["step", line.step], ...known.map((measure) => [measure, line[measure]]), ["seconds", line.time], ["value", line.mean],
      ["least", line.low ?? line.mean], ["greatest", line.high ?? line.mean]];
  }

  table() {
    const parent = this.figure.querySelector(".numbers");
    parent.replaceChildren();
    if (!this.details.open) return;
    const written = { step: (value) => value.toLocaleString("en"), samples: (value) => Math.round(value).toLocaleString("en"), seconds: clock };
    for (const line of this.visible()) {
      const made = make(parent, "table");
      const every = Math.ceil(line.step.length / MOST_ROWS);
      make(made, "caption", {}, this.named(line) + (every > 1 ? `, every ${every}th point` : ""));
      const columns = this.columns(line).slice(0, line.low ? undefined : -2);
      const names = { seconds: "time", value: this.spec.title };
      const head = make(make(made, "thead"), "tr");
      for (const [name] of columns) make(head, "th", { scope: "col" }, names[name] ?? name);
      const body = make(made, "tbody");
      for (let at = 0; at < line.step.length; at += every) {
        const row = make(body, "tr");
        for (const [name, values] of columns) make(row, "td", {}, (written[name] ?? number)(values[at]));
      }
    }
  }

  save() {
    const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const cell = (name, value) => (value === null ? "" : name === "samples" ? Math.round(value) : value);
    const rows = ["run,curve,step,samples,epoch,seconds,value,least,greatest"];
    for (const line of this.visible()) {
      const columns = new Map(this.columns(line));
      const whose = [page.runs[line.run].label, page.runs.length === 1 ? this.named(line) : line.held_out ? "held out" : "training"];
      line.step.forEach((_, at) => {
        const cells = ["step", "samples", "epoch", "seconds", "value", "least", "greatest"].map((name) => cell(name, columns.get(name)?.[at] ?? null));
        rows.push([...whose.map(quoted), ...cells].join(","));
      });
    }
    const file = new Blob([rows.join("\r\n") + "\r\n"], { type: "text/csv" });
    const link = make(document.body, "a", { href: URL.createObjectURL(file), download: `${this.spec.title.replace(/[^\w .-]+/g, "_")}.csv`, hidden: "" });
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }
}

function measured(measure, value) {
  if (measure === "epoch") return `epoch ${trimmed(value.toFixed(2))}`;
  return `${Math.round(value).toLocaleString("en")} samples`;
}

function zoom(range) {
  // All charts show the same range. A range that has no width, or holds everything, is no zoom.
  const lines = charts.flatMap((chart) => chart.visible());
  const [low, high] = [Math.min(...lines.map((line) => line[view.x][0])), Math.max(...lines.map((line) => line[view.x].at(-1)))];
  const [from, to] = range === null ? [low, high] : [Math.max(low, range[0]), Math.min(high, range[1])];
  view.zoom = to <= from || (from <= low && to >= high) ? null : [from, to];
  redraw();
}
