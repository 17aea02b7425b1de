// Charts as SVG, drawn here: measured past, forecast bands, carry-forward, limits, P-level steps.

import { DASH, LEVELS, SIGNALS, clock, exact, h, hhmm, isoOf, num, s, table, withUnit } from "./dom.js";

export const MARGIN = { left: 40, right: 60, bare: 22, top: 24, bottom: 20 };
const STRIP = 30; // px of the P-level steps underneath
const [LOWEST, HIGHEST] = [LEVELS[0], LEVELS.at(-1)];

/**
 * Put a chart into a box that keeps it as wide as itself; `spec` may be replaced by the result.
 * `result.look` gives it a share of the time axis and a minute to read at; it returns what is there.
 */
export function mountChart(box, spec) {
  let current = spec, zoom = 1, minute = null;
  const draw = () => {
    const width = box.clientWidth, height = box.clientHeight;
    if (width < 60 || height < 40) return;
    const seen = { ...current, span: current.span.map((one) => one / zoom) };
    box.querySelector("svg")?.remove();
    const svg = drawChart(seen, width, height);
    if (minute !== null) svg.append(crosshair(seen, scales(seen, width, height), minute));
    box.prepend(svg);
  };
  new ResizeObserver(draw).observe(box);
  draw();
  const replace = (next) => {
    current = next;
    draw();
  };
  replace.look = (nearer, at) => {
    [zoom, minute] = [nearer, at];
    draw();
    return at === null ? "" : readAt(current, at);
  };
  return replace;
}

/** What a chart says at a minute from now, in words. */
function readAt(spec, minute) {
  const unit = SIGNALS[spec.name].unit, digits = SIGNALS[spec.name].digits;
  const place = Math.round(minute / spec.gridMin) - 1; // of a forecast
  const past = spec.past.values[spec.past.minutes.findIndex((one) => Math.abs(one - minute) <= spec.gridMin / 2)];
  if (typeof past === "number") return withUnit(past, spec.name);
  const each = spec.overlays ?? (spec.quantiles ? [{ quantiles: spec.quantiles }] : []);
  const told = each.filter((one) => typeof one.quantiles?.q50[place] === "number").map(({ name, quantiles: q }) =>
    `${name ? `${name} ` : ""}${num(q.q50[place], digits)}${each.length < 2 ? ` (${num(q.q05[place], digits)} to ${num(q.q95[place], digits)})` : ""}`);
  return told.length ? `${told.join(" · ")} ${unit}` : DASH;
}

function crosshair(spec, at, minute) {
  const x = at.px(minute);
  if (x < at.x[0] - 1 || x > at.x[1] + 1) return s("g", {});
  return s("g", { class: "cross" }, s("line", { x1: x, x2: x, y1: at.y[1], y2: at.y[0] }),
    s("text", { x: at.x[1], y: at.width < 420 ? 34 : 16, "text-anchor": "end", "data-testid": `read-${spec.name}` }, readAt(spec, minute)));
}

/** The axis of a chart: that of its signal, fixed, unless it shows differences. */
function axisOf(spec) {
  return spec.axis ?? SIGNALS[spec.name].axis;
}

function scales(spec, width, height) {
  const strip = spec.steps ? STRIP : 0;
  const x = [MARGIN.left, width - (spec.span[1] > 0 ? MARGIN.right : MARGIN.bare)];
  const y = [height - MARGIN.bottom - strip, MARGIN.top];
  const [low, high] = axisOf(spec);
  const [from, to] = spec.span; // minutes from now
  return {
    x, y, width,
    px: (minute) => x[0] + ((minute - from) / (to - from)) * (x[1] - x[0]),
    py: (value) => y[0] + ((value - low) / (high - low)) * (y[1] - y[0]),
  };
}

