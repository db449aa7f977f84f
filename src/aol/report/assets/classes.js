// The classes of one run: age against number of samples, and a table that can be sorted and searched.

const ROWS = 100; // of a table at first; the rest on request
const tables = { methods: 12, runs: 12, classes: ROWS, gallery: 24, errors: 24, tested: 24 };

const CLASS_COLUMNS = [
  { key: "name", title: "Class", read: (run, place) => run.names[place], text: true },
  { key: "count", title: "Samples", read: (run, place) => (run.counts ? run.counts[place] : NaN), show: whole },
  { key: "age", title: "Age" },
  { key: "trend", title: "Trend", read: (run, place) => (run.trend ? run.trend[place] : NaN), show: signed, spark: true },
  ...["smoothed_age", "mean_age", "weight", "test_accuracy", "train_accuracy", "train_loss", "train_margin", "test_age"]
    .map((key) => ({ key, title: { mean_age: "Mean age", train_loss: "Loss", train_margin: "Margin" }[key] || spoken(key) })),
  { key: "confused", title: "Mostly taken for", read: confusedShare, showAt: confusedText },
];

function signed(value) {
  if (!known(value)) return "";
  return Math.abs(value) < 0.005 ? "0.00" : `${value > 0 ? "+" : ""}${short(value)}`;
}

function confusedShare(run, place) {
  return run.confused && run.confused.answer[place] >= 0 ? run.confused.share[place] : NaN;
}

function confusedText(run, place) {
  const share = confusedShare(run, place);
  return known(share) ? `${run.names[run.confused.answer[place]]} (${percent(share, 0)})` : "";
}

const valueOf = (run, { key, read }, place) =>
  (read ? read(run, place) : run.last[key] ? run.last[key][place] : NaN);

function sortedClasses(run) {
  const key = state.sort === "age" && run.last && !run.last.age ? "smoothed_age" : state.sort;
  const by = CLASS_COLUMNS.find((each) => each.key === key) || CLASS_COLUMNS[2];
  const wanted = state.find.trim().toLowerCase();
  const places = classOrder(run, by.text ? "name" : "count")
    .filter((place) => !wanted || run.names[place].toLowerCase().includes(wanted));
  if (by.text) return state.down ? places.reverse() : places;
  const values = new Map(places.map((place) => [place, valueOf(run, by, place)]));
  const testAccuracy = (place) => run.last?.test_accuracy?.[place] ?? 0;
  return places.sort((a, b) => { // what is not known comes last, whichever way
    const [one, two] = [values.get(a), values.get(b)];
    if (!known(one) || !known(two)) return known(two) - known(one);
    return (state.down ? two - one : one - two) || testAccuracy(a) - testAccuracy(b); // of equal ages the worst first
  });
}

function classHead(columns) {
  return columns.map(({ key, title, text, showAt }) => {
    const sorted = state.sort === key ? (state.down ? "descending" : "ascending") : "none";
    const sortBy = () => choose({ sort: key, down: state.sort === key ? !state.down : !text });
    return element("th", { scope: "col", "aria-sort": sorted, class: text || showAt ? "" : "number" },
      element("button", { type: "button", class: "sort", "data-key": `sort-${key}`, onclick: sortBy },
        title, element("span", { "aria-hidden": "true" }, { none: "", descending: " ▼", ascending: " ▲" }[sorted])));
  });
}

function classRow(run, columns, place, ages) {
  const cells = columns.map((each) => {
    const value = valueOf(run, each, place);
    if (each.text) return element("th", { scope: "row" }, classButton(run, place, "plain", "class"));
    if (each.showAt) return element("td", {}, each.showAt(run, place));
    const text = each.show ? each.show(value) : shown(each.key, value);
    return element("td", { class: "number" }, each.spark && ages ? [sparkOf(run, place, ages, text), element("span", { class: "trend" }, text)] : text);
  });
  return element("tr", { class: state.klass === place ? "chosen" : "" }, cells);
}

// Thirty points of a class's age over time.
function sparkOf(run, place, ages, text) {
  const step = Math.max(1, Math.floor(ages.epochs.length / 30));
  const values = ages.epochs.map((_, row) => ages.values[row * run.names.length + place])
    .filter((_, row) => (ages.epochs.length - 1 - row) % step === 0);
  return sparkline(values, { low: ages.low, high: ages.high, label: `age over time, ${text || "no change known"} over the last quarter` });
}

