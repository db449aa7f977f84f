// Classes by epochs as colours, a map a run, all with one zoom and one cursor. The picture is drawn anew for what is
// in view, so that a thousand classes cost no more than ten; axes, colour scale and frame are Vega's.

const heat = { maps: [], cursor: null };

// The 256 colours of the legend, from its own scale.
function rampOf(legend, { low, high, gamma }) {
  return Array.from({ length: 256 }, (_, place) => {
    const text = legend.scale("colour")(low + (high - low) * (place / 255) ** (1 / gamma));
    return text.startsWith("#")
      ? [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) : text.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
}

const heatRuns = () => {
  const run = current();
  return run ? shownRuns().filter((each) => each.set === run.set && overTime(each, state.reading)).slice(0, 4) : [];
};
const heatReadings = () => Object.keys(LABELS).filter((name) => RUNS.some((run) => run.details && run.byClass[name]));
// Ages where there are any; else what differs: plain training gives every class the weight one.
function usualReading() {
  const names = heatReadings();
  const differs = ({ details, byClass }, name) => details && byClass[name] && byClass[name].high > byClass[name].low;
  return names.find((name) => name === "age" || RUNS.some((run) => differs(run, name))) ?? names[0] ?? "age";
}

// What is in view: epochs from x0 to x1, rows of the order from y0 to y1, both ends included.
function heatExtent(runs, zoom = state.zoom) {
  const epochs = runs.flatMap((run) => overTime(run, state.reading).epochs);
  const all = [Math.min(...epochs), Math.max(...epochs), 0, current().names.length - 1];
  if (!zoom) return all;
  const [x0, x1, y0, y1] = zoom;
  const view = [clamp(x0, all[0], all[1]), clamp(x1, all[0], all[1]), clamp(y0, 0, all[3]), clamp(y1, 0, all[3])];
  return view[0] <= view[1] && view[2] <= view[3] ? view : all;
}

function heatScale(runs) {
  const all = runs.map((run) => overTime(run, state.reading));
  const [low, high] = isShare(state.reading) ? [0, 1]
    : [Math.min(...all.map((each) => each.low)), Math.max(...all.map((each) => each.high))];
  return { low, high: high > low ? high : low + 1, gamma: all[0].power };
}

// The colours of what is in view, a pixel a cell, cells joined by their mean where there are more than pixels.
function heatPicture(run, order, extent, scale, height) {
  const { epochs, values } = overTime(run, state.reading);
  const [x0, x1, y0, y1] = extent;
  const size = run.names.length;
  const from = epochs.findIndex((epoch) => epoch >= x0);
  const columns = epochs.filter((epoch) => epoch >= x0 && epoch <= x1).length || 1;
  const rows = Math.min(y1 - y0 + 1, height);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  for (let row = 0; row < rows; row += 1) {
    const first = y0 + Math.floor((row * (y1 - y0 + 1)) / rows);
    const after = Math.max(first + 1, y0 + Math.floor(((row + 1) * (y1 - y0 + 1)) / rows));
    for (let col = 0; col < columns; col += 1) {
      let [sum, count] = [0, 0];
      for (let place = first; place < after; place += 1) {
        const value = values[(from + col) * size + order[place]];
        if (Number.isFinite(value)) { sum += value; count += 1; }
      }
      if (!count) continue; // no value: the ground shows
      const share = clamp((sum / count - scale.low) / (scale.high - scale.low), 0, 1);
      image.data.set([...scale.ramp[Math.round(255 * share ** scale.gamma)], 255], 4 * (row * columns + col));
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// Epochs that were kept need not be evenly spaced at the edges; each is as wide as the mean one.
const heatStep = (epochs) => (epochs.length > 1 ? (epochs.at(-1) - epochs[0]) / (epochs.length - 1) : 1);

function heatSpec(host, run, order, extent, scale) {
  const [x0, x1, y0, y1] = extent;
  const { epochs } = overTime(run, state.reading);
  const seen = epochs.filter((epoch) => epoch >= x0 && epoch <= x1);
  const [first, last] = [seen[0] ?? x0, seen.at(-1) ?? x1];
  const half = heatStep(epochs) / 2;
  const rows = y1 - y0 + 1;
  const height = clamp(rows * 22, 160, 420);
  const every = Math.max(1, Math.ceil((rows * 13) / height));
  const ticks = Array.from({ length: rows }, (_, row) => y0 + row).filter((place) => (place - y0) % every === 0);
  return {
    ...fitted(host), height, title: { text: inLines(run.name, fitted(host).width / 8), limit: fitted(host).width },
    data: [
      { name: "frame", values: [{}] },
      { name: "ticks", values: ticks.map((place) => ({ place, name: run.names[order[place]] })) },
      { name: "cursor", values: [] },
    ],
    scales: [
      { name: "x", domain: [first - half, last + half], range: "width" },
      { name: "y", domain: [y0 - 0.5, y1 + 0.5], range: [0, height] },
    ],
    axes: [{ orient: "bottom", scale: "x", ...wholeAxis(UNIT, first, last) }],
    marks: [
      {
        type: "image", from: { data: "frame" },
        encode: { enter: {
          url: { value: heatPicture(run, order, extent, scale, height) }, x: { value: 0 }, y: { value: 0 },
          width: { signal: "width" }, height: { signal: "height" }, aspect: { value: false }, smooth: { value: false },
        } },
      },
      {
        type: "text", from: { data: "ticks" },
        encode: { enter: {
          x: { value: -6 }, y: { scale: "y", field: "place" }, text: { field: "name" }, align: { value: "right" },
          baseline: { value: "middle" }, fontSize: { value: 11 }, fill: { value: "var(--quiet)" }, limit: { value: 105 },
        } },
      },
      {
        type: "rect", from: { data: "cursor" }, interactive: false,
        encode: { update: {
          x: { scale: "x", field: "x0" }, x2: { scale: "x", field: "x1" }, y: { scale: "y", field: "y0" },
          y2: { scale: "y", field: "y1" }, stroke: { value: "var(--mark)" }, strokeWidth: { value: 2 },
          fill: { value: "transparent" }, clip: { value: true },
        } },
      },
    ],
  };
}

function drawHeatControls() {
  fill("heat-controls",
    selector("Colour shows", "pick-reading", heatReadings().map((name) => [name, spoken(name)]), state.reading, (reading) => choose({ reading })),
    selector("Order", "pick-order", [["count", "head on top"], ["age", "oldest on top"], ["name", "by name"]],
      state.order, (order) => choose({ order, zoom: null })),
    element("span", { class: "buttons" }, button("+", { "aria-label": "Zoom in", onclick: () => zoomBy(0.5) }),
      button("−", { "aria-label": "Zoom out", onclick: () => zoomBy(2) }), button("Show all", { onclick: () => choose({ zoom: null }) })));
}

async function drawHeat() {
  const runs = heatRuns();
  part("heatmap").hidden = !heatReadings().length;
  const hosts = hostsIn("heat-charts", runs.length);
  heat.maps = [];
  if (!runs.length || !current().names.length) {
    fill("heat-readout", "Tick a run with this reading to see it.");
    clearChart(part("heat-legend"));
    return;
  }
  const [extent, scale, order] = [heatExtent(runs), heatScale(runs), classOrder(current(), state.order)];
  const legend = await drawLegend(scale);
  if (!legend) return; // drawn anew meanwhile
  scale.ramp = rampOf(legend, scale);
  heat.maps = await Promise.all(runs.map(async (run, place) => {
    const spec = heatSpec(hosts[place], run, order, extent, scale);
    const view = await chart(hosts[place], spec, `${spoken(state.reading)} by class and ${UNIT}`, "vega");
    const map = { run, view, host: hosts[place], order, extent };
    if (view) steer(map);
    return map;
  }));
  const hidden = shownRuns().filter((run) => run.details && run.set === current().set).length - runs.length;
  const rows = extent[3] - extent[2] + 1;
  fill("heat-readout", [
    rows > 420 ? `Each line is the mean of about ${Math.round(rows / 420)} classes; zoom in to see one.` : "",
    hidden > 0 ? ` ${times(hidden, "more shown run")} not drawn here.` : "",
  ].join("") || "Point at a cell to read it.");
}

function drawLegend({ low, high, gamma }) {
  return chart(part("heat-legend"), {
    width: 10, height: 1, padding: 4,
    scales: [{ name: "colour", type: "pow", exponent: gamma, domain: [low, high], range: { scheme: "viridis" } }],
    legends: [{
      fill: "colour", orient: "bottom", direction: "horizontal", gradientLength: 220, gradientThickness: 12,
      title: `${spoken(state.reading)}${gamma === 1 ? "" : " (square-root colours)"}`, titleLimit: 300,
      format: isShare(state.reading) ? ".0%" : "~f", tickCount: 5, offset: 0, labelOverlap: "greedy", labelSeparation: 6,
    }],
  }, "Colour scale", "vega");
}
