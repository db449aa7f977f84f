// The runs side by side, what to do about them, and how to repeat them.

const SHOWN = 8; // runs at most that are drawn together
const current = () => RUNS[state.run];
const swatch = (place) => element("svg", { class: "swatch", width: 22, height: 10, "aria-hidden": "true" },
  element("path", { d: "M1,5H21", style: `stroke:${colourOf(place)}`, "stroke-dasharray": dashOf(place).join(" ") }));

function statusOf(run) {
  if (run.failed) return `failed in ${UNIT} ${run.failed}`;
  if (run.finished) return "finished";
  return `training, ${UNIT} ${run.epochs.at(-1) || 0}${run.planned ? ` of ${run.planned}` : ""}`;
}

function meanOf(values) {
  const there = [...(values || [])].filter(known);
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : NaN;
}

function oldestClass(run) {
  const ages = ageOf(run);
  if (!ages) return "";
  const place = ages.reduce((best, age, at) => (age > (ages[best] || 0) ? at : best), 0);
  return ages[place] > 1 ? `${run.names[place]} (${short(ages[place])})` : "";
}

const MEASURE = { accuracy: "Test accuracy" }[DATA.methods.measure] ?? spoken(`test_${DATA.methods.measure.replaceAll(" ", "_")}`);
const RUN_COLUMNS = [
  [UNIT === "step" ? "Steps" : "Epochs", (run) => whole(run.epochs.at(-1)), "number"],
  [`${MEASURE}, last`, (run) => percent(run.lastAccuracy), "number"],
  [STREAMS ? (UNIT === "step" ? "Mean of second half" : "Mean at the end") : "Mean of last 5%", (run) => percent(run.tailAccuracy), "number"],
  ["Mean class age", (run) => (run.details ? short(meanOf(ageOf(run))) : ""), "number"],
  ["Oldest class", oldestClass, ""],
  ["Samples still wrong", (run) => (run.samples ? `${whole(run.samples.wrong)} of ${whole(run.samples.total)}` : ""), "number"],
  ["Likely label errors", (run) => (run.samples ? whole(run.samples.likely) : ""), "number"],
  ["State", statusOf, ""],
];

function drawRuns() {
  const wanted = RUN_COLUMNS.filter(([, read]) => RUNS.some((run) => read(run) !== ""));
  const listed = RUNS.filter((run) => run.place < tables.runs || state.shown.includes(run.place) || run.place === state.run);
  const rows = listed.map((run) => {
    const on = state.shown.includes(run.place);
    const tick = element("input", {
      type: "checkbox", checked: on, disabled: state.shown.length >= SHOWN && !on, "data-key": `show-${run.place}`,
      "aria-label": `Show ${run.name}`, onchange: () => toggleRun(run.place),
    });
    const name = run.details ? button(run.name, {
      class: "plain", "data-key": `run-${run.place}`, "aria-pressed": run.place === state.run, onclick: () => choose({ run: run.place }),
    }) : run.name;
    return element("tr", { class: run.place === state.run ? "chosen" : "" },
      element("td", {}, element("label", { class: "tick" }, tick, on ? swatch(state.shown.indexOf(run.place)) : null)),
      element("th", { scope: "row" }, name), wanted.map(([, read, kind]) => element("td", { class: kind }, read(run))));
  });
  const heads = [["Show"], ["Run"], ...wanted.map(([name, , kind]) => [name, kind])];
  keepingFocus(() => fill("run-table", table(heads, rows)));
  drawMore("run-more", "runs", rows.length, RUNS.length, 48, drawRuns);
}

function toggleRun(place) {
  choose({ shown: state.shown.includes(place) ? state.shown.filter((each) => each !== place) : [...state.shown, place] });
}

function drawPicks() {
  fill("pick-run", RUNS.filter((run) => run.details).map((run) => element("option", { value: run.place }, run.name)));
  part("pick-run").value = String(state.run);
}

