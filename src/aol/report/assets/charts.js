// Vega-Lite charts in the colours of the page. Specifications hold no text of the data but as values; tooltips are text.

const COLOURS = 8;
const DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [10, 4], [4, 2, 1, 2], [3, 3], [12, 3, 3, 3]];
const colourOf = (place) => `var(--series-${place % COLOURS})`;
const dashOf = (place) => DASHES[(place + Math.floor(place / COLOURS)) % DASHES.length]; // another one when colours repeat

const FONT = "system-ui, sans-serif";
const CONFIG = {
  background: null,
  axis: {
    labelFont: FONT, titleFont: FONT,
    labelColor: "var(--quiet)", titleColor: "var(--text)", tickColor: "var(--line)", domainColor: "var(--line)",
    gridColor: "var(--grid)", grid: false, labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, labelLimit: 110,
  },
  legend: { labelFont: FONT, titleFont: FONT, labelColor: "var(--quiet)", titleColor: "var(--text)", labelFontSize: 11, titleFontSize: 12 },
  title: { color: "var(--text)", fontSize: 13, fontWeight: 600, anchor: "start", font: FONT },
  text: { font: FONT },
  view: { stroke: null },
};
const drawn = new Map(); // element → view

function tip(event, lines) {
  const box = part("tip");
  box.hidden = !lines?.length;
  if (box.hidden) return;
  box.replaceChildren(...lines.map((line, place) => element("div", { class: place ? "" : "first" }, line)));
  const { width, height } = box.getBoundingClientRect();
  const beside = (at, size, most) => `${Math.max(4, at + 14 + size > most ? at - size - 10 : at + 14)}px`;
  Object.assign(box.style, { left: beside(event.clientX, width, innerWidth), top: beside(event.clientY, height, innerHeight) });
}

// Draws a chart; a mark with `tooltip: true` shows the lines in `tip` of its datum.
async function chart(host, spec, label, mode = "vega-lite") {
  clearChart(host);
  const turn = (host.turn = (host.turn || 0) + 1);
  const result = await vegaEmbed(host, { ...spec, config: CONFIG, description: label }, {
    mode, ast: true, actions: false, renderer: "svg", defaultStyle: false,
    tooltip: (_, event, item, value) => tip(event, value ? item.datum.tip : null),
  });
  if (host.turn !== turn) { // drawn anew meanwhile
    result.finalize();
    return null;
  }
  drawn.set(host, result);
  return result.view;
}

function clearChart(host) {
  drawn.get(host)?.finalize();
  drawn.delete(host);
  host.replaceChildren();
}

// A chart as wide as its host, axes and all.
const fitted = (host, most = Infinity) => ({
  width: Math.min(most, Math.max(200, Math.floor(host.clientWidth || 320))), padding: 4,
  autosize: { type: "fit-x", contains: "padding" },
});

// Vega takes the name of what every object has, such as "constructor", for its own, and fails: make it another text.
const harmless = (text) => (text in {} ? `${text}\u200b` : text);

// A text in lines of so many letters, cut between words where that can be.
const inLines = (text, letters) =>
  text.match(new RegExp(`[^]{1,${Math.floor(letters)}}(?=\\s|$)|[^]{1,${Math.floor(letters)}}`, "gu")).map((line) => harmless(line.trim()));

// An axis of epochs: ticks on whole numbers, about eight, on round steps; there is no epoch between two.
function wholeAxis(title, first, last) {
  const rough = Math.max(1, (last - first) / 8);
  const step = [1, 2, 5, 10].map((factor) => factor * 10 ** Math.floor(Math.log10(rough))).find((each) => each >= rough);
  const start = Math.ceil(first / step);
  const values = Array.from({ length: Math.max(0, Math.floor(last / step) - start + 1) }, (_, place) => (start + place) * step);
  return { title, format: "d", values };
}

