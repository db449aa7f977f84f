// Puts the page together: what is drawn when, and colours.

function drawHead() {
  fill("title", DATA.title);
  fill("subtitle", `Age of Learning: ${times(DATA.total.methods || 1, "method")}, ${times(DATA.total.runs, "run")}. Written ${DATA.written}.`);
}

function drawTheme() {
  document.documentElement.dataset.theme = state.theme; // the style knows no "auto", so that the system decides
  for (const radio of document.querySelectorAll("#theme input")) radio.checked = radio.value === state.theme;
}

function listen() {
  part("pick-run").addEventListener("change", (event) => choose({ run: Number(event.target.value) }));
  part("pick-class").addEventListener("change", (event) => {
    const place = current() ? current().names.indexOf(event.target.value) : -1;
    choose({ klass: place });
    if (place < 0) event.target.value = "";
  });
  part("clear-class").addEventListener("click", () => { choose({ klass: -1 }); part("pick-class").focus(); });
  part("theme").addEventListener("change", (event) => choose({ theme: event.target.value }));
  addEventListener("keydown", (event) => { if (event.key === "Escape") part("tip").hidden = true; });
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar comes and goes
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawCharts, 150);
  });
}

function drawCharts() {
  for (const draw of [drawMethods, drawCurves, drawHeat, drawScatter, drawMatrix, drawClassCurves, drawSampleAges]) draw();
}

// A run of other classes has no class of that number, and another zoom.
let lastSet = null;
function drawForRun() {
  const run = current();
  if (run && lastSet !== null && lastSet !== run.set) Object.assign(state, { klass: -1, zoom: null });
  lastSet = run ? run.set : null;
  tables.classes = ROWS;
}

function start() {
  recall();
  if (!heatReadings().includes(state.reading)) state.reading = usualReading();
  listen();
  drawHead();
  drawAbout();
  const details = RUNS.some((run) => run.details);
  for (const id of ["advice", "classes", "samples", "errors"]) part(id).hidden = !details;
  for (const [names, draw] of [
    [["theme"], drawTheme], [["run"], drawForRun], [["shown"], drawMethods], [["run", "shown"], drawRuns], [["run"], drawPicks],
    [["run", "klass"], drawClassPick], [["run", "klass"], drawAdvice],
  ]) follow(names, draw);
  requestAnimationFrame(() => setTimeout(startBelow)); // the first screen can be read before the rest is drawn
}

function startBelow() {
  document.documentElement.dataset.begun = String(Math.round(performance.now()));
  drawClassControls();
  for (const [names, draw] of [
    [["shown", "curve"], drawCurves], [["reading", "order"], drawHeatControls], [["run", "shown", "reading", "order", "zoom"], drawHeat],
    [["run", "klass"], drawScatter], [["run"], drawMatrix], [["run", "shown", "klass"], drawClassCurves],
    [["run", "klass", "sort", "down", "find"], drawClassTable], [["run", "klass", "answer"], drawGallery], [["run", "klass", "answer"], drawTested], [["run"], drawSampleAges],
    [["run", "klass", "unsure", "marked"], drawErrors], [["run", "shown"], drawSettings], [["run"], drawLinks],
  ]) follow(names, draw);
  Promise.allSettled(drawing).then((all) => {
    for (const { reason } of all) if (reason) console.error(reason);
    document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since it was opened
  });
}

start();
