// Readings of whole runs over epochs, and of one class: lines, one colour a run.

const COURSE = ["train_loss", "train_accuracy", "validation_accuracy"]; // the most important first
const UPKEEP = ["lr", "seconds", "images_per_second", "train_seconds", "data_seconds", "threshold"]; // shown on request
const shownRuns = () => state.shown.map((place) => RUNS[place]);

// Curves that repeat another, as on a balanced test set, are not offered.
const TWINS = { __proto__: null, test_balanced_accuracy: "test_accuracy", test_worst_tenth: "test_worst_class" };
const repeats = ({ curves }, name) =>
  curves[TWINS[name]]?.every((value, at) => value === curves[name][at] || Math.abs(value - curves[name][at]) < 2e-5);

// What the shown runs have besides test accuracy, which has a chart of its own.
function curveNames() {
  const names = shownRuns().flatMap((run) => Object.keys(run.curves).filter((name) => run.curves[name].some(known) && !repeats(run, name)));
  return [...new Set([...COURSE.filter((name) => names.includes(name)), ...names])].filter((name) => name !== "test_accuracy");
}

const series = (runs, read) => runs.map((run) => ({ name: run.name, colour: state.shown.indexOf(run.place), points: read(run) }));
const curveOf = (name) => (run) => (run.curves[name] || []).map((value, place) => [run.epochs[place], value]);

// Three readings of whole runs: accuracy, mean class age, and one of the viewer's choice. Where nothing else was read,
// the other two have the room.
function drawCurves() {
  const names = curveNames();
  const usual = names.find((name) => !UPKEEP.includes(name)) ?? "";
  const chosen = names.includes(state.curve) ? state.curve : usual;
  const key = shownRuns().map((run, place) => element("span", {}, swatch(place), ` ${run.name}`)); // which line is which run
  fill("curve-controls", element("span", { class: "key" }, key), names.length
    ? selector("Also show", "pick-curve", [...(usual ? [] : [["", "nothing more"]]), ...names.map((name) => [name, spoken(name)])],
      chosen, (value) => choose({ curve: value }))
    : []);
  const charts = [["test_accuracy", curveOf("test_accuracy")], ["age", meanAge], [chosen, curveOf(chosen)]].filter(([name, read]) => name && shownRuns().some((run) => read(run).some(([, value]) => known(value))));
  const hosts = hostsIn("curve-charts", charts.length);
  return Promise.all(charts.map(([name, read], place) => lineChart(hosts[place], {
    title: name === "age" ? "Mean class age" : spoken(name), share: isShare(name), series: series(shownRuns(), read),
  })));
}

function meanAge(run) {
  const found = overTime(run, "age");
  if (!found) return [];
  const size = run.names.length;
  return found.epochs.map((epoch, row) => [epoch, meanOf(found.values.subarray(row * size, (row + 1) * size))]);
}

// As many chart hosts as wanted; those that are there stay, so that a redraw does not jump.
function hostsIn(id, count) {
  const box = part(id);
  for (const spare of [...box.children].slice(count)) {
    clearChart(spare);
    spare.remove();
  }
  while (box.children.length < count) box.append(element("div", { class: "chart" }));
  return [...box.children];
}

// The chosen class over time, in every shown run that has the same classes.
function drawClassCurves() {
  const run = current();
  const runs = run ? shownRuns().filter((each) => each.details && each.set === run.set) : [];
  const names = ["age", "weight", "test_accuracy", "train_accuracy"].filter((name) => // not weights that are all one
    state.klass >= 0 && runs.some((each) => column(each, name, state.klass).some(([, value]) => known(value) && (name !== "weight" || value !== 1))));
  fill("class-title", run && state.klass >= 0
    ? [element("h3", {}, "Class ", element("em", {}, run.names[state.klass]), " over time")] : []);
  const hosts = hostsIn("class-curves", names.length);
  return Promise.all(names.map((name, place) => lineChart(hosts[place], {
    title: spoken(name), share: isShare(name), height: 140,
    series: series(runs, (each) => column(each, name, state.klass)),
  })));
}
