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
  const names = !matrix ? [] : matrix.classes.map((place) => run.names[place]);
  const cells = !matrix ? [] : matrix.counts.flatMap((line, row) => {
    const total = line.reduce((sum, each) => sum + each, 0);
    return line.map((count, column) => ({
      label: names[row], answer: names[column], share: total ? count / total : 0, place: matrix.classes[row],
      tip: [`${names[row]}, answered ${names[column]}`, count ? `${times(count, "sample")}, ${percent(count / total)} of those shown` : "none"],
    }));
  });
  fill("matrix-about", cells.length && matrix.total > matrix.classes.length
    ? `The ${matrix.classes.length} of ${matrix.total} classes with the most mistakes.` : "");
  if (!cells.length) return clearChart(host);
  const values = names.filter((_, place) => place % Math.ceil(names.length / 20) === 0);
  const axis = { title: null, ticks: false, domain: false, labelFontSize: 10, labelLimit: 74, labelPadding: 5, values };
  const shortest = Math.max(...names.map((name) => name.length)) <= 3;
  const scale = { domain: names, padding: 0 };
  const view = await chart(host, {
    ...fitted(host, 430), height: 230, title: { text: "Label (rows) and last answer (columns)" }, data: { values: cells },
    mark: { type: "rect", tooltip: true },
    encoding: {
      x: { field: "answer", type: "nominal", scale, axis: { ...axis, labelAngle: shortest ? 0 : -50 } },
      y: { field: "label", type: "nominal", scale, axis },
      color: {
        field: "share", type: "quantitative", scale: { type: "sqrt", domain: [0, 1], scheme: "viridis" },
        legend: { title: "Share of row", format: ".0%", gradientLength: 120, values: [0, 0.1, 0.5, 1] },
      },
    },
  }, "Confusion matrix of the last answers to training samples");
  return view && onClick(view, (cell) => choose({ klass: cell.place }));
}
