// One crosshair and one zoom for all charts of a screen: by pointer, by slider, by keys.

import { SIGNALS, h, num } from "./dom.js";

const NEARER = [1, 2, 4];

function ago(minute) {
  if (minute === 0) return "now";
  const size = Math.abs(minute);
  return `${minute > 0 ? "+" : "−"}${size < 60 ? `${num(size)} min` : `${num(size / 60, size % 60 ? 1 : 0)} h`}`;
}

/**
 * The slider and the zoom buttons; `charts` are {name, look}, `span` the minutes from now of all.
 * The pointer over any chart of `root` moves the crosshair of all of them.
 */
export function linkedCharts(root, charts, span, gridMin) {
  let nearer = 0, minute = null;
  const slider = h("input", { type: "range", min: span[0], max: span[1], step: gridMin, value: 0, "aria-label": "Read all charts at", "data-testid": "read-at" });
  const button = (words, label, change) => h("button", { type: "button", "aria-label": label, "data-testid": label.replaceAll(" ", "-").toLowerCase(),
    onclick: () => zoom(change) }, words);
  const closer = button("+", "Zoom in", 1), wider = button("−", "Zoom out", -1);
  const show = () => {
    const told = charts.map((one) => [SIGNALS[one.name].short, one.look(NEARER[nearer], minute)]);
    const words = minute === null ? "nothing is read" : `${ago(minute)}: ${told.map((one) => one.join(" ")).join(", ")}`;
    slider.setAttribute("aria-valuetext", words);
    [closer.disabled, wider.disabled] = [nearer === NEARER.length - 1, nearer === 0];
  };
  const read = (next) => {
    if (next === minute) return;
    minute = next;
    if (next !== null) slider.value = String(next);
    show();
  };
  const zoom = (change) => {
    nearer = Math.min(Math.max(nearer + change, 0), NEARER.length - 1);
    show();
  };
  const nearest = (event) => {
    const svg = event.target instanceof Element ? event.target.closest("svg.chart") : null;
    if (!svg) return null;
    const [left, right] = svg.dataset.x.split(" ").map(Number), [from, to] = svg.dataset.minutes.split(" ").map(Number);
    const share = (event.clientX - svg.getBoundingClientRect().left - left) / (right - left);
    return share < 0 || share > 1 ? null : Math.round((from + share * (to - from)) / gridMin) * gridMin;
  };
  root.addEventListener("pointermove", (event) => read(nearest(event)));
  root.addEventListener("pointerleave", () => read(document.activeElement === slider ? Number(slider.value) : null));
  slider.addEventListener("input", () => read(Number(slider.value)));
  slider.addEventListener("blur", () => read(null));
  slider.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1 : -1);
    if (event.key === "Escape") read(null);
  });
  show();
  return { node: h("div", { class: "linked", role: "group", "aria-label": "Read and zoom all charts" }, slider, wider, closer), again: show };
}