function drawChart(spec, width, height) {
  const at = scales(spec, width, height);
  const clipId = `clip-${spec.id ?? spec.name}`;
  const [from, to] = spec.span;
  const [low, high] = axisOf(spec);
  return s("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: `chart signal-${spec.name}`,
    "aria-label": describe(spec), "data-num": true,
    "data-x": at.x.join(" "), "data-y": at.y.join(" "), "data-minutes": `${from} ${to}`, "data-values": `${low} ${high}`,
  },
    s("defs", {}, s("clipPath", { id: clipId },
      s("rect", { x: at.x[0], y: at.y[1], width: at.x[1] - at.x[0], height: at.y[0] - at.y[1] }))),
    grid(spec, at),
    s("g", { "clip-path": `url(#${clipId})` }, limits(spec, at), forecast(spec, at), overlays(spec, at), measured(spec, at)),
    limitLabels(spec, at), marks(spec, at), nowLine(spec, at), title(spec, at),
    spec.steps ? steps(spec, at, height) : null);
}

function grid(spec, at) {
  const all = spec.ticks ?? SIGNALS[spec.name].ticks;
  const room = at.y[0] - at.y[1];
  const ticks = room / all.length < 17 ? all.filter((_, i) => i % 2 === 0) : all;
  return s("g", { class: "grid" },
    ticks.map((value) => [
      s("line", { x1: at.x[0], x2: at.x[1], y1: at.py(value), y2: at.py(value) }),
      s("text", { x: at.x[0] - 5, y: at.py(value) + 5, "text-anchor": "end" }, value >= 10000 ? `${value / 1000}k` : num(value)),
    ]),
    timeTicks(spec, at));
}

function timeTicks(spec, at) {
  const [from, to] = spec.span;
  const wide = at.x[1] - at.x[0];
  const choices = [5, 10, 30, 60, 120, 180, 240, 360, 720];
  const step = choices.find((one) => ((to - from) / one) * (one < 60 ? 80 : 58) <= wide) ?? 720;
  const found = [];
  for (let minute = Math.ceil(from / step) * step; minute <= to + 1e-6; minute += step) found.push(minute);
  const words = (minute) => minute === 0 ? "now" : step < 60 ? `${minute > 0 ? "+" : "−"}${Math.abs(minute)} min`
    : `${minute > 0 ? "+" : "−"}${Math.abs(minute) / 60} h`;
  return found.map((minute) => s("text", {
    x: at.px(minute), y: at.y[0] + 17, "text-anchor": minute === from ? "start" : minute === to ? "end" : "middle",
  }, words(minute)));
}

/** The path of a curve; a gap stays a gap, a lone sample is a dot. */
export function linePath(minutes, values, at) {
  let path = "", open = false;
  values.forEach((value, i) => {
    if (typeof value !== "number") {
      open = false;
      return;
    }
    const lone = !open && typeof values[i + 1] !== "number";
    path += `${open ? "L" : "M"}${at.px(minutes[i]).toFixed(2)} ${at.py(value).toFixed(2)}${lone ? "h0.01" : ""}`;
    open = true;
  });
  return path;
}

function bandPath(minutes, lower, upper, at) {
  const there = upper.map((v, i) => `${i ? "L" : "M"}${at.px(minutes[i]).toFixed(2)} ${at.py(v).toFixed(2)}`);
  const back = lower.map((v, i) => `L${at.px(minutes[i]).toFixed(2)} ${at.py(v).toFixed(2)}`).reverse();
  return `${there.join("")}${back.join("")}Z`;
}

function forecast(spec, at) {
  if (!spec.quantiles) return null;
  const q = spec.quantiles;
  const minutes = q.q50.map((_, i) => (i + 1) * spec.gridMin);
  const carried = typeof spec.carry === "number"
    ? s("path", { class: "carry", d: linePath([0, spec.span[1]], [spec.carry, spec.carry], at) }) : null;
  return s("g", {},
    s("path", { class: "forecast band90", d: bandPath(minutes, q.q05, q.q95, at) }),
    s("path", { class: "forecast band50", d: bandPath(minutes, q.q25, q.q75, at) }),
    carried,
    s("path", { class: "forecast median", d: linePath(minutes, q.q50, at) }));
}