function drawClassTable() {
  const run = current();
  if (!run) return;
  const tells = (each) => (value) => known(value) && (each.key !== "weight" || value !== 1); // weights that are all one say nothing
  const columns = CLASS_COLUMNS.filter((each) => each.text || run.names.some((_, place) => tells(each)(valueOf(run, each, place))));
  const places = sortedClasses(run);
  const ages = overTime(run, "age");
  const first = places.slice(0, tables.classes);
  keepingFocus(() => fill("class-table", element("caption", {}, `${run.name}, after the last ${UNIT}`),
    element("thead", {}, element("tr", {}, classHead(columns))),
    element("tbody", {}, first.map((place) => classRow(run, columns, place, ages)))));
  drawMore("class-more", "classes", first.length, places.length, ROWS, drawClassTable);
}

// How much of a list is shown, and ways to see more: a step, if that is not all, and all.
function drawMore(id, name, count, total, step, draw) {
  const more = (key, to, text) => button(text, {
    "data-key": `${id}-${key}`, onclick: () => { tables[name] = to; keepingFocus(draw); },
  });
  fill(id, total > count ? [
    `${whole(count)} of ${whole(total)} shown `,
    ...(total > count + step ? [more("some", count + step, `${step} more`), " "] : []),
    more("all", total, "All"),
  ] : total ? [] : ["Nothing to show."]);
}

function drawClassControls() {
  const oninput = (event) => { tables.classes = ROWS; choose({ find: event.target.value }); };
  fill("class-controls", element("label", {}, "Find a class ", element("input", {
    type: "search", id: "find-class", value: state.find, autocomplete: "off", spellcheck: "false", oninput })));
}

// Old and rare, or old and common? Every class at its number of samples and its age.
async function drawScatter() {
  const run = current();
  const age = run && run.counts ? ageOf(run) : null;
  const rows = !age ? [] : run.names.map((name, place) => {
    const right = run.last.test_accuracy ? run.last.test_accuracy[place] : NaN;
    const tip = [name, `${times(run.counts[place], "sample")}, age ${short(age[place])}`];
    if (known(right)) tip.push(`test accuracy ${percent(right)}`);
    return { place, name, count: Math.max(1, run.counts[place]), age: age[place], right, tip };
  }).filter((row) => known(row.age));
  const host = part("scatter");
  if (!rows.length) return clearChart(host); // no ages: no chart
  const view = await chart(host, scatterSpec(host, rows), "Age of every class against its number of samples");
  return view && onClick(view, (row) => choose({ klass: row.place }));
}

// Which points carry their names: the oldest first, as long as no name lies on another. Places are about those of Vega.
function nameWithRoom(rows, width) {
  const scaled = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return values.map((value) => (value - low) / (high - low || 1));
  };
  const [x, y] = [scaled(rows.map((row) => Math.log(row.count))), scaled(rows.map((row) => row.age))];
  const taken = [];
  for (const at of rows.map((_, place) => place).sort((a, b) => rows[b].age - rows[a].age || a - b)) {
    const box = [x[at] * width, y[at] * 180, 7 * Math.min(rows[at].name.length, 18) + 8];
    rows[at].named = taken.length < 30 && taken.every(([left, top, wide]) =>
      Math.abs(top - box[1]) > 13 || left + wide < box[0] || box[0] + box[2] < left);
    if (rows[at].named) taken.push(box);
  }
}

function scatterSpec(host, rows) {
  const ifChosen = (yes, no) => ({ condition: { test: `datum.place === ${state.klass}`, value: yes }, value: no });
  const accuracy = {
    field: "right", type: "quantitative", scale: { domain: [0, 1], scheme: "viridis" },
    legend: { title: ["Test", "accuracy"], format: ".0%", gradientLength: 140 },
  };
  const fill = rows.some((row) => known(row.right))
    ? { condition: { test: "isValid(datum.right)", ...accuracy }, value: "transparent" } : { value: "var(--series-0)" };
  const names = { // those that have room
    transform: [{ filter: "datum.named" }],
    mark: { type: "text", align: "left", dx: 8, dy: -6, fontSize: 11, color: "var(--quiet)", limit: 120 },
    encoding: { text: { field: "name" } },
  };
  nameWithRoom(rows, fitted(host).width - 110);
  return {
    ...fitted(host), height: 230, title: { text: "Age against number of samples" }, data: { values: rows },
    encoding: {
      x: {
        field: "count", type: "quantitative", scale: { type: "log", padding: 14, nice: false },
        axis: { title: "training samples of the class", format: "~s", tickCount: 5, labelOverlap: true },
      },
      y: { field: "age", type: "quantitative", scale: { zero: false }, axis: { grid: true, tickCount: 5 } },
    },
    layer: [
      { mark: { type: "circle", opacity: 0, size: 1200, tooltip: true } }, // beside a point counts too
      {
        mark: { type: "point", opacity: 1, invalid: null, tooltip: true },
        encoding: { fill, size: ifChosen(160, 60), stroke: ifChosen("var(--mark)", "var(--line)"), strokeWidth: ifChosen(3, 1) },
      },
      names,
    ],
  };
}