// Lines over epochs: series are {name, colour, points: [[epoch, value]]}. Hover reads all of them at one epoch.
async function lineChart(host, { title, series, share, height = 190 }) {
  const rows = series.flatMap((line, place) =>
    line.points.filter(([, value]) => known(value)).map(([epoch, value]) => ({ place, epoch, value })));
  if (!rows.length) return clearChart(host);
  const all = rows.map((row) => row.value);
  const range = Math.max(...all) - Math.min(...all);
  const epochs = [...new Set(rows.map((row) => row.epoch))].sort((a, b) => a - b);
  const places = series.map((_, place) => place);
  const line = (range) => ({ field: "place", type: "nominal", scale: { domain: places, range }, legend: null });
  const spec = {
    ...fitted(host), height, title: { text: harmless(title) }, data: { values: rows }, params: [{ name: "at", value: null }],
    layer: [
      {
        mark: { type: "line", strokeWidth: 1.8 },
        encoding: {
          x: { field: "epoch", type: "quantitative", scale: { zero: false, nice: false }, axis: wholeAxis(UNIT, epochs[0], epochs.at(-1)) },
          y: {
            field: "value", type: "quantitative", scale: { zero: false, nice: true },
            axis: { grid: true, tickCount: 5, title: null, format: share ? (range < 0.04 ? ".1%" : ".0%") : "~f" },
          },
          color: line(series.map((each) => colourOf(each.colour))),
          strokeDash: line(series.map((each) => dashOf(each.colour))),
        },
      },
      {
        data: { values: [{}] },
        mark: { type: "rule", stroke: "var(--line)", opacity: { expr: "at === null ? 0 : 1" } },
        encoding: { x: { value: { expr: "scale('x', at)" } }, y: { value: 0 }, y2: { value: height } },
      },
    ],
  };
  const view = await chart(host, spec, `${title}: lines over ${UNIT}s`);
  return view && hover(host, view, (x) => {
    const at = nearest(epochs, view.scale("x").invert(x));
    view.signal("at", at).runAsync();
    const lines = series.map((line) => [line, line.points.find(([epoch]) => epoch === at)])
      .filter(([, point]) => point && known(point[1]))
      .map(([line, point]) => `${line.name}: ${share ? percent(point[1]) : short(point[1])}`);
    return [`${UNIT} ${at}`, ...lines];
  }, () => view.signal("at", null).runAsync());
}

// Follow the pointer over a chart's plot: `read(x, y)` gives the lines of the tooltip, or nothing.
function hover(host, view, read, leave = () => {}) {
  const surface = host.querySelector("svg");
  surface.addEventListener("pointermove", (event) => {
    const at = inPlot(view, surface, event);
    if (at) tip(event, read(...at));
    else { tip(event, null); leave(); }
  });
  surface.addEventListener("pointerleave", (event) => { tip(event, null); leave(); });
}

// Call `act` with the datum of a mark that is clicked.
function onClick(view, act) {
  view.addEventListener("click", (_, item) => { if (item && item.datum && item.datum.tip) act(item.datum); });
}

// Where a pointer is, in the coordinates of the plot.
function within(view, surface, event) {
  const box = surface.getBoundingClientRect();
  const [left, top] = view.origin();
  const ratio = surface.width.baseVal.value / box.width || 1;
  return [(event.clientX - box.left) * ratio - left, (event.clientY - box.top) * ratio - top];
}

// The same, but nothing where the pointer is off the plot; a little beside it still counts.
function inPlot(view, surface, event, slack = 10) {
  const [x, y] = within(view, surface, event);
  const [width, height] = [view.width(), view.height()];
  if (x < -slack || y < -slack || x > width + slack || y > height + slack) return null;
  return [clamp(x, 0, width), clamp(y, 0, height)];
}

function nearest(sorted, value) {
  return sorted.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best), sorted[0]);
}

// A small line in a table or on a card.
function sparkline(values, { width = 90, height = 22, low, high, steps = false, label }) {
  const points = values.map((value, place) => [place, value]).filter(([, value]) => known(value));
  const gaps = steps ? values.length : values.length - 1; // as steps each value has a width, the last one too
  const x = (place) => (gaps ? (place / gaps) * (width - 2) + 1 : width / 2);
  const y = (value) => height - 2 - ((value - low) / (high - low || 1)) * (height - 4);
  const path = points.map(([place, value], i) => {
    const to = `${x(place).toFixed(1)},${y(value).toFixed(1)}`;
    return i ? (steps ? `H${x(place).toFixed(1)}V${y(value).toFixed(1)}` : `L${to}`) : `M${to}`;
  }).join("") + (steps && points.length ? `H${x(points.at(-1)[0] + 1).toFixed(1)}` : "");
  return element("svg", {
    class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label,
  }, element("path", { d: path }));
}
