// What the viewer has chosen, kept in the address so that a reload, or a link to a colleague, shows the same.

const DEFAULTS = {
  run: RUNS.findIndex((run) => run.details), shown: firstOfEachMethod(), klass: -1, answer: -1, reading: "age", order: "count",
  sort: "age", down: true, theme: "auto", curve: "", zoom: null, find: "", unsure: false, marked: "all",
};
const state = { ...DEFAULTS };
const listeners = [];

// By default one run of each method, four at most, the baseline first: seeds of one method look alike.
function firstOfEachMethod() {
  const first = RUNS.filter((run) => RUNS.find(({ method }) => method === run.method) === run);
  const isBaseline = ({ method }) => method === DATA.methods.rows[0]?.method;
  return [...first.filter(isBaseline), ...first.filter((run) => !isBaseline(run))].slice(0, 4).map((run) => run.place);
}

// Call `draw` now and whenever one of the named choices changes.
const drawing = []; // what was begun at the start, as promises
function follow(names, draw) {
  listeners.push([names, draw]);
  drawing.push(draw());
}

function choose(changes) {
  if ("klass" in changes || "run" in changes) changes = { answer: -1, ...changes }; // that of a cell of the confusion matrix
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  if (!changed.length) return;
  remember();
  for (const [names, draw] of listeners) if (names.some((name) => changed.includes(name))) draw();
}

function remember() {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (JSON.stringify(value) === JSON.stringify(DEFAULTS[name])) continue;
    if (name === "run") words.set(name, RUNS[value].name);
    else if (name === "shown") value.forEach((place) => words.append(name, RUNS[place].name));
    else if (name === "klass") words.set(name, RUNS[state.run].names[value]);
    else words.set(name, JSON.stringify(value));
  }
  const text = words.toString();
  // A browser that keeps no address for files: choices last until a reload.
  remembered(() => history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search));
}

// Choices from the address; what is not known here, or is not of the right kind, is passed over.
function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const placeOf = (name) => RUNS.findIndex((run) => run.name === name);
  const run = placeOf(words.get("run"));
  if (run >= 0 && RUNS[run].details) state.run = run;
  const places = words.getAll("shown").map(placeOf).filter((place) => place >= 0);
  if (places.length) state.shown = [...new Set(places)];
  if (words.has("klass") && state.run >= 0) state.klass = RUNS[state.run].names.indexOf(words.get("klass"));
  for (const name of ["reading", "order", "sort", "theme", "curve", "find", "down", "unsure", "marked", "zoom"]) {
    const value = remembered(() => JSON.parse(words.get(name)));
    if (value !== null && isChoice(name, value)) state[name] = value;
  }
}

const CHOICES = { order: ["count", "age", "name"], theme: ["auto", "light", "dark"], marked: ["all", "none", "wrong", "ambiguous", "fine", "accepted"] };
function isChoice(name, value) {
  if (name === "zoom") return Array.isArray(value) && value.length === 4 && value.every(Number.isFinite);
  return typeof value === typeof DEFAULTS[name] && (!CHOICES[name] || CHOICES[name].includes(value));
}

// What may fail: text that is not ours, or a browser that keeps nothing for files.
function remembered(act) {
  try {
    return act();
  } catch {
    return null;
  }
}

// Elements: text is always text, never markup.
function element(kind, attributes = {}, ...children) {
  const space = kind === "svg" || kind === "path" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(space, kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-")) made.setAttribute(name, String(value));
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
const part = (id) => document.getElementById(id);
const fill = (id, ...children) => part(id).replaceChildren(...children.flat());
const button = (text, attributes) => element("button", { type: "button", ...attributes }, text);
// The content of a table: heads are [text, class], rows are elements.
const table = (heads, rows) => [
  element("thead", {}, element("tr", {}, heads.map(([text, kind]) => element("th", { scope: "col", class: kind }, text)))),
  element("tbody", {}, rows),
];
const definitions = (kind, pairs) => element("dl", { class: kind }, pairs.flatMap(([name, value]) => [
  element("dt", {}, name), element("dd", {}, value)]));

function selector(text, id, options, value, onchange) {
  const made = element("select", { id, onchange: (event) => onchange(event.target.value) },
    options.map(([key, label]) => element("option", { value: key, selected: key === value }, label)));
  return element("label", {}, `${text} `, made);
}

// Keeps the keyboard where it was when a part of the page is drawn anew.
function keepingFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (key && document.activeElement?.dataset?.key !== key) {
    [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus({ preventScroll: true });
  }
}
