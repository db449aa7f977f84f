// Hands on the heatmap: pointer, box zoom and keys. All maps share the cursor and the zoom.

function cellAt(map, x, y) {
  const { epochs } = overTime(map.run, state.reading);
  const epoch = nearest(epochs.filter((each) => each >= map.extent[0] && each <= map.extent[1]), map.view.scale("x").invert(x));
  const row = Math.min(map.extent[3], Math.max(map.extent[2], Math.round(map.view.scale("y").invert(y))));
  return { epoch, row };
}

// What every map says about one cell.
function heatLines({ epoch, row }) {
  const place = heat.maps[0].order[row];
  const run = current();
  return [[run.names[place], ...samplesIn(run, place), `${UNIT} ${epoch}`].join(", "),
    ...heat.maps.map((map) => {
      const found = overTime(map.run, state.reading);
      const at = found.epochs.indexOf(nearest(found.epochs, epoch));
      const value = found.values[at * map.run.names.length + place];
      return `${map.run.name}: ${known(value) ? `${spoken(state.reading).toLowerCase()} ${shown(state.reading, value)}` : "not read"}`;
    })];
}

function pointTo(cell) {
  heat.cursor = cell;
  for (const map of heat.maps) {
    if (!map.view) continue;
    const half = heatStep(overTime(map.run, state.reading).epochs) / 2;
    map.view.data("cursor", cell
      ? [{ x0: cell.epoch - half, x1: cell.epoch + half, y0: cell.row - 0.5, y1: cell.row + 0.5 }] : []).runAsync();
  }
  if (cell) fill("heat-readout", heatLines(cell).join(" · "));
}

function steer(map) {
  const { host, view } = map;
  const surface = host.querySelector("svg");
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.setAttribute("aria-roledescription", "heatmap");
  host.setAttribute("aria-label", `${spoken(state.reading)} of every class over ${UNIT}s, ${map.run.name}. Arrow keys `
    + "move, plus and minus zoom, 0 shows all, Enter chooses the class.");
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
  heat.double = Date.now() - (heat.pressed || 0) < 400;
  heat.pressed = Date.now();
  if (event.button !== 0) return;
  const start = inPlot(map.view, surface, event, 0);
  if (!start) return;
  const [startX, startY] = start;
  const box = element("div", { class: "box" });
  const begin = [event.clientX, event.clientY];
  const move = (next) => {
    Object.assign(box.style, {
      left: `${Math.min(begin[0], next.clientX)}px`, top: `${Math.min(begin[1], next.clientY)}px`,
      width: `${Math.abs(next.clientX - begin[0])}px`, height: `${Math.abs(next.clientY - begin[1])}px`,
    });
    if (!box.isConnected) document.body.append(box);
  };
  const end = (next) => {
    removeEventListener("pointermove", move);
    removeEventListener("pointerup", end);
    removeEventListener("pointercancel", end);
    box.remove();
    if (next.type === "pointercancel") return;
    const [endX, endY] = within(map.view, surface, next);
    const far = Math.abs(endX - startX) > 6 && Math.abs(endY - startY) > 6;
    const [one, two] = [cellAt(map, startX, startY), cellAt(map, endX, endY)];
    if (far) {
      choose({ zoom: [Math.min(one.epoch, two.epoch), Math.max(one.epoch, two.epoch),
        Math.min(one.row, two.row), Math.max(one.row, two.row)] });
    } else if (Math.hypot(endX - startX, endY - startY) < 4) {
      if (!heat.double) heat.click = setTimeout(() => choose({ klass: map.order[one.row] }), 250);
    }
  };
  event.preventDefault();
  map.host.focus({ preventScroll: true });
  addEventListener("pointermove", move);
  addEventListener("pointerup", end);
  addEventListener("pointercancel", end);
}

// Show half, or twice, of what is in view, about the cursor or the middle.
function zoomBy(factor) {
  if (!heat.maps.length) return;
  const all = heatExtent(heatRuns(), null);
  const [x0, x1, y0, y1] = heat.maps[0].extent;
  const at = heat.cursor || { epoch: (x0 + x1) / 2, row: (y0 + y1) / 2 };
  const about = (low, high, middle, least, most) => {
    const size = Math.max(1, Math.min(most - least, (high - low) * factor));
    const start = Math.min(most - size, Math.max(least, middle - ((middle - low) / (high - low || 1)) * size));
    return [Math.round(start), Math.round(start + size)];
  };
  const zoom = [...about(x0, x1, at.epoch, all[0], all[1]), ...about(y0, y1, at.row, all[2], all[3])];
  choose({ zoom: zoom.every((value, place) => value === all[place]) ? null : zoom });
}

function steerByKey(event, map) {
  const { epochs } = overTime(map.run, state.reading);
  const seen = epochs.filter((epoch) => epoch >= map.extent[0] && epoch <= map.extent[1]);
  const cell = heat.cursor || { epoch: seen[seen.length - 1], row: map.extent[2] - 1 };
  const at = seen.indexOf(nearest(seen, cell.epoch));
  const keys = {
    ArrowLeft: () => pointTo({ ...cell, epoch: seen[Math.max(0, at - 1)], row: Math.max(map.extent[2], cell.row) }),
    ArrowRight: () => pointTo({ ...cell, epoch: seen[Math.min(seen.length - 1, at + 1)], row: Math.max(map.extent[2], cell.row) }),
    ArrowUp: () => pointTo({ ...cell, row: Math.max(map.extent[2], cell.row - 1) }),
    ArrowDown: () => pointTo({ ...cell, row: Math.min(map.extent[3], cell.row + 1) }),
    "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => choose({ zoom: null }),
    Enter: () => cell.row >= map.extent[2] && choose({ klass: map.order[cell.row] }),
    Escape: () => pointTo(null),
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
}
