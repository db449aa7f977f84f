// The answer: methods side by side, what each gained over the baseline, and head, middle and tail as bars.

const points = (value) => (known(value) ? `${value >= 0 ? "+" : "−"}${Math.abs(100 * value).toFixed(1)}` : "");
const PARTS = { head_accuracy: "Head", middle_accuracy: "Middle", tail_accuracy: "Tail", accuracy: "Accuracy" };
const measureName = (name) => PARTS[name] || spoken(`test_${name}`);
const METHOD_COLUMNS = [
  ["Seeds", (row) => whole(row.seeds)],
  [measureName(DATA.methods.measure.replaceAll(" ", "_")), (row) => percent(row.figure)],
  ["SD", (row) => (known(row.spread) ? (100 * row.spread).toFixed(1) : "")],
  ["Gain", (row) => points(row.gain)],
  ["95% interval", (row) => (row.interval ? row.interval.map(points).join(" to ") : "")],
  ...DATA.methods.measures.map((name, place) => [measureName(name), (row) => percent(row.measures[place])]),
  ["Worst classes", (row) => row.worst.filter(([, right]) => known(right)).map(([name, right]) => `“${name}” ${percent(right, 0)}`).join(", ")],
];
const columnClass = (name) => (name === "Worst classes" ? "worst" : `number${{ Gain: " gain", SD: " sd" }[name] || ""}`);

// A method has the colour of its run that is shown, so that bars and lines agree; the others have those that are left.
function methodColours(rows) {
  let next = state.shown.length;
  return rows.map((row) => {
    const at = state.shown.findIndex((each) => RUNS[each].method === row.method);
    return at >= 0 ? at : next++;
  });
}

function drawMethods() {
  const { rows, measures, answer, about } = DATA.methods;
  part("answer").hidden = !rows.length;
  if (!rows.length) return undefined;
  const columns = METHOD_COLUMNS.filter(([, read]) => rows.some((row) => read(row) !== ""));
  const lost = RUNS.filter((run) => run.details && run.advice[0].kind === "unlearnt").length;
  const warning = lost ? `${lost} of ${times(RUNS.length, "run")} ${lost === 1 ? "has" : "have"} not learnt yet: ${lost === 1 ? "its" : "their"} figures say little. ` : "";
  fill("answer-text", warning, answer || (rows.length > 1 ? "No method here was trained without weights, so there is no gain to tell." : ""));
  const colours = methodColours(rows);
  fill("method-table", table([["Method"], ...columns.map(([name]) => [name, columnClass(name)])], rows.slice(0, tables.methods).map((row, place) => element("tr", { class: row.verdict },
    element("th", { scope: "row" }, element("span", { class: "named" }, swatch(colours[place]), element("span", {}, row.name))),
    columns.map(([name, read]) => element("td", { class: columnClass(name) }, read(row)))))));
  drawMore("method-more", "methods", Math.min(rows.length, tables.methods), rows.length, 38, drawMethods);
  fill("method-about", about);
  return drawBars(rows.slice(0, 8), measures, colours);
}

function drawBars(rows, measures, colours) {
  const host = part("method-bars");
  const parts = ["head_accuracy", "middle_accuracy", "tail_accuracy", "worst_class"].filter((name) => measures.includes(name));
  if (parts.length * rows.length < 2) return clearChart(host); // one number is in the table
  const values = parts.flatMap((name) => {
    const bars = rows.map((row, place) => ({
      text: measureName(name), place, name: row.name, value: row.measures[measures.indexOf(name)], colour: colourOf(colours[place]),
    })).filter((bar) => known(bar.value));
    const tip = [measureName(name), ...bars.map((bar) => `${bar.name}: ${percent(bar.value)}`)];
    return bars.map((bar) => ({ ...bar, tip }));
  });
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
      ...(fitted(host, 560).width / (parts.length * rows.length) < 36 ? [] : [number]), // where they do not collide
    ],
  }, "Test accuracy of head, middle, tail and worst class by method");
}
