// What is measured now: big numbers with units, the lowest of the hour, the trend, the limits.

import { DASH, SHOWN, SIGNALS, chip, exact, h, num, withUnit } from "./dom.js";

function trendWords(trend, digits) {
  if (typeof trend !== "number") return "";
  const size = num(Math.abs(trend), digits);
  if (Number(size) === 0) return "→";
  return `${trend > 0 ? "↑" : "↓"} ${size}`;
}

/** The limits of a signal as short as they go: "> 60", "50 to 120". */
function target(limits, name) {
  const low = limits?.[`${name}_low`], high = limits?.[`${name}_high`];
  if (typeof low !== "number") return null;
  return typeof high === "number" ? `${exact(low)} to ${exact(high)}` : `> ${exact(low)}`;
}

function tile(name, one, odd, limits) {
  const known = SIGNALS[name];
  const value = one?.value ?? null, unit = one?.unit ?? known.unit;
  const trend = trendWords(one?.trend, known.digits);
  const small = [`min ${num(one?.lowest, known.digits)}`, trend].filter(Boolean);
  const wanted = target(limits, name);
  const spoken = `${known.short} ${withUnit(value, name, unit)}, lowest of the hour ${withUnit(one?.lowest ?? null, name, unit)}`
    + (one?.inside === false ? ", outside the limits in the last hour" : "") + (odd ? `, to be checked: ${odd}` : "")
    + (wanted ? `, limits ${wanted} ${unit}` : "")
    + (typeof one?.trend === "number" ? `, change over the hour ${withUnit(one.trend, name, unit)}` : "");
  return h("div", { class: `tile signal-${name}`, role: "group", "aria-label": spoken, "data-testid": `now-${name}` },
    h("span", { class: "name" }, name === "pulsatility" && one?.inside === false ? "Puls." : known.short, one?.inside === false ? chip("outside", "■", "outside") : odd ? chip("check", "▲", "check") : wanted ? h("small", { class: "target", "data-testid": `target-${name}` }, wanted) : null),
    h("span", { class: "big num" }, h("span", { "data-testid": `now-${name}-value` }, num(value, known.digits)), h("small", {}, ` ${unit}`)),
    h("span", { class: "more num" }, one?.converted ? h("span", { "data-testid": `converted-${name}` }, `converted from ${one.converted}`) : `1 h: ${small.join(", ")}`));
}

/** What some places record, with its age: shown whether or not a model reads it. */
function furtherLine(one) {
  const old = one.age_min >= 60 ? `${num(one.age_min / 60, 0)} h ago` : `${num(one.age_min)} min ago`;
  return h("li", { class: "num", "data-testid": `further-${one.name}` }, h("b", {}, one.label), ` ${num(one.value, one.digits)} ${one.unit}`, h("small", {}, ` ${one.age_min ? old : "now"}`));
}

/** The panel; it stays on screen whatever is refused. `further` are values beside the signals. */
export function nowPanel(answer, further) {
  const now = answer.now ?? {};
  const level = typeof answer.p_now === "number" ? `P-${answer.p_now}` : DASH;
  const speed = withUnit(now.speed?.value ?? null, "speed", now.speed?.unit);
  return h("section", { class: "panel now-panel", "aria-labelledby": "now-title", "data-testid": "now" },
    h("h2", { id: "now-title" }, "Now"),
    SHOWN.map((name) => tile(name, now[name], answer.quality?.odd?.[name], answer.limits)),
    h("div", { class: "tile signal-level", role: "group", "aria-label": `Level in force ${level}, speed ${speed}`, "data-testid": "now-level" },
      h("span", { class: "name" }, "Level"), h("span", { class: "big num" }, level), h("span", { class: "more num" }, speed)),
    further?.length ? h("ul", { class: "further", "aria-label": "Also recorded", "data-testid": "further" }, further.map(furtherLine)) : null);
}

/** A table of now out of a trend, where the answer has none (R13, R14). */
export function nowFromTrend(trend) {
  const found = {};
  for (const [name, one] of Object.entries(trend?.channels ?? {})) {
    const hour = one.values.slice(-6).filter((v) => typeof v === "number");
    found[name] = { value: one.values.at(-1) ?? null, unit: one.unit, lowest: hour.length ? Math.min(...hour) : null,
      trend: null, inside: null, converted: null };
  }
  return found;
}
