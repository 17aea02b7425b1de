// Elements, numbers and times. Text is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
export const DASH = "—";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** An HTML element with attributes and children; strings become text. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** The signals in the order and the words of the screen; axes are fixed so that patients compare. */
export const SIGNALS = {
  map: { short: "MAP", axis: [40, 120], ticks: [40, 60, 80, 100, 120], unit: "mmHg", digits: 0 },
  pulsatility: { short: "Pulsatility", axis: [0, 80], ticks: [0, 20, 40, 60, 80], unit: "mmHg", digits: 0 },
  hr: { short: "HR", axis: [40, 140], ticks: [40, 65, 90, 115, 140], unit: "/min", digits: 0 },
  lvedp: { short: "LVEDP", axis: [-20, 40], ticks: [-20, 0, 20, 40], unit: "mmHg", digits: 0 },
  flow: { short: "Flow", axis: [0, 6], ticks: [0, 2, 4, 6], unit: "L/min", digits: 1 },
  sbp: { short: "Systolic pressure", brief: "Systolic", axis: [40, 200], ticks: [40, 80, 120, 160, 200], unit: "mmHg", digits: 0 },
  dbp: { short: "Diastolic pressure", brief: "Diastolic", axis: [20, 120], ticks: [20, 45, 70, 95, 120], unit: "mmHg", digits: 0 },
  lvp: { short: "LV pressure", axis: [-20, 180], ticks: [-20, 30, 80, 130, 180], unit: "mmHg", digits: 0 },
  current: { short: "Motor current", axis: [0, 1000], ticks: [0, 250, 500, 750, 1000], unit: "mA", digits: 0 },
  speed: { short: "Pump speed", axis: [20000, 50000], ticks: [20000, 30000, 40000, 50000], unit: "rpm", digits: 0 },
  tau: { short: "Tau of the LV", brief: "Tau", axis: [0, 120], ticks: [0, 40, 80, 120], unit: "ms", digits: 0 },
  ese: { short: "End-systolic elastance", brief: "Elastance", axis: [0, 6], ticks: [0, 2, 4, 6], unit: "mmHg/mL", digits: 1 },
};
/** Add signals that only some places record, in the words of the server; the axis is the usual range. */
export function learnSignals(channels) {
  for (const [name, one] of Object.entries(channels)) {
    if (SIGNALS[name]) continue;
    const [low, high] = [Math.floor(one.soft_range[0]), Math.ceil(one.soft_range[1])];
    SIGNALS[name] = { short: one.label, axis: [low, high], ticks: [low, (low + high) / 2, high], unit: one.unit, digits: high - low < 10 ? 2 : 1 };
  }
}
export const SHOWN = ["map", "pulsatility", "hr", "lvedp", "flow"];
export const LEVELS = [2, 3, 4, 5, 6, 7, 8, 9];

/** A number with fixed digits; what is missing is a dash. */
export function num(value, digits = 0) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : text.replace("-", "−");
}

/** A limit or a threshold as it was set: none of its digits is rounded away. */
export function exact(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : DASH;
}

/** A number of a signal, with its unit. */
export function withUnit(value, name, unit) {
  const known = SIGNALS[name];
  return `${num(value, known?.digits ?? 1)} ${unit ?? known?.unit ?? ""}`.trim();
}

export function share(value) {
  return typeof value === "number" ? `${num(100 * value, 0)} %` : DASH;
}

const EPOCH = Date.UTC(2000, 0, 1);

/** A minute of support as an ISO time of the recording's clock. */
export function isoOf(minute) {
  return new Date(EPOCH + minute * 60000).toISOString().replace(".000Z", "Z");
}

/** "day 3, 15:00 UTC" of a time on the recording's clock. */
export function clock(iso) {
  const time = Date.parse(iso);
  if (!Number.isFinite(time)) return DASH;
  const text = new Date(time).toISOString().slice(11, 16);
  const day = Math.floor((time - EPOCH) / 86400000) + 1;
  return day > 0 && day < 400 ? `day ${day}, ${text} UTC` : `${new Date(time).toISOString().slice(0, 10)} ${text} UTC`;
}

export function hhmm(minute) {
  return new Date(EPOCH + minute * 60000).toISOString().slice(11, 16);
}

/** A time of the server's clock, to the second: "2026-11-15 14:36:51 UTC". */
export function stamp(iso) {
  const time = Date.parse(iso);
  const words = Number.isFinite(time) ? `${new Date(time).toISOString().slice(0, 19).replace("T", " ")} UTC` : DASH;
  return h("time", { datetime: iso }, words);
}

/** A number of an entry of the audit, as it is written everywhere. */
export function entryName(number) {
  return String(number).padStart(6, "0");
}

/** A chip: icon and word, never color alone. */
export function chip(kind, icon, words, testid) {
  return h("span", { class: `chip ${kind}`, "data-testid": testid },
    h("span", { "aria-hidden": "true" }, `${icon} `), words);
}

export function qualityChip(word) {
  const kinds = { good: ["good", "●"], check: ["check", "▲"], poor: ["outside", "■"] };
  const [kind, icon] = kinds[word] ?? ["info", "?"];
  return chip(kind, icon, `signal: ${word ?? "not known"}`, "quality-chip");
}

/** A table from a head and rows of cells; cells are text, nodes or {text, label}. */
export function table(caption, head, rows, attributes = {}) {
  const cell = (one, place) => {
    const first = place === 0;
    const labelled = one !== null && typeof one === "object" && !(one instanceof Node) && !Array.isArray(one);
    const tag = first ? "th" : "td";
    return h(tag, { scope: first ? "row" : null, class: labelled ? one.class : null, "data-head": first ? null : head[place],
      "aria-label": labelled ? one.label : null }, labelled ? one.text : one);
  };
  return h("table", attributes,
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, rows.map((row) => h("tr", { class: row.class }, (row.cells ?? row).map(cell)))));
}

/** Say something to a screen reader, once. */
export function announce(words) {
  const live = document.getElementById("live");
  if (live && live.textContent !== words) live.textContent = words;
}

/** Text of bounded length. */
export function clip(text, longest = 64) {
  const all = String(text ?? "");
  return all.length > longest ? `${all.slice(0, longest)}…` : all;
}
