// The data of the page: read from the JSON element, arrays decoded as payload.py encoded them.

const DATA = JSON.parse(document.getElementById("data").textContent);

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// Codes of 8 or 16 bits back to numbers; the largest code is "no value".
function unpack(packed) {
  const { data, bits, low, high, power } = packed;
  const raw = bytes(data);
  const codes = bits === 16 ? Uint16Array.from({ length: raw.length / 2 }, (_, i) => raw[2 * i] + 256 * raw[2 * i + 1]) : raw;
  const top = 2 ** bits - 2;
  return Float32Array.from(codes, (code) => (code > top ? NaN : low + (high - low) * (code / top) ** (1 / power)));
}

// The ages of a sample over time, from two bits an epoch: right, one more (of a sample never seen: 2), the same.
function agesOf(history, length) {
  const raw = bytes(history[1]);
  const ages = [history[0]];
  for (let i = 0; ages.length < length; i += 1) {
    const code = (raw[i >> 2] >> (2 * (i % 4))) & 3;
    const before = ages[ages.length - 1];
    ages.push([0, 1, Math.max(1, before) + 1, before][code]);
  }
  return ages.slice(0, length);
}

// A page of streams alone counts steps.
const STREAMS = DATA.runs.filter((run) => run.settings.scenario === "stream").length;
const UNIT = STREAMS && STREAMS === DATA.runs.length ? "step" : "epoch";

const LABELS = {
  __proto__: null, // a curve may be called constructor
  age: "Age", smoothed_age: "Smoothed age", mean_age: `Mean age over all ${UNIT}s`, weight: "Weight", test_accuracy: "Test accuracy", train_accuracy: "Training accuracy",
  train_loss: "Training loss", train_margin: "Training margin", test_age: "Age on test", test_loss: "Test loss",
  test_margin: "Test margin", validation_accuracy: "Validation accuracy",
  lr: "Learning rate", seconds: `Seconds ${UNIT === "step" ? "a step" : "an epoch"}`, images_per_second: "Images a second", train_seconds: "Seconds of training", data_seconds: "Seconds waiting for images",
  train_accuracy_error: "Training accuracy, standard error", threshold: "Threshold", prequential_g_mean: "G-mean before training", prequential_kappa: "Kappa before training",
  test_balanced_accuracy: "Balanced accuracy", test_macro_f1: "Macro-F1", test_worst_class: "Worst class", test_worst_tenth: "Worst tenth of the classes",
  test_head_accuracy: "Head accuracy", test_middle_accuracy: "Middle accuracy", test_tail_accuracy: "Tail accuracy",
};
const spoken = (name) => LABELS[name] || name.replaceAll("_", " ");
const isShare = (name) => name.endsWith("accuracy") || ["threshold", "test_macro_f1", "test_worst_class", "test_worst_tenth"].includes(name);

const RUNS = DATA.runs.map((run, place) => ({
  ...run, place, names: DATA.classSets[run.set], curves: { __proto__: null, ...run.curves }, settings: { __proto__: null, ...run.settings },
}));
for (const run of RUNS) {
  if (!run.details) continue;
  run.last = Object.fromEntries(Object.entries(run.last).map(([name, packed]) => [name, unpack(packed)]));
  run.trend = run.trend && unpack(run.trend);
}

// A reading over epochs and classes, decoded when first asked for: {epochs, values, low, high}, epoch by epoch.
function overTime(run, name) {
  const packed = run.details && run.byClass[name];
  if (!packed) return null;
  if (!packed.values) packed.values = unpack(packed);
  return packed;
}

function column(run, name, place) {
  const found = overTime(run, name);
  const size = run.names.length;
  return found ? found.epochs.map((epoch, row) => [epoch, found.values[row * size + place]]) : [];
}

// The last age of each class; runs of aol 0.1.0 have smoothed ages only.
const ageOf = (run) => run.last && (run.last.age || run.last.smoothed_age);
const samplesIn = (run, place) => (run.counts ? [times(run.counts[place], "sample")] : []);

// The places of classes, by number of samples, by age, or by name.
function classOrder(run, by) {
  const places = run.names.map((_, place) => place);
  const age = ageOf(run) || [];
  const keys = {
    count: (a, b) => (run.counts ? run.counts[b] - run.counts[a] : 0),
    age: (a, b) => (age[b] || 0) - (age[a] || 0),
    name: (a, b) => run.names[a].localeCompare(run.names[b], undefined, { numeric: true }),
  };
  return places.sort((a, b) => keys[by](a, b) || a - b);
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "");
const percent = (value, digits = 1) => (known(value) ? `${(100 * value).toFixed(digits)}%` : "");

function short(value) {
  if (!known(value)) return "";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace("-", "−");
  return (size >= 1000 ? whole(value) : value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)).replace("-", "−");
}
const shown = (name, value) => (isShare(name) ? percent(value) : short(value));
const times = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
