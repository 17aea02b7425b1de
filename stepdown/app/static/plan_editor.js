// One plan as a row of hours: drag over it, or use the keys; a level for every hour.

import { LEVELS, h } from "./dom.js";

const [LOWEST, HIGHEST] = [LEVELS[0], LEVELS.at(-1)];
const STEP = { ArrowUp: 1, ArrowDown: -1, PageUp: 2, PageDown: -2 };
const MOVE = { ArrowLeft: -1, ArrowRight: 1 };

const clamp = (p) => Math.min(Math.max(p, LOWEST), HIGHEST);

/** The row; `changed` gets the levels of all hours whenever one was changed. */
export function planEditor(name, levels, highest, changed) {
  let now = [...levels];
  const most = Math.min(highest ?? HIGHEST, HIGHEST);
  const cells = now.map((_, i) => h("div", { class: "hour", role: "slider", "data-hour": i, "data-testid": `${name.replace(" ", "-").toLowerCase()}-${i + 1}`,
    "aria-label": `${name}, hour ${i + 1}`, "aria-valuemin": LOWEST, "aria-valuemax": most, "aria-orientation": "vertical" }, h("i"), h("b"), h("small", {}, `${i + 1} h`)));
  const draw = () => cells.forEach((one, i) => {
    one.setAttribute("aria-valuenow", now[i]);
    one.setAttribute("aria-valuetext", `P-${now[i]}`);
    one.querySelector("b").textContent = `P-${now[i]}`;
    one.querySelector("i").style.height = `${(100 * (now[i] - LOWEST + 1)) / (HIGHEST - LOWEST + 1)}%`;
  });
  const focusOn = (place) => cells.forEach((one, i) => {
    one.tabIndex = i === place ? 0 : -1;
    if (i === place && one.isConnected) one.focus();
  });
  const set = (from, to, p) => {
    const next = now.map((old, i) => (i >= from && i <= to ? Math.min(clamp(p), most) : old));
    if (next.join() === now.join()) return;
    now = next;
    draw();
    changed([...now]);
  };
  const row = h("div", { class: "hours", role: "group", "aria-label": `${name}: levels by hour` }, cells);
  row.addEventListener("keydown", (event) => {
    const place = cells.indexOf(document.activeElement);
    if (place < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const last = event.shiftKey ? place : now.length - 1;
    if (event.key in STEP) set(place, last, now[place] + STEP[event.key]);
    else if (/^[2-9]$/.test(event.key)) set(place, last, Number(event.key));
    else if (event.key in MOVE) focusOn(Math.min(Math.max(place + MOVE[event.key], 0), cells.length - 1));
    else if (event.key === "Home" || event.key === "End") focusOn(event.key === "Home" ? 0 : cells.length - 1);
    else return;
    event.preventDefault();
  });
  const paint = (event) => {
    const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest(".hour");
    if (!cell || !row.contains(cell)) return;
    const box = cell.getBoundingClientRect(), place = Number(cell.dataset.hour);
    set(place, place, LOWEST + Math.floor(((box.bottom - event.clientY) / box.height) * LEVELS.length));
  };
  row.addEventListener("pointerdown", (event) => {
    paint(event);
    focusOn(cells.indexOf(event.target.closest(".hour")));
    row.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  row.addEventListener("pointermove", (event) => { if (row.hasPointerCapture(event.pointerId)) paint(event); });
  cells[0].tabIndex = 0;
  cells.slice(1).forEach((one) => { one.tabIndex = -1; });
  draw();
  return row;
}
