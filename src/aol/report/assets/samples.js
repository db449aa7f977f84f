// The oldest samples as a gallery, and those whose label is likely wrong, with the reasons in plain words.

const samplesOf = () => (current() ? current().samples : null);
const ofClass = (samples) => (row) => state.klass < 0 || samples.label[row] === state.klass;

function pictureOf(samples, row) {
  const place = samples.picture[row];
  if (place < 0) return element("div", { class: "nopicture", "aria-hidden": "true" }, "no picture");
  return element("img", { src: DATA.pictures[place], alt: `sample ${samples.id[row]}` });
}

function historyOf(run, samples, row) {
  const size = historyLength(run);
  const ages = agesOf(samples.history[row], size);
  const label = `age over the last ${times(size, "epoch")}, at most ${Math.max(...ages)}`;
  return sparkline(ages, { width: 128, height: 28, low: 0, steps: true, label });
}

// How many epochs an age history has: those of the run, up to what the page keeps.
function historyLength(run) {
  return Math.min(run.samples.historyEpochs, run.passed);
}

function answerOf(run, samples, row) {
  const answer = samples.prediction[row];
  if (answer < 0) return "answer not known";
  return `${run.names[answer] ?? answer}${known(samples.top[row]) ? ` (${percent(samples.top[row], 0)})` : ""}`;
}

const wrongOf = (samples, row) => `${samples.wrongEpochs[row]} of ${times(samples.seenEpochs[row], "epoch")}`;

function card(run, samples, row) {
  const wrong = samples.age[row] > 1;
  const lines = [["Label", run.names[samples.label[row]]], ["Answer", answerOf(run, samples, row)],
    ["Age", `${whole(samples.age[row])}${wrong ? "" : ", right"}`]];
  return element("li", { class: `card sample${samples.isLikely[row] ? " likely" : ""}` },
    element("div", { class: "row" }, pictureOf(samples, row), element("dl", {},
      lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]))),
    historyOf(run, samples, row),
    element("p", { class: "quiet" }, `sample ${samples.id[row]}, wrong in ${wrongOf(samples, row)}`));
}

function drawGallery() {
  const [run, samples] = [current(), samplesOf()];
  for (const id of ["samples", "errors"]) part(id).hidden = !samples;
  if (!samples) return;
  const rows = samples.oldest.filter(ofClass(samples));
  const which = state.klass < 0 ? "all classes" : `class “${run.names[state.klass]}”`;
  // The same number as under "About this page".
  const kept = state.klass < 0 ? "the oldest of all and of each class" : "the oldest";
  fill("sample-about", `${run.name}, ${which}: ${times(rows.length, "sample")}, ${kept}, the oldest first. `
    + `Of all ${whole(samples.total)} samples, ${whole(samples.wrong)} were wrong when last seen`
    + `${samples.unseen ? ` and ${whole(samples.unseen)} were never seen` : ""}.`);
  const first = rows.slice(0, tables.gallery);
  fill("gallery", first.map((row) => card(run, samples, row)));
  drawMore("gallery-more", "gallery", first.length, rows.length, 48, drawGallery);
}

function evidence(run, samples, row) {
  const [label, answer] = [samples.label[row], samples.prediction[row]];
  const named = (place) => `“${run.names[place] ?? place}”`;
  const said = [`Wrong in ${wrongOf(samples, row)}${samples.age[row] > 2 ? `, the last ${whole(samples.age[row] - 1)} in a row` : ""}.`];
  if (known(samples.other[row])) {
    said.push(`On average another class got ${percent(samples.other[row], 0)}, the label ${percent(samples.average[row], 0)}.`);
  }
  if (answer === label) said.push("Right in the end: perhaps memorised.");
  else if (answer >= 0) {
    said.push(known(samples.top[row])
      ? `Now ${named(answer)} gets ${percent(samples.top[row], 0)}, the label ${named(label)} ${percent(samples.confidence[row], 0)}.`
      : `The last answer is ${named(answer)}.`);
  }
  return said.join(" ");
}

