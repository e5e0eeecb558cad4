// The page's controls, its tables, and a page that is written again while its job runs.
const charts = page.charts.map((spec) => new Chart(spec));
const redraw = () => charts.forEach((chart) => chart.draw());

// ---- controls

for (const choice of document.querySelectorAll("input[name=x]"))
  choice.addEventListener("change", () => {
    view.x = choice.value;
    view.zoom = null;
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

const root = document.documentElement;
const theme = document.getElementById("theme");
function dress(next) {
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  theme.textContent = `Theme: ${next}`;
}
theme.addEventListener("click", () => dress({ system: "dark", dark: "light", light: "system" }[root.dataset.theme ?? "system"]));
theme.disabled = false;

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

// ---- tables that are wider than the screen say so

for (const hint of document.querySelectorAll(".sideways")) {
  const box = hint.nextElementSibling;
  const watch = new ResizeObserver(() => (hint.hidden = box.scrollWidth <= box.clientWidth + 1));
  watch.observe(box);
  watch.observe(box.firstElementChild);
}

for (const button of document.querySelectorAll(".csv")) button.hidden = false; // without a script there is nothing to save

// ---- a page that is written again while its job runs: it loads itself anew and looks as before

const KEPT = `shoal report ${location.pathname}`;
const folds = [...document.querySelectorAll("details")];

function keep() {
  const focus = charts.findIndex((chart) => chart.plot === document.activeElement);
  const state = { ...view, hidden: [...view.hidden], theme: root.dataset.theme ?? "system", open: folds.map((fold) => fold.open), focus, at: charts[focus]?.at ?? null, scroll: scrollY };
  sessionStorage.setItem(KEPT, JSON.stringify(state));
}

function restore(state) {
  if (page.axes.includes(state.x)) [view.x, view.zoom] = [state.x, state.zoom];
  [view.log, view.smooth, view.hidden] = [state.log, state.smooth, new Set(state.hidden)];
  for (const choice of document.querySelectorAll("input[name=x]")) choice.checked = choice.value === view.x;
  for (const name of ["log", "smooth"]) document.getElementById(name).checked = view[name];
  for (const button of document.querySelectorAll("button[data-run]"))
    button.setAttribute("aria-pressed", String(!view.hidden.has(Number(button.dataset.run))));
  if (state.open.length === folds.length) folds.forEach((fold, place) => (fold.open = state.open[place]));
  dress(state.theme);
  redraw();
  charts[state.focus]?.plot.focus();
  charts[state.focus]?.read(state.at);
  scrollTo(0, state.scroll);
}

try {
  const state = sessionStorage.getItem(KEPT);
  sessionStorage.removeItem(KEPT);
  if (state !== null) restore(JSON.parse(state));
} catch {
  // A browser that keeps nothing for files shows the page as it is at first.
}

if (root.dataset.live) {
  // At the last moment: between reload() and the end of this page somebody may still choose something.
  addEventListener("pagehide", () => {
    try {
      keep();
    } catch {
      // As above.
    }
  });
  setInterval(() => {
    if (document.hidden || charts.some((chart) => chart.from !== null)) return; // nobody looks, or somebody drags
    location.reload();
  }, Number(root.dataset.live) * 1000);
}
