// Trends of one patient: the scales of the console, gaps as gaps, the P-level under each signal.

import { get, patientPath } from "./api.js";
import { dataTable, mountChart } from "./chart.js";
import { SIGNALS, clip, h, learnSignals } from "./dom.js";
import { linkedCharts } from "./linked.js";
import { followNewest, watchAge } from "./live.js";
import { addressOf, patientBar } from "./patient_bar.js";
import { pastOf } from "./whatif.js";

const SCALES = [[0.25, "15 min"], [1, "1 h"], [8, "8 h"], [12, "12 h"]];

function hoursOf(query) {
  const asked = Number(query.get("hours"));
  return SCALES.some(([hours]) => hours === asked) ? asked : 8;
}

/** Draw all recorded signals up to the chosen moment. */
export async function showTrends(context) {
  const { main, patient, query, signal } = context;
  main.append(h("p", { class: "waiting", role: "status" }, `Loading ${clip(patient)} …`));
  const at = query.get("at") === null ? "" : `&at=${encodeURIComponent(query.get("at").replace(" ", "+"))}`;
  const hours = hoursOf(query);
  const [row, trend, quality] = await Promise.all([
    get(patientPath(patient, `?${at.slice(1)}`), signal),
    get(patientPath(patient, `/trends?hours=${hours}${at}`), signal),
    get(patientPath(patient, `/quality?${at.slice(1)}`), signal),
  ]);
  if (signal.aborted) return;
  if (row.patient !== patient || trend.patient !== patient) throw new Error("The server answered for another patient.");
  const bar = patientBar(context, row, quality.chip, [scaleLinks(context, hours)]);
  const past = pastOf(trend);
  learnSignals(quality.channels);
  const absent = Object.keys(SIGNALS).filter((name) => quality.channels[name]?.missing_share === 1);
  const figures = Object.keys(SIGNALS).filter((name) => trend.channels[name] && !absent.includes(name)).map((name) => ({ name, ...figure(name, past, trend, hours) }));
  const grid = h("div", { class: "trend-grid" }, figures.map((one) => one.node)), tools = h("div", { class: "row" });
  main.replaceChildren(bar.node, h("section", { class: "page" }, tools, grid,
    h("details", { class: "panel" }, h("summary", {}, "Waveform strip"),
      h("p", {}, trend.waveform ? "A waveform was recorded." : "No waveform was recorded.")),
    trend.marks.length ? h("p", { "data-testid": "marks" }, h("b", {}, "Reported by the console: "), markWords(trend.marks)) : null,
    h("p", { class: "note" }, `Samples every ${trend.grid_min} min, neither smoothed nor joined over gaps. Not recorded: ${[...absent.map((name) => trend.channels[name]?.label ?? name), ...trend.not_recorded].join(", ")}.`)));
  const looks = figures.map((one) => ({ name: one.name, look: one.mount().look }));
  tools.append(linkedCharts(grid, looks, [-60 * hours, 0], trend.grid_min).node);
  watchAge({ age: row.age_min, oldest: Infinity, signal, tick: bar.setAge, expire: () => {} });
  followNewest(context, row);
}

function markWords(marks) {
  const kinds = { suction: "S", position: "W" };
  return Object.entries(kinds).map(([kind, sign]) => [marks.filter((one) => one.kind === kind), sign]).filter(([found]) => found.length)
    .map(([found, sign]) => `${sign} ${found[0].words.toLowerCase()}, ${found.length} samples`).join(" · ");
}

function figure(name, past, trend, hours) {
  const box = h("div", { class: "plot" });
  const spec = { name, id: `trend-${name}`, label: trend.channels[name].label, gridMin: trend.grid_min, span: [-60 * hours, 0], nowMinute: trend.minute,
    past: { minutes: past.minutes, values: past.channels[name] }, quantiles: null, carry: null, low: null, high: null, marks: trend.marks.map((one) => ({ ...one, minute: one.minute - trend.minute })),
    steps: { minutes: past.minutes, levels: past.levels, candidate: null } };
  const node = h("figure", { "data-testid": `trend-${name}`, class: "panel" }, box, dataTable(() => spec).details);
  return { node, mount: () => mountChart(box, spec) };
}

function scaleLinks(context, now) {
  const at = context.query.get("at");
  return h("div", { class: "horizon", role: "group", "aria-label": "Scale" }, SCALES.map(([hours, words]) =>
    h("a", { class: "button", href: addressOf(context.patient, "trends", { at, hours }), "aria-current": hours === now ? "true" : null }, words)));
}
