// The oldest samples as a gallery, and those whose label is likely wrong, with the reasons in plain words.

const samplesOf = () => (current() ? current().samples : null);
const ofClass = (samples) => (row) => (state.klass < 0 || samples.label[row] === state.klass)
  && (state.answer < 0 || samples.prediction[row] === state.answer);
const whichOf = (run) => (state.klass < 0 ? "all classes" : `class “${run.names[state.klass]}”`)
  + (state.answer < 0 ? "" : `, answered “${run.names[state.answer]}”`);

// A picture; where there is none, what the recorder was told of the sample: text, or a short table.
function pictureOf(samples, row) {
  const place = samples.picture[row];
  if (place >= 0) return element("img", { src: DATA.pictures[place], alt: `sample ${samples.id[row]}` });
  const about = samples.about ? samples.about[row] : null;
  if (typeof about === "string") return element("blockquote", { class: "about" }, about);
  if (Array.isArray(about)) return definitions("about", about);
  return element("div", { class: "nopicture", "aria-hidden": "true" }, "no picture");
}

function historyOf(run, samples, row) {
  const size = Math.min(samples.historyEpochs, run.passed);
  const ages = agesOf(samples.history[row], size);
  const label = `age over the last ${times(size, "epoch")}, at most ${Math.max(...ages)}`;
  return sparkline(ages, { width: 128, height: 28, low: 0, high: samples.historyMost, steps: true, label });
}

function answerOf(run, samples, row) {
  const answer = samples.prediction[row];
  if (answer < 0) return "answer not known";
  return `${run.names[answer] ?? answer}${known(samples.top[row]) ? ` (${percent(samples.top[row], 0)})` : ""}`;
}

const wrongOf = (samples, row) => `${samples.wrongEpochs[row]} of ${times(samples.seenEpochs[row], "epoch")}`;

function facts(run, samples, row) {
  return definitions("facts", [["Label", run.names[samples.label[row]]], ["Answer", answerOf(run, samples, row)],
    ["Age", `${whole(samples.age[row])}, ${samples.age[row] > 2 ? `wrong in the last ${whole(samples.age[row] - 1)} epochs` : samples.age[row] > 1 ? "wrong in the last epoch" : "right"}`],
    ...(samples.suggested[row] === samples.label[row] ? [] : [["Suggested", suggestedOf(run, samples, row)]])]);
}

function card(run, samples, rows, at, where) {
  const [row, doubted] = [rows[at], where === "errors"];
  return element("li", { class: `card sample ${samples.isLikely[row] ? "likely" : ""} marked-${markOf(run, samples, row)}` },
    element("div", { class: "row" }, button(pictureOf(samples, row), {
      class: "enlarge", "data-key": `enlarge-${where}-${row}`, "aria-label": `Enlarge sample ${samples.id[row]}`, onclick: () => enlarge(rows, at),
    }), facts(run, samples, row)),
    historyOf(run, samples, row),
    element("p", { class: "quiet" }, `sample ${samples.id[row]}, ${doubted ? `score ${short(samples.suspicion[row])}` : `wrong in ${wrongOf(samples, row)}`}`),
    ...(doubted ? [element("p", { class: "why" }, evidence(run, samples, row)), markButtons(run, samples, row, `${where}-${row}`)] : []));
}

function drawGallery() {
  const [run, samples] = [current(), samplesOf()];
  for (const id of ["samples", "errors"]) part(id).hidden = !samples;
  if (!samples) return;
  const rows = samples.oldest.filter(ofClass(samples));
  // The same number as under "About this page".
  const kept = state.klass < 0 ? "the oldest of all and of each class" : "the oldest";
  fill("sample-about", `${run.name}, ${whichOf(run)}: ${times(rows.length, "sample")} that ${rows.length === 1 ? "is" : "are"} wrong, ${kept}, the oldest first. `
    + `Of all ${whole(samples.total)} samples, ${whole(samples.wrong)} were wrong when last seen`
    + `${samples.unseen ? ` and ${whole(samples.unseen)} were never seen` : ""}.`
    + `${rows.some((row) => samples.isLikely[row]) ? " Framed: the label is likely wrong." : ""}`);
  const first = rows.slice(0, tables.gallery);
  fill("gallery", first.map((_, at) => card(run, samples, rows, at, "oldest")));
  drawMore("gallery-more", "gallery", first.length, rows.length, 24, drawGallery);
}

