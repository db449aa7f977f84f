// What is mistaken, and for how long: survival of errors by part of the classes, and the confusion matrix.

function drawSurvival() {
  const run = current();
  const parts = (run && run.survival) || [];
  fill("survival-key", parts.map((each, place) => element("span", {}, swatch(place),
    `${each.name}: ${times(each.episodes, "error")}, ${whole(each.open)} still open; `
    + (known(each.median) ? `half are over after ${times(each.median, UNIT)}` : "most outlast the run"))));
  return lineChart(part("survival"), {
    title: "How long errors last", share: true, height: 230, steps: true, domain: [0, 1], x: `${UNIT}s since the error began`,
    label: "Share of errors still open",
    series: parts.map((each, place) => ({ name: each.name, colour: place, points: each.t.map((t, at) => [t, each.share[at]]) })),
  });
}

async function drawMatrix() {
  const run = current();
  const host = part("matrix");
  const matrix = run && run.matrix;
  const cells = !matrix ? [] : matrix.counts.flatMap((line, row) => {
    const total = line.reduce((sum, each) => sum + each, 0);
    return line.map((count, col) => ({ row, col, count, share: total ? count / total : 0 })).filter((each) => each.count);
  });
  fill("matrix-about", cells.length && matrix.total > matrix.classes.length
    ? `The ${matrix.classes.length} of ${matrix.total} classes with the most mistakes.` : "");
  if (!cells.length) return clearChart(host);
  const names = matrix.classes.map((place) => run.names[place]);
  const size = names.length;
  const every = Math.ceil(size / 20);
  const ticks = names.map((name, place) => ({ place, name })).filter(({ place }) => place % every === 0);
  const short_ = Math.max(...names.map((name) => name.length)) <= 3;
  const text = (x, y, more) => ({
    type: "text", from: { data: "ticks" },
    encode: { enter: { x, y, text: { field: "name" }, fontSize: { value: 10 }, fill: { value: "var(--quiet)" }, limit: { value: 74 }, ...more } },
  });
  const view = await chart(host, {
    ...fitted(host, 430), height: 230, title: { text: "Label (rows) and last answer (columns)" },
    data: [{ name: "cells", values: cells }, { name: "ticks", values: ticks }],
    scales: [
      { name: "x", type: "linear", domain: [0, size], range: "width", zero: false, nice: false },
      { name: "y", type: "linear", domain: [0, size], range: [0, { signal: "height" }], zero: false, nice: false },
      { name: "colour", type: "pow", exponent: 0.5, domain: [0, 1], range: { scheme: "viridis" } },
    ],
    legends: [{ fill: "colour", title: "Share of row", format: ".0%", gradientLength: 120, values: [0, 0.1, 0.5, 1] }],
    marks: [
      { type: "rect", encode: { enter: { x: { value: 0 }, x2: { signal: "width" }, y: { value: 0 }, y2: { signal: "height" }, fill: { signal: "scale('colour', 0)" } } } },
      {
        type: "rect", from: { data: "cells" },
        encode: {
          enter: {
            x: { scale: "x", field: "col" }, x2: { signal: "scale('x', datum.col + 1)" }, y: { scale: "y", field: "row" },
            y2: { signal: "scale('y', datum.row + 1)" }, fill: { scale: "colour", field: "share" },
          },
        },
      },
      text({ value: -5 }, { signal: "scale('y', datum.place + 0.5)" }, { align: { value: "right" }, baseline: { value: "middle" } }),
      text({ signal: "scale('x', datum.place + 0.5)" }, { signal: "height + 6" }, short_
        ? { align: { value: "center" }, baseline: { value: "top" } }
        : { align: { value: "right" }, baseline: { value: "middle" }, angle: { value: -50 } }),
    ],
  }, "Confusion matrix of the last answers to training samples");
  if (!view) return undefined;
  const at = (x, y) => [x, y].map((each, axis) => Math.min(size - 1, Math.floor(view.scale(axis ? "y" : "x").invert(each))));
  hover(host, view, (x, y) => {
    const [col, row] = at(x, y);
    const cell = cells.find((each) => each.row === row && each.col === col);
    return [`${names[row]}, answered ${names[col]}`, cell ? `${times(cell.count, "sample")}, ${percent(cell.share)} of those shown` : "none"];
  });
  const surface = host.querySelector("svg");
  surface.addEventListener("click", (event) => {
    const found = inPlot(view, surface, event, 0);
    if (found) choose({ klass: matrix.classes[at(...found)[1]] });
  });
  return undefined;
}