let listed = null; // the class names that the list holds now
function drawClassPick() {
  const run = current();
  if (!run) return;
  if (listed !== run.names) fill("class-names", run.names.map((name) => element("option", { value: name })));
  listed = run.names;
  part("pick-class").value = state.klass >= 0 ? run.names[state.klass] : "";
  part("clear-class").hidden = state.klass < 0;
}

// A button that chooses a class, or no class where it is chosen already.
const classButton = (run, place, kind, key, then = () => {}) => button(run.names[place], {
  class: kind, "aria-pressed": state.klass === place, "data-key": `${key}-${place}`,
  onclick: (event) => { choose({ klass: state.klass === place ? -1 : place }); then(event); },
});

// A line may not end between the dashes of a flag and its name.
const unbroken = (text) => text.split(/(--[\w-]+)/).map((word, at) => (at % 2 ? element("span", { class: "flag" }, word) : word));

function drawAdvice() {
  const run = current();
  if (!run) return;
  fill("advice-about", `${run.name}, the run that is chosen above.`);
  keepingFocus(() => fill("advice-list", run.advice.map(({ kind, text, see, classes, more }) => element("li", { class: `kind-${kind}` },
    element("p", {}, unbroken(text), " ", element("a", { href: `#${see}`, class: "see", onclick: (event) => goTo(event, see) }, "Show")),
    classes.length ? element("p", { class: "chips" }, classes.map((place) => classButton(run, place, "chip", "chip", (event) => state.klass === place && goTo(event, see))),
      more ? ` and ${times(more, "more class")}` : "") : null))));
}

// Sections are reached without touching the address, which holds the choices.
function goTo(event, id) {
  event?.preventDefault();
  part(id).scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  const heading = part(id).querySelector("h2");
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

const sections = () => [...document.querySelectorAll("main > section")].filter((section) => !section.hidden);

function drawLinks() {
  fill("links", sections().map(({ id, dataset }) => element("a", { href: `#${id}`, onclick: (event) => goTo(event, id) }, dataset.link)));
}

function copyButton(text, label = "Copy") {
  return button(label, { onclick: async ({ currentTarget }) => {
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    currentTarget.textContent = done ? "Copied" : "Select and copy it by hand";
    setTimeout(() => { currentTarget.textContent = label; }, 2000);
  } });
}

const said = (value) => (value === null || value === undefined ? "none" : String(value));

const pairs = (title, entries) => element("div", { class: "card" }, element("h3", {}, title), element("dl", { class: "columns" },
  entries.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, said(value))))));

// In what the shown runs differ, one column a run.
function differences(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))]
    .filter((name) => new Set(runs.map((run) => said(run.settings[name]))).size > 1);
  if (runs.length < 2 || !names.length) return null;
  const rows = names.map((name) => element("tr", {}, element("th", { scope: "row" }, name),
    runs.map((run) => element("td", {}, said(run.settings[name])))));
  return element("div", {}, element("h3", {}, "Settings that differ between the shown runs"),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings that differ" },
      element("table", {}, table([["Setting"], ...runs.map((run) => [run.name])], rows))));
}

function drawSettings() {
  const run = current() || RUNS[0];
  if (!run) return;
  fill("settings-body", [
    element("p", { class: "quiet" }, `${run.name}, in ${run.folder}`),
    run.command ? element("div", { class: "command" }, element("code", { tabindex: 0 }, run.command), copyButton(run.command))
      : element("p", {}, "The command of this run is not known."),
    differences(shownRuns()),
    element("div", { class: "grid cards" }, pairs("Settings", Object.entries(run.settings)), pairs("Versions", Object.entries(run.versions))),
  ].filter(Boolean));
}

function drawAbout() {
  fill("about-body",
    element("p", {}, `Written ${DATA.written} by aol ${DATA.version}. The page needs no network and sends nothing.`),
    element("p", {}, DATA.notes.length ? "To keep the page small:" : "This page shows everything that was recorded."),
    element("ul", {}, DATA.notes.map((note) => element("li", {}, note))));
}