/** Several plans in one chart: each its median, and its 90 % band as two thin lines. */
function overlays(spec, at) {
  return (spec.overlays ?? []).filter((one) => one.quantiles).map((one) => {
    const q = one.quantiles, minutes = q.q50.map((_, i) => (i + 1) * spec.gridMin);
    return s("g", { class: `plan ${one.look}` },
      ["q05", "q95"].map((name) => s("path", { class: "forecast edge", d: linePath(minutes, q[name], at) })),
      s("path", { class: "forecast middle", d: linePath(minutes, q.q50, at) }));
  });
}

function measured(spec, at) {
  return s("path", { class: "measured", d: linePath(spec.past.minutes, spec.past.values, at) });
}

function bounds(spec) {
  return [spec.low, spec.high].filter((one) => typeof one === "number");
}

function limits(spec, at) {
  return bounds(spec).map((value) =>
    s("line", { class: "limit", x1: at.x[0], x2: at.x[1], y1: at.py(value), y2: at.py(value) }));
}

function limitLabels(spec, at) {
  return bounds(spec).map((value) =>
    s("text", { class: "limit-label", x: at.x[1] + 3, y: Math.min(at.py(value) + 5, at.y[0]) }, `limit ${exact(value)}`));
}

/** Messages of the console, at the foot of the chart: a sign for each sample, in words for the eye and the reader. */
function marks(spec, at) {
  return (spec.marks ?? []).map((one) => s("text", { class: "mark", x: at.px(one.minute), y: at.y[0] - 2, "text-anchor": "middle" },
    one.kind === "suction" ? "S" : "W", s("title", {}, `${one.words}`)));
}

function nowLine(spec, at) {
  if (spec.span[1] <= 0) return null;
  return s("line", { class: "now", x1: at.px(0), x2: at.px(0), y1: at.y[1], y2: at.y[0] });
}

function title(spec, at) {
  const known = SIGNALS[spec.name];
  const note = beyond(spec), label = spec.label ?? known.short;
  const fits = (label.length + known.unit.length + note.length + 4) * 7.8 < at.width - 64; // px, up to the button of the table
  const name = fits ? label : known.brief ?? known.short;
  return s("text", { class: "title", x: at.x[0] - 30, y: 16 }, `${name}, ${known.unit}`,
    s("tspan", { class: "beyond", dx: 10 }, note));
}

/** Values that the fixed axis cannot show are said, not squeezed in. */
function beyond(spec) {
  const [low, high] = axisOf(spec);
  const q = spec.quantiles;
  const each = spec.overlays?.map((one) => one.quantiles).filter(Boolean) ?? (q ? [q] : []);
  const all = [...spec.past.values, ...each.flatMap((one) => [...one.q05, ...one.q95])].filter((v) => typeof v === "number");
  const told = [all.some((v) => v > high) ? "▲ above" : "", all.some((v) => v < low) ? "▼ below" : ""].filter(Boolean);
  return told.length ? `${told.join(", ")} the axis` : "";
}

function steps(spec, at, height) {
  const top = height - STRIP + 2, bottom = height - 4;
  const y = (p) => bottom - ((p - LOWEST) / (HIGHEST - LOWEST)) * (bottom - top);
  const { minutes, levels, candidate, plans } = spec.steps;
  const half = spec.gridMin / 2;
  let path = "", last = null;
  const labels = [];
  levels.forEach((p, i) => {
    if (typeof p !== "number") {
      last = null;
      return;
    }
    const x = at.px(Math.max(minutes[i] - half, spec.span[0]));
    path += last === null ? `M${x.toFixed(1)} ${y(p).toFixed(1)}` : `V${y(p).toFixed(1)}`;
    path += `H${at.px(Math.min(minutes[i] + half, 0)).toFixed(1)}`;
    if (p !== last) labels.push([x, p]);
    last = p;
  });
  const shown = labels.filter(([x], i) => i === 0 || x - labels[i - 1][0] > 34);
  const ahead = typeof candidate === "number" && spec.span[1] > 0
    ? [s("path", { class: "steps ahead", d: `M${at.px(0)} ${y(candidate)}H${at.x[1]}` }),
      s("text", { class: "step-label", x: at.x[1] + 3, y: Math.min(Math.max(y(candidate) + 5, top + 10), height - 3) }, `P-${candidate}`)] : null;
  const planned = (plans ?? []).map((one) => s("path", { class: `steps ${one.look}`, d: one.levels.map((p, i) =>
    `${i ? "V" : `M${at.px(0).toFixed(1)} `}${y(p).toFixed(1)}H${at.px(60 * (i + 1)).toFixed(1)}`).join("") }));
  return s("g", {}, planned, s("text", { class: "step-label", x: at.x[0] - 5, y: bottom - 6, "text-anchor": "end" }, "P"),
    s("path", { class: "steps", d: path }),
    shown.map(([x, p]) => s("text", { class: "step-label", x: x + 3, y: y(p) > top + 13 ? y(p) - 3 : y(p) + 15 }, `P-${p}`)), ahead);
}

