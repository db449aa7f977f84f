// The runs side by side, what to do about them, and how to repeat them.

const SHOWN = 8; // runs at most that are drawn together
const current = () => RUNS[state.run];
const swatch = (place) => element("svg", { class: "swatch", width: 22, height: 10, "aria-hidden": "true" },
  element("path", {
    d: "M1,5H21", style: `stroke:${colourOf(place)}`, "stroke-dasharray": dashOf(place).join(" "),
  }));

function statusOf(run) {
  if (run.failed) return `failed in ${UNIT} ${run.failed}`;
  if (run.finished) return "finished";
  const last = run.epochs[run.epochs.length - 1] || 0;
  return `training, ${UNIT} ${last}${run.planned ? ` of ${run.planned}` : ""}`;
}

function meanOf(values) {
  const there = [...(values || [])].filter(known);
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : NaN;
}

function oldestClass(run) {
  const ages = ageOf(run);
  if (!ages) return "";
  const place = ages.reduce((best, age, each) => (age > (ages[best] || 0) ? each : best), 0);
  return known(ages[place]) ? `${run.names[place]} (${short(ages[place])})` : "";
}

const RUN_COLUMNS = [
  [UNIT === "step" ? "Steps" : "Epochs", (run) => whole(run.epochs[run.epochs.length - 1]), true],
  ["Test accuracy, last", (run) => percent(run.lastAccuracy), true],
  [STREAMS ? (UNIT === "step" ? "Mean of second half" : "Mean at the end") : "Mean of last 5%", (run) => percent(run.tailAccuracy), true],
  ["Mean class age", (run) => (run.details ? short(meanOf(ageOf(run))) : ""), true],
  ["Oldest class", oldestClass, false],
  ["Samples still wrong", (run) => (run.samples ? `${whole(run.samples.wrong)} of ${whole(run.samples.total)}` : ""), true],
  ["Likely label errors", (run) => (run.samples ? whole(run.samples.likely) : ""), true],
  ["State", statusOf, false],
];

function drawRuns() {
  const wanted = RUN_COLUMNS.filter(([, read]) => RUNS.some((run) => read(run) !== ""));
  const head = element("tr", {}, element("th", { scope: "col" }, "Show"), element("th", { scope: "col" }, "Run"),
    wanted.map(([name, , number]) => element("th", { scope: "col", class: number ? "number" : "" }, name)));
  const full = state.shown.length >= SHOWN;
  const listed = RUNS.filter((run) => run.place < tables.runs || state.shown.includes(run.place) || run.place === state.run);
  const rows = listed.map((run) => {
    const on = state.shown.includes(run.place);
    const tick = element("input", {
      type: "checkbox", checked: on, disabled: full && !on, "data-key": `show-${run.place}`,
      "aria-label": `Show ${run.name}`, onchange: () => toggleRun(run.place),
    });
    tick.checked = on;
    const name = run.details
      ? element("button", {
        type: "button", class: "plain", "data-key": `run-${run.place}`,
        "aria-pressed": run.place === state.run ? "true" : "false", onclick: () => choose({ run: run.place }),
      }, run.name)
      : element("span", {}, run.name);
    return element("tr", { class: run.place === state.run ? "chosen" : "" },
      element("td", {}, element("label", { class: "tick" }, tick, on ? swatch(state.shown.indexOf(run.place)) : null)),
      element("th", { scope: "row" }, name),
      wanted.map(([, read, number]) => element("td", { class: number ? "number" : "" }, read(run))));
  });
  keepingFocus(() => fill("run-table", element("thead", {}, head), element("tbody", {}, rows)));
  drawMore("run-more", "runs", rows.length, RUNS.length, 48, drawRuns);
}

function toggleRun(place) {
  const shown = state.shown.includes(place) ? state.shown.filter((each) => each !== place) : [...state.shown, place];
  choose({ shown });
}

function drawPicks() {
  const pick = part("pick-run");
  pick.replaceChildren(...RUNS.filter((run) => run.details).map((run) =>
    element("option", { value: run.place, selected: run.place === state.run }, run.name)));
  pick.value = String(state.run);
}

