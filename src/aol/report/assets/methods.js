// The answer: methods side by side, what each gained over the baseline, and head, middle and tail as bars.

const points = (value) => (known(value) ? `${value >= 0 ? "+" : "−"}${Math.abs(100 * value).toFixed(1)}` : "");
const METHOD_COLUMNS = [
  ["Seeds", (row) => whole(row.seeds)],
  ["Accuracy", (row) => percent(row.accuracy)],
  ["SD", (row) => (known(row.spread) ? (100 * row.spread).toFixed(1) : "")],
  ["Gain", (row) => points(row.gain)],
  ["95% interval", (row) => (row.interval ? `${points(row.interval[0])} to ${points(row.interval[1])}` : "")],
];

const columnClass = (name) => `number${{ Gain: " gain", SD: " sd" }[name] || ""}`;
const PARTS = { head_accuracy: "Head", middle_accuracy: "Middle", tail_accuracy: "Tail" };

// A method has the colour of its run that is shown, so that bars and lines agree; the others have those that are left.
function methodColours(rows) {
  let next = state.shown.length;
  return rows.map((row) => {
    const at = state.shown.findIndex((each) => RUNS[each].method === row.method);
    return at >= 0 ? at : next++;
  });
}

function drawMethods() {
  const { rows, measures, answer, baseline } = DATA.methods;
  part("answer").hidden = !rows.length;
  if (!rows.length) return undefined;
  const others = measures.map((name, place) => [PARTS[name] || spoken(`test_${name}`), (row) => percent(row.measures[place])]);
  const columns = [...METHOD_COLUMNS, ...others].filter(([, read]) => rows.some((row) => read(row) !== ""));
  const sure = (row) => row.interval && (row.interval[0] > 0 ? "better" : row.interval[1] < 0 ? "worse" : "");
  const lost = RUNS.filter((run) => run.details && run.advice[0].kind === "unlearnt").length;
  const warning = lost ? `${lost} of ${times(RUNS.length, "run")} ${lost === 1 ? "has" : "have"} not learnt yet, so the figures below say little. ` : "";
  fill("answer-text", warning, answer || (rows.length > 1 ? "No method here was trained without weights, so there is no gain to tell." : ""));
  const colours = methodColours(rows);
  fill("method-table", element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Method"),
    columns.map(([name]) => element("th", { scope: "col", class: columnClass(name) }, name)))),
  element("tbody", {}, rows.map((row, place) => element("tr", { class: sure(row) || "" },
    element("th", { scope: "row" }, element("span", { class: "named" }, swatch(colours[place]), element("span", {}, row.name))),
    columns.map(([name, read]) => element("td", { class: columnClass(name) }, read(row)))))));
  fill("method-about", [
    "On test, at the end of training, mean over seeds.",
    baseline ? `Gains are points of accuracy over ${baseline}, paired by seed, with Student's interval${rows.length > 2 ? ", not corrected for the number of methods" : ""}.` : "",
    measures.includes("balanced_accuracy") ? "" : "The test set is balanced: accuracy is balanced accuracy.",
    measures.includes("tail_accuracy") ? "Head, middle and tail are thirds of the classes by training samples." : "",
  ].filter(Boolean).join(" "));
  return drawBars(rows.slice(0, 8), measures, colours);
}

const BARS = [...Object.entries(PARTS), ["worst_class", "Worst class"]];

function drawBars(rows, measures, colours) {
  const host = part("method-bars");
  const parts = BARS.filter(([name]) => measures.includes(name));
  if (parts.length * rows.length < 2) return clearChart(host); // one number is in the table
  const read = (row, name) => row.measures[measures.indexOf(name)];
  const values = parts.flatMap(([name, text]) => {
    const tip = [text, ...rows.filter((row) => known(read(row, name))).map((row) => `${row.name}: ${percent(read(row, name))}`)];
    return rows.map((row, place) => ({ text, place, value: read(row, name), colour: colourOf(colours[place]), tip }));
  }).filter((each) => known(each.value));
  const number = {
    mark: { type: "text", dy: -3, baseline: "bottom", fontSize: 10, color: "var(--quiet)" },
    encoding: { text: { field: "value", format: ".0%" } },
  };
  return chart(host, {
    ...fitted(host, 560), height: 190, title: { text: "Test accuracy of parts of the classes", offset: 14 },
    data: { values },
    encoding: {
      x: {
        field: "text", type: "nominal", sort: null, title: null, scale: { padding: 0.25 },
        axis: { labelAngle: 0, ticks: false, labelPadding: 6, labelFontSize: 12 },
      },
      xOffset: { field: "place", type: "nominal", scale: { padding: 0.08 } },
      y: {
        field: "value", type: "quantitative", title: null, stack: null, scale: { domain: [0, 1] },
        axis: { grid: true, tickCount: 5, format: ".0%" },
      },
    },
    layer: [
      { mark: { type: "bar", tooltip: true }, encoding: { color: { field: "colour", type: "nominal", scale: null } } },
      ...(rows.length > 4 ? [] : [number]),
    ],
  }, "Test accuracy of head, middle, tail and worst class by method");
}
