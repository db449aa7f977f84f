// What the viewer has chosen, kept in the address so that a reload, or a link to a colleague, shows the same.

const DEFAULTS = {
  run: RUNS.findIndex((run) => run.details), shown: firstOfEachMethod(), klass: -1, reading: "age", order: "count",
  sort: "age", down: true, theme: "auto", curve: "", zoom: null, find: "", unsure: false, marked: "all",
};
const state = { ...DEFAULTS };
const listeners = [];

// By default one run of each method, four at most: seeds of one method look alike.
function firstOfEachMethod() {
  const seen = new Set();
  const places = [];
  for (const run of RUNS) {
    if (seen.has(run.method) || places.length === 4) continue;
    seen.add(run.method);
    places.push(run.place);
  }
  return places;
}

// Call `draw` now and whenever one of the named choices changes.
const drawing = []; // what was begun at the start, as promises
function follow(names, draw) {
  listeners.push([names, draw]);
  drawing.push(draw());
}

function choose(changes) {
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
  try {
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  } catch { /* a browser that keeps no address for files: choices last until a reload */ }
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
    try {
      const value = JSON.parse(words.get(name));
      if (isChoice(name, value)) state[name] = value;
    } catch { /* not ours */ }
  }
}

const CHOICES = { order: ["count", "age", "name"], theme: ["auto", "light", "dark"], marked: ["all", "none", "wrong", "ambiguous", "fine"] };
function isChoice(name, value) {
  if (name === "zoom") return Array.isArray(value) && value.length === 4 && value.every(Number.isFinite);
  return typeof value === typeof DEFAULTS[name] && (!CHOICES[name] || CHOICES[name].includes(value));
}

// Elements: text is always text, never markup.
function element(kind, attributes = {}, ...children) {
  const space = kind === "svg" || kind === "path" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(space, kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
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
  const made = element("select", { id, onchange: (event) => onchange(event.target.value) });
  for (const [key, label] of options) made.append(element("option", { value: key, selected: key === value }, label));
  return element("label", {}, `${text} `, made);
}

// Keeps the keyboard where it was when a part of the page is drawn anew.
function keepingFocus(draw) {
  const before = document.activeElement;
  const key = before && before.dataset ? before.dataset.key : null;
  draw();
  if (key && document.activeElement !== before) {
    const again = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key);
    if (again) again.focus({ preventScroll: true });
  }
}

function remembered(act) {
  try {
    return act();
  } catch { // a browser that keeps nothing for files
    return null;
  }
}
