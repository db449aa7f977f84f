// What is mistaken for what: the confusion matrix.

async function drawMatrix() {
  const run = current();
  const host = part("matrix");
  const matrix = run && run.matrix;
  const split = run && run.tested ? "test" : "training";
  const names = !matrix ? [] : matrix.classes.map((place) => harmless(run.names[place]));
  const cells = !matrix ? [] : matrix.counts.flatMap((line, row) => {
    const total = line.reduce((sum, each) => sum + each, 0);
    return line.map((count, column) => ({
      label: names[row], answer: names[column], share: total ? count / total : 0, place: matrix.classes[row],
      given: matrix.classes[column], count: count ? whole(count) : "", dark: total > 0 && count / total < 0.4,
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
    ...fitted(host, 430), height: 260, data: { values: cells },
    title: { text: `Confusion matrix, ${split} samples`, subtitle: "label in rows, answer in columns", subtitleColor: "var(--quiet)" },
    encoding: {
      x: { field: "answer", type: "nominal", scale, axis: { ...axis, labelAngle: shortest ? 0 : -50 } },
      y: { field: "label", type: "nominal", scale, axis },
    },
    layer: [
      {
        mark: { type: "rect", tooltip: true },
        encoding: { color: {
          field: "share", type: "quantitative", scale: { type: "sqrt", domain: [0, 1], scheme: "viridis" },
          legend: { title: "Share of row", format: ".0%", gradientLength: 120, values: [0, 0.1, 0.5, 1] },
        } },
      },
      ...(names.length > 12 ? [] : [{
        mark: { type: "text", fontSize: 10, tooltip: true },
        encoding: { text: { field: "count" }, color: { condition: { test: "datum.dark", value: "#ffffff" }, value: "#000000" } },
      }]),
    ],
  }, `Confusion matrix of the last answers to ${split} samples`);
  return view && onClick(view, (cell) => {
    choose({ klass: cell.place, answer: cell.given });
    goTo(null, split === "test" ? "tested" : "samples");
  });
}