let listed = null; // the class names that the list holds now
function drawClassPick() {
  const run = current();
  if (!run) return;
  if (listed !== run.names) {
    fill("class-names", run.names.map((name) => element("option", { value: name })));
    listed = run.names;
  }
  part("pick-class").value = state.klass >= 0 ? run.names[state.klass] : "";
  part("clear-class").hidden = state.klass < 0;
}

const classButton = (run, place) => element("button", {
  type: "button", class: "chip", "aria-pressed": state.klass === place ? "true" : "false",
  "data-key": `chip-${place}`, onclick: () => chooseClass(place),
}, run.names[place]);

function chooseClass(place) {
  choose({ klass: state.klass === place ? -1 : place });
}

// A line may not end between the dashes of a flag and its name.
function unbroken(text) {
  return text.split(/(--[\w-]+)/).map((word, at) => (at % 2 ? element("span", { class: "flag" }, word) : word));
}

function drawAdvice() {
  const run = current();
  if (!run) return;
  keepingFocus(() => fill("advice-list", run.advice.map((each) => {
    const link = element("a", { href: `#${each.see}`, class: "see", onclick: (event) => goTo(event, each.see) }, "Show");
    const more = each.more ? ` and ${times(each.more, "more class")}` : "";
    return element("li", { class: `kind-${each.kind}` }, element("p", {}, unbroken(each.text), " ", link),
      each.classes.length ? element("p", { class: "chips" }, each.classes.map((place) => classButton(run, place)), more)
        : null);
  })));
}

// Sections are reached without touching the address, which holds the choices.
function goTo(event, id) {
  event.preventDefault();
  const target = part(id);
  target.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  const heading = target.querySelector("h2") || target;
  heading.setAttribute("tabindex", "-1");
  heading.focus({ preventScroll: true });
}

function drawLinks() {
  const parts = [...document.querySelectorAll("main > section")].filter((section) => !section.hidden);
  fill("links", parts.map((section) => element("a", {
    href: `#${section.id}`, onclick: (event) => goTo(event, section.id),
  }, section.dataset.link)));
}

function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", onclick: async () => {
    const done = await copy(text);
    button.textContent = done ? "Copied" : "Select and copy it by hand";
    setTimeout(() => { button.textContent = label; }, 2000);
  } }, label);
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

const said = (value) => (value === null || value === undefined ? "none" : String(value));

function pairs(title, entries) {
  return element("div", { class: "card" }, element("h3", {}, title), element("dl", { class: "columns" },
    entries.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, said(value))))));
}

// In what the shown runs differ, one column a run.
function differences(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))]
    .filter((name) => new Set(runs.map((run) => said(run.settings[name]))).size > 1);
  if (runs.length < 2 || !names.length) return null;
  return element("div", {}, element("h3", {}, "Settings that differ between the shown runs"),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings that differ" },
      element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Setting"),
          runs.map((run) => element("th", { scope: "col" }, run.name)))),
        element("tbody", {}, names.map((name) => element("tr", {}, element("th", { scope: "row" }, name),
          runs.map((run) => element("td", {}, said(run.settings[name])))))))));
}

function drawSettings() {
  const run = current() || RUNS[0];
  if (!run) return;
  fill("settings-body", [
    element("p", { class: "quiet" }, `${run.name}, in ${run.folder}`),
    run.command ? element("div", { class: "command" }, element("code", { tabindex: 0 }, run.command),
      copyButton(run.command)) : element("p", {}, "The command of this run is not known."),
    differences(shownRuns()),
    element("div", { class: "grid cards" }, pairs("Settings", Object.entries(run.settings)),
      pairs("Versions", Object.entries(run.versions))),
  ].filter(Boolean));
}

function drawAbout() {
  const list = DATA.notes.length
    ? [element("p", {}, "To keep the page small:"), element("ul", {}, DATA.notes.map((note) => element("li", {}, note)))]
    : [element("p", {}, "This page shows everything that was recorded.")];
  fill("about-body", [
    element("p", {}, `Written ${DATA.written} by aol ${DATA.version}. The page needs no network and sends nothing.`),
    element("p", {}, "A right answer sets a sample's age to 1, a wrong one adds 1. A class's age is the mean age of its "
      + "samples; weights follow the smoothed age. An old class or sample is one that has been wrong for long."),
    ...list,
  ]);
}
