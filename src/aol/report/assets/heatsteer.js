// Hands on the heatmap: pointer, box zoom and keys. All maps share the cursor and the zoom.

function cellAt(map, x, y) {
  const { epochs } = overTime(map.run, state.reading);
  const [x0, x1, y0, y1] = map.extent;
  const epoch = nearest(epochs.filter((each) => each >= x0 && each <= x1), map.view.scale("x").invert(x));
  return { epoch, row: clamp(Math.round(map.view.scale("y").invert(y)), y0, y1) };
}

// What every map says about one cell.
function heatLines({ epoch, row }) {
  const place = heat.maps[0].order[row];
  const run = current();
  return [[run.names[place], ...samplesIn(run, place), `${UNIT} ${epoch}`].join(", "),
    ...heat.maps.map((map) => {
      const { epochs, values } = overTime(map.run, state.reading);
      const value = values[epochs.indexOf(nearest(epochs, epoch)) * map.run.names.length + place];
      return `${map.run.name}: ${known(value) ? `${spoken(state.reading).toLowerCase()} ${shown(state.reading, value)}` : "not read"}`;
    })];
}

function pointTo(cell) {
  heat.cursor = cell;
  for (const { run, view } of heat.maps.filter((map) => map.view)) {
    const half = heatStep(overTime(run, state.reading).epochs) / 2;
    view.data("cursor", cell
      ? [{ x0: cell.epoch - half, x1: cell.epoch + half, y0: cell.row - 0.5, y1: cell.row + 0.5 }] : []).runAsync();
  }
  if (cell) fill("heat-readout", heatLines(cell).join(" · "));
}

function steer(map) {
  const { host, view } = map;
  const surface = host.querySelector("svg");
  const about = `${spoken(state.reading)} of every class over ${UNIT}s, ${map.run.name}. Arrow keys move, plus and minus zoom, `
    + "0 shows all, Enter chooses the class.";
  const named = { tabindex: 0, role: "application", "aria-roledescription": "heatmap", "aria-label": about };
  for (const [name, value] of Object.entries(named)) host.setAttribute(name, value);
  const read = (x, y) => {
    const cell = cellAt(map, x, y);
    pointTo(cell);
    return heatLines(cell);
  };
  hover(host, view, read);
  host.onkeydown = (event) => steerByKey(event, map);
  surface.addEventListener("dblclick", () => zoomBy(4));
  surface.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return boxZoom(event, map, surface);
    const at = inPlot(view, surface, event); // a finger scrolls the page; where it taps, it reads
    return at && tip(event, read(...at));
  });
}

// A box drawn with the pointer becomes what is in view; a click without one chooses the class.
function boxZoom(event, map, surface) {
  clearTimeout(heat.click); // two clicks zoom; only a single one chooses
  const double = event.timeStamp - (heat.pressed ?? -Infinity) < 400;
  heat.pressed = event.timeStamp;
  const start = event.button === 0 && inPlot(map.view, surface, event, 0);
  if (!start) return;
  const box = element("div", { class: "box" });
  const drag = new AbortController();
  const on = (kind, act) => addEventListener(kind, act, { signal: drag.signal });
  const stop = () => { drag.abort(); box.remove(); };
  on("pointercancel", stop);
  on("pointermove", ({ clientX, clientY }) => {
    Object.assign(box.style, {
      left: `${Math.min(event.clientX, clientX)}px`, top: `${Math.min(event.clientY, clientY)}px`,
      width: `${Math.abs(clientX - event.clientX)}px`, height: `${Math.abs(clientY - event.clientY)}px`,
    });
    if (!box.isConnected) document.body.append(box);
  });
  on("pointerup", (next) => {
    stop();
    const end = within(map.view, surface, next);
    const [wide, high] = [Math.abs(end[0] - start[0]), Math.abs(end[1] - start[1])];
    const [one, two] = [cellAt(map, ...start), cellAt(map, ...end)];
    if (wide > 6 && high > 6) {
      choose({ zoom: [Math.min(one.epoch, two.epoch), Math.max(one.epoch, two.epoch),
        Math.min(one.row, two.row), Math.max(one.row, two.row)] });
    } else if (Math.hypot(wide, high) < 4 && !double) heat.click = setTimeout(() => choose({ klass: map.order[one.row] }), 250);
  });
  event.preventDefault();
  map.host.focus({ preventScroll: true });
}

// Show half, or twice, of what is in view, about the cursor or the middle.
function zoomBy(factor) {
  if (!heat.maps.length) return;
  const all = heatExtent(heatRuns(), null);
  const [x0, x1, y0, y1] = heat.maps[0].extent;
  const at = heat.cursor || { epoch: (x0 + x1) / 2, row: (y0 + y1) / 2 };
  const about = (low, high, middle, least, most) => {
    const size = clamp((high - low) * factor, 1, Math.max(1, most - least));
    const start = clamp(middle - ((middle - low) / (high - low || 1)) * size, least, most - size);
    return [Math.round(start), Math.round(start + size)];
  };
  const zoom = [...about(x0, x1, at.epoch, all[0], all[1]), ...about(y0, y1, at.row, all[2], all[3])];
  choose({ zoom: zoom.every((value, place) => value === all[place]) ? null : zoom });
}

function steerByKey(event, map) {
  const [x0, x1, y0, y1] = map.extent;
  const seen = overTime(map.run, state.reading).epochs.filter((epoch) => epoch >= x0 && epoch <= x1);
  const cell = heat.cursor || { epoch: seen.at(-1), row: y0 - 1 };
  const move = (right, down) => () => pointTo({
    epoch: seen[clamp(seen.indexOf(nearest(seen, cell.epoch)) + right, 0, seen.length - 1)], row: clamp(cell.row + down, y0, y1),
  });
  const act = {
    ArrowLeft: move(-1, 0), ArrowRight: move(1, 0), ArrowUp: move(0, -1), ArrowDown: move(0, 1),
    "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => choose({ zoom: null }),
    Enter: () => cell.row >= y0 && choose({ klass: map.order[cell.row] }), Escape: () => pointTo(null),
  }[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
}