function drawErrors() {
  const [run, samples] = [current(), samplesOf()];
  if (!samples) return;
  // A network that memorises everything is sure of every label: then the less clear cases are listed.
  const unsure = state.unsure || !samples.likely;
  const rows = samples.doubtful.filter(ofClass(samples)).filter((row) => unsure || samples.isLikely[row]);
  fill("error-about", `${times(samples.likely, "sample")} of ${run.name} with a score above one half, in classes that were `
    + "otherwise learnt. The score compares the probabilities of the label and of the best other class over all epochs, "
    + "relative to the median of the class. The model may be wrong: look before you change a label."
    + `${samples.likely || !rows.length ? "" : " Less clear cases are listed here."}`);
  const tick = element("input", { type: "checkbox", id: "unsure", onchange: (event) => choose({ unsure: event.target.checked }) });
  tick.checked = unsure;
  tick.disabled = !samples.likely;
  keepingFocus(() => fill("error-controls", element("label", { class: "tick" }, tick, " also less clear cases"),
    rows.length ? copyButton(rows.map((row) => samples.id[row]).join("\n"), "Copy the ids of these samples") : []));
  const first = rows.slice(0, tables.errors);
  const head = ["Sample", "Label", "Answer", "Score", "Age history", "Why"];
  fill("error-table", element("caption", {}, `${run.name}, the most suspicious first`),
    element("thead", {}, element("tr", {}, head.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, first.map((row) => element("tr", { class: samples.isLikely[row] ? "" : "unsure" },
      element("td", { class: "picture" }, pictureOf(samples, row), element("div", {}, samples.id[row])),
      element("td", {}, run.names[samples.label[row]]), element("td", {}, answerOf(run, samples, row)),
      element("td", { class: "number" }, known(samples.suspicion[row]) ? samples.suspicion[row].toFixed(3) : ""),
      element("td", {}, historyOf(run, samples, row)), element("td", { class: "why" }, evidence(run, samples, row))))));
  drawMore("error-more", "errors", first.length, rows.length, 50, drawErrors);
}

// How many samples have which age: most have one, and the few very old ones must stay visible.
async function drawSampleAges() {
  const samples = samplesOf();
  const host = part("sample-ages");
  if (!samples || samples.ages.length < 2) return clearChart(host);
  const rows = samples.ages.map(([from, to, count]) => ({ from, to, count })).filter((row) => row.count);
  const view = await chart(host, {
    ...fitted(host, 700), height: 120, title: { text: "How many samples have which age" },
    data: [{ name: "rows", values: rows }],
    scales: [
      { name: "x", type: "linear", domain: [0.5, samples.ages[samples.ages.length - 1][1] + 0.5], range: "width", zero: false, nice: false },
      { name: "y", type: "log", domain: [0.7, Math.max(...rows.map((row) => row.count))], range: "height", nice: false },
    ],
    axes: [
      { orient: "bottom", scale: "x", title: "age", tickCount: 8, format: "d", tickMinStep: 1 },
      { orient: "left", scale: "y", title: "samples (log)", grid: true, values: [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8], format: "~s" },
    ],
    marks: [{
      type: "rect", from: { data: "rows" },
      encode: {
        enter: {
          x: { signal: "scale('x', datum.from - 0.5) + 0.5" }, x2: { signal: "scale('x', datum.to + 0.5) - 0.5" },
          y: { scale: "y", field: "count" }, y2: { signal: "height" }, fill: { value: "var(--series-0)" },
        },
      },
    }],
  }, "Histogram of sample ages");
  if (!view) return undefined;
  hover(host, view, (x) => {
    const age = view.scale("x").invert(x);
    const bar = rows.find((row) => age >= row.from - 0.5 && age < row.to + 0.5);
    return bar ? [`age ${bar.from === bar.to ? bar.from : `${bar.from} to ${bar.to}`}`, times(bar.count, "sample")] : null;
  });
  return undefined;
}
