// Marks on labels: what the viewer found, kept in this browser and written as CSV with the samples' own names.

const MARKS = { wrong: "Wrong label", ambiguous: "Ambiguous", fine: "Fine", accepted: "Accepted suggestion" };
const MARKS_KEPT = `aol-marks:${location.pathname}`;
const marks = new Map(Object.entries(remembered(() => JSON.parse(localStorage.getItem(MARKS_KEPT))) || {})
  .filter(([, mark]) => Object.hasOwn(MARKS, mark)));
// The same sample in every run of its data set: the file may be written again for another one.
const markKey = ({ settings, names }, samples, row) => JSON.stringify([settings.data ?? "", names.length, names[0], samples.id[row]]);
const markOf = (run, samples, row) => marks.get(markKey(run, samples, row)) || "";

// A suggestion can be accepted where there is one: another class than the label.
const suggestedOf = (run, samples, row) => run.names[samples.suggested[row]] ?? samples.suggested[row];
const marksFor = (samples, row) => Object.keys(MARKS).filter((mark) => mark !== "accepted" || samples.suggested[row] !== samples.label[row]);

function setMark(run, samples, row, mark) {
  const key = markKey(run, samples, row);
  if (marks.get(key) === mark) marks.delete(key);
  else marks.set(key, mark);
  remembered(() => localStorage.setItem(MARKS_KEPT, JSON.stringify(Object.fromEntries(marks))));
  keepingFocus(() => { drawGallery(); drawErrors(); });
}

function markButtons(run, samples, row, where, after = () => {}) {
  return element("div", { class: "markers", role: "group", "aria-label": `Mark sample ${samples.id[row]}` },
    marksFor(samples, row).map((mark) => button(mark === "accepted" ? `Use “${suggestedOf(run, samples, row)}”` : MARKS[mark], {
      class: `mark ${mark}`, "aria-pressed": markOf(run, samples, row) === mark, "data-key": `mark-${where}-${mark}`,
      onclick: () => { setMark(run, samples, row, mark); after(); },
    })));
}

const fitsMark = (run, samples) => (row) => state.marked === "all" || state.marked === (markOf(run, samples, row) || "none");

// As the exported table has it: a text that a spreadsheet would take for a formula gets an apostrophe before it.
function csvCell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r\n＝＋－＠]/.test(text) && !/^[+-]?[0-9]+(\.[0-9]+)?$/.test(text) ? `'${text}` : text;
  return /[",;\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

// Every marked sample once, as the first run that lists it has it; columns are named as in the exported table.
function markRows() {
  const found = new Map();
  for (const run of RUNS.filter(({ samples }) => samples)) {
    const { id, index, label, prediction, suggested, suspicion, isLikely, age } = run.samples;
    id.forEach((name, row) => {
      const key = markKey(run, run.samples, row);
      if (!marks.has(key) || found.has(key)) return;
      const mark = marks.get(key);
      const corrected = { wrong: "", accepted: suggested[row] }[mark] ?? label[row]; // wrong: which class is right is not known
      found.set(key, [name, index[row], label[row], run.names[label[row]], run.names[prediction[row]], corrected, run.names[corrected],
        suspicion[row], isLikely[row] ? "True" : "False", age[row], mark]);
    });
  }
  return [...found.values()];
}

function exportMarks() {
  const head = ["id", "index", "label", "label_name", "prediction_name", "corrected", "corrected_name", "score", "flagged", "age", "mark"];
  const text = [head, ...markRows()].map((row) => row.map(csvCell).join(",")).join("\n");
  const href = URL.createObjectURL(new Blob(["\ufeff", text, "\n"], { type: "text/csv" }));
  element("a", { href, download: "marks.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

// One sample, large, with everything known of it. Arrows go on, 1, 2 and 3 mark, 4 accepts the suggestion.
function enlarge(rows, at) {
  const box = part("zoom");
  const [run, samples] = [current(), samplesOf()];
  const draw = () => {
    const row = rows[at];
    const step = (by, text) => button(text, { "data-key": `zoom-${text}`, disabled: !(at + by in rows), onclick: () => { at += by; again(); } });
    box.replaceChildren(
      element("div", { class: "row" }, pictureOf(samples, row), element("div", {},
        facts(run, samples, row), historyOf(run, samples, row), element("p", {}, evidence(run, samples, row)),
        element("p", { class: "quiet" }, `sample ${samples.id[row]}; score ${short(samples.suspicion[row])}`))),
      markButtons(run, samples, row, "zoom", again),
      element("div", { class: "steps" }, step(-1, "Previous"), step(1, "Next"),
        element("span", { class: "quiet" }, `${at + 1} of ${rows.length}`), button("Close", { onclick: () => box.close() })));
  };
  const again = () => {
    keepingFocus(draw);
    if (!box.contains(document.activeElement)) box.focus(); // a button that is not there, or off now
  };
  box.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key] || 0;
    const mark = marksFor(samples, rows[at])[Number(event.key) - 1];
    if (mark) setMark(run, samples, rows[at], mark);
    if (by && at + by in rows) at += by;
    if (mark || by) again();
  };
  draw();
  box.showModal();
}