function describe(spec) {
  const known = SIGNALS[spec.name];
  const newest = spec.past.values.findLast((v) => typeof v === "number");
  const told = [`${known.short}: newest measured ${withUnit(newest, spec.name)}`];
  if (spec.quantiles) {
    const q = spec.quantiles, n = q.q50.length - 1;
    told.push(`forecast in ${num(((n + 1) * spec.gridMin) / 60, 0)} h: median ${withUnit(q.q50[n], spec.name)}, `
      + `90 % band ${num(q.q05[n], known.digits)} to ${withUnit(q.q95[n], spec.name)}, carry-forward ${withUnit(spec.carry, spec.name)}`);
  }
  for (const { name, quantiles } of spec.overlays ?? []) {
    if (quantiles) told.push(`${name}: median ${withUnit(quantiles.q50.at(-1), spec.name)} after ${num((quantiles.q50.length * spec.gridMin) / 60, 0)} h`);
  }
  for (const value of bounds(spec)) told.push(`limit ${exact(value)} ${known.unit}`);
  return `${told.join("; ")}.`;
}

/** The numbers behind a chart, made when opened. */
export function dataTable(read) {
  const body = h("div", { class: "data-table", tabindex: "0", role: "region" });
  const details = h("details", { class: "behind" },
    h("summary", {}, h("span", { "aria-hidden": "true" }, "▤"), h("span", { class: "unseen" }, "Data table")), body);
  const fill = () => {
    if (!details.open) return body.replaceChildren();
    const spec = read();
    body.setAttribute("aria-label", `Numbers of ${SIGNALS[spec.name].short}`);
    return body.replaceChildren(...tablesOf(spec));
  };
  details.addEventListener("toggle", fill);
  details.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && details.open) {
      details.open = false;
      details.querySelector("summary").focus();
    }
  });
  return { details, fill };
}

function tablesOf(spec) {
  const known = SIGNALS[spec.name];
  const cell = (value) => typeof value === "number"
    ? { text: num(value, known.digits), label: withUnit(value, spec.name) } : DASH;
  const when = (minute) => spec.nowMinute === null ? `${num(minute)} min` : `${hhmm(spec.nowMinute + minute)} UTC`;
  const found = [];
  if (spec.quantiles) {
    const q = spec.quantiles;
    found.push(table(`${known.short}, forecast, ${known.unit}`, ["time", "5 %", "25 %", "median", "75 %", "95 %"],
      q.q50.map((_, i) => [when((i + 1) * spec.gridMin), ...["q05", "q25", "q50", "q75", "q95"].map((name) => cell(q[name][i]))])));
    found.push(h("p", {}, `Carry-forward ${withUnit(spec.carry, spec.name)}.`));
  }
  for (const { name, quantiles: q } of spec.overlays ?? []) {
    if (q) found.push(table(`${known.short}, ${name}, ${known.unit}`, ["time", "5 %", "median", "95 %"],
      q.q50.map((_, i) => [when((i + 1) * spec.gridMin), ...["q05", "q50", "q95"].map((one) => cell(q[one][i]))])));
  }
  found.push(table(`${known.short}, measured, ${known.unit}`, ["time", "measured"],
    spec.past.values.map((value, i) => [when(spec.past.minutes[i]), cell(value)])));
  if (spec.nowMinute !== null) found.push(h("p", {}, `Now is ${clock(isoOf(spec.nowMinute))} on the recording's clock.`));
  return found;
}
