// Marks on labels: what the viewer found, kept in this browser and written as CSV with the samples' own names.

const MARKS = { wrong: "Wrong label", ambiguous: "Ambiguous", fine: "Fine" };
const MARKS_KEPT = `aol-marks:${location.pathname}`;
const marks = new Map(Object.entries(remembered(() => JSON.parse(localStorage.getItem(MARKS_KEPT))) || {})
  .filter(([, mark]) => Object.hasOwn(MARKS, mark)));
// The same sample in every run of its data set: the file may be written again for another one.
const markKey = ({ settings, names }, samples, row) => JSON.stringify([settings.data ?? "", names.length, names[0], samples.id[row]]);
const markOf = (run, samples, row) => marks.get(markKey(run, samples, row)) || "";

function setMark(run, samples, row, mark) {
  const key = markKey(run, samples, row);
  if (marks.get(key) === mark) marks.delete(key);
  else marks.set(key, mark);
  remembered(() => localStorage.setItem(MARKS_KEPT, JSON.stringify(Object.fromEntries(marks))));
  keepingFocus(() => { drawGallery(); drawErrors(); });
}

function markButtons(run, samples, row, where, after = () => {}) {
  const now = markOf(run, samples, row);
  return element("div", { class: "markers", role: "group", "aria-label": `Mark sample ${samples.id[row]}` },
    Object.entries(MARKS).map(([mark, text]) => element("button", {
      type: "button", class: `mark ${mark}`, "aria-pressed": now === mark ? "true" : "false", "data-key": `mark-${where}-${mark}`,
      onclick: () => { setMark(run, samples, row, mark); after(); },
    }, text)));
}

const fitsMark = (run, samples) => (row) => {
  const mark = markOf(run, samples, row);
  return state.marked === "all" || (state.marked === "none" ? !mark : mark === state.marked);
};

// As export.py has it: a text that a spreadsheet would take for a formula gets an apostrophe before it.
function csvCell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r\n＝＋－＠]/.test(text) && !/^[+-]?[0-9]+(\.[0-9]+)?$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

// Every marked sample once, as the first run that lists it has it; columns are named as in the exported table.
function markRows() {
  const found = new Map();
  for (const run of RUNS) {
    for (let row = 0; run.samples && row < run.samples.id.length; row += 1) {
      const key = markKey(run, run.samples, row);
      if (!marks.has(key) || found.has(key)) continue;
      const { id, label, prediction, suspicion, isLikely, age } = run.samples;
      found.set(key, [id[row], run.names[label[row]], run.names[prediction[row]], suspicion[row], isLikely[row] ? "True" : "False", age[row],
        marks.get(key)]);
    }
  }
  return [...found.values()];
}

function exportMarks() {
  const head = ["id", "label_name", "prediction_name", "suspicion", "likely_label_error", "age", "mark"];
  const text = [head, ...markRows()].map((row) => row.map(csvCell).join(",")).join("\n");
  const url = URL.createObjectURL(new Blob(["\ufeff", text, "\n"], { type: "text/csv" }));
  const link = element("a", { href: url, download: "marks.csv" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// One sample, large, with everything known of it. Arrows go on, 1, 2 and 3 mark.
function enlarge(rows, at) {
  const box = part("zoom");
  const [run, samples] = [current(), samplesOf()];
  const again = () => {
    keepingFocus(draw);
    if (!box.contains(document.activeElement)) box.focus(); // a button that is not there, or off now
  };
  const draw = () => {
    const row = rows[at];
    const step = (by, text) => element("button", {
      type: "button", "data-key": `zoom-${text}`, disabled: !(at + by in rows), onclick: () => { at += by; again(); },
    }, text);
    box.replaceChildren(
      element("div", { class: "row" }, pictureOf(samples, row), element("div", {},
        facts(run, samples, row), historyOf(run, samples, row), element("p", {}, evidence(run, samples, row)),
        element("p", { class: "quiet" }, `sample ${samples.id[row]}; score ${short(samples.suspicion[row])}`))),
      markButtons(run, samples, row, "zoom", again),
      element("div", { class: "steps" }, step(-1, "Previous"), step(1, "Next"), element("span", { class: "quiet" }, `${at + 1} of ${rows.length}`),
        element("button", { type: "button", onclick: () => box.close() }, "Close")));
  };
  box.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key] || 0;
    const mark = Object.keys(MARKS)[Number(event.key) - 1];
    if (mark) setMark(run, samples, rows[at], mark);
    if (by && at + by in rows) at += by;
    if (mark || by) again();
  };
  draw();
  box.showModal();
}