function drawTested() {
  const run = current();
  const samples = run && run.tested;
  part("tested").hidden = !samples;
  if (!samples) return;
  const rows = samples.id.map((_, row) => row).filter(ofClass(samples));
  const first = rows.slice(0, tables.tested);
  fill("tested-about", `${run.name}, ${whichOf(run)}: ${times(rows.length, "test sample")}, the surest mistakes first. `
    + `Of all ${whole(samples.total)} test samples ${whole(samples.wrong)} are wrong${samples.wrong > samples.id.length ? `; ${whole(samples.id.length)} are listed` : ""}.`);
  fill("tested-list", first.map((row) => element("li", { class: "card sample" }, element("div", { class: "row" }, pictureOf(samples, row),
    definitions("facts", [["Label", `${run.names[samples.label[row]]} (${percent(samples.confidence[row], 0)})`], ["Answer", answerOf(run, samples, row)]])),
  element("p", { class: "quiet" }, `test sample ${samples.id[row]}`))));
  drawMore("tested-more", "tested", first.length, rows.length, 24, drawTested);
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
  const rows = samples.doubtful.filter(ofClass(samples)).filter((row) => state.unsure || samples.isLikely[row])
    .filter(fitsMark(run, samples));
  fill("error-about", samples.likely
    ? `${times(samples.likely, "sample")} of ${run.name} with a score above one half, in classes that the model has learnt, both the `
      + "label's and the answer's. The model may be wrong: enlarge a card, mark what you see, and export the marks."
    : `No label of ${run.name} looks wrong: no score is above one half. The less clear cases may be worth a look.`);
  const tick = element("input", { type: "checkbox", id: "unsure", checked: state.unsure, onchange: (event) => choose({ unsure: event.target.checked }) });
  const count = markRows().length;
  keepingFocus(() => fill("error-controls", element("label", { class: "tick" }, tick, " include less clear cases"),
    selector("Show", "pick-marked", [["all", "all"], ["none", "not marked"], ...Object.entries(MARKS)], state.marked, (marked) => choose({ marked })),
    button(`Export ${times(count, "mark")} as CSV`, { id: "export-marks", disabled: !count, onclick: exportMarks }),
    rows.length ? copyButton(rows.map((row) => samples.id[row]).join("\n"), "Copy the ids of these samples") : []));
  const first = rows.slice(0, tables.errors);
  fill("error-list", first.map((_, at) => card(run, samples, rows, at, "errors")));
  if (rows.length || samples.likely) drawMore("error-more", "errors", first.length, rows.length, 24, drawErrors);
  else fill("error-more"); // the sentence above says it
}

// How many samples have which age: most have one, and the few very old ones must stay visible.
function drawSampleAges() {
  const samples = samplesOf();
  const host = part("sample-ages");
  if (!samples || samples.ages.length < 2) return clearChart(host);
  const rows = samples.ages.filter(([, , count]) => count).map(([from, to, count]) => ({
    from: from - 0.5, to: to + 0.5, count, tip: [`age ${from === to ? from : `${from} to ${to}`}`, times(count, "sample")],
  }));
  const oldest = samples.ages.at(-1)[1];
  return chart(host, {
    ...fitted(host, 700), height: 120, title: { text: "How many samples have which age" }, data: { values: rows },
    mark: { type: "bar", color: "var(--series-0)", tooltip: true },
    encoding: {
      x: {
        field: "from", bin: "binned", type: "quantitative", scale: { domain: [0.5, oldest + 0.5], nice: false }, axis: wholeAxis("age", 1, oldest),
      },
      x2: { field: "to" },
      y: {
        field: "count", type: "quantitative",
        scale: { type: "log", domain: [0.7, Math.max(...rows.map((row) => row.count))], nice: false },
        axis: { title: "samples (log)", grid: true, values: [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8], format: "~s" },
      },
      y2: { datum: 0.7 }, // a logarithmic axis has no zero for bars to stand on
    },
  }, "Histogram of sample ages");
}
