// What is measured now: big numbers with units, the lowest of the hour, the trend, the limits.

import { DASH, SHOWN, SIGNALS, chip, h, num, withUnit } from "./dom.js";

function trendWords(trend, digits) {
  if (typeof trend !== "number") return "";
  const size = num(Math.abs(trend), digits);
  if (Number(size) === 0) return "→";
  return `${trend > 0 ? "↑" : "↓"} ${size}`;
}

function tile(name, one, odd) {
  const known = SIGNALS[name];
  const value = one?.value ?? null, unit = one?.unit ?? known.unit;
  const trend = trendWords(one?.trend, known.digits);
  const small = [`min ${num(one?.lowest, known.digits)}`, trend].filter(Boolean);
  const spoken = `${known.short} ${withUnit(value, name, unit)}, lowest of the hour ${withUnit(one?.lowest ?? null, name, unit)}`
    + (one?.inside === false ? ", outside the limits in the last hour" : "") + (odd ? `, to be checked: ${odd}` : "")
    + (typeof one?.trend === "number" ? `, change over the hour ${withUnit(one.trend, name, unit)}` : "");
  return h("div", { class: `tile signal-${name}`, role: "group", "aria-label": spoken, "data-testid": `now-${name}` },
    h("span", { class: "name" }, name === "pulsatility" && one?.inside === false ? "Puls." : known.short, one?.inside === false ? chip("outside", "■", "outside") : odd ? chip("check", "▲", "check") : null),
    h("span", { class: "big num" }, h("span", { "data-testid": `now-${name}-value` }, num(value, known.digits)), h("small", {}, ` ${unit}`)),
    h("span", { class: "more num" }, one?.converted ? h("span", { "data-testid": `converted-${name}` }, `converted from ${one.converted}`) : `1 h: ${small.join(", ")}`));
}

/** The panel; it stays on screen whatever is refused. */
export function nowPanel(answer) {
  const now = answer.now ?? {};
  const level = typeof answer.p_now === "number" ? `P-${answer.p_now}` : DASH;
  const speed = withUnit(now.speed?.value ?? null, "speed", now.speed?.unit);
  return h("section", { class: "panel now-panel", "aria-labelledby": "now-title", "data-testid": "now" },
    h("h2", { id: "now-title" }, "Now"),
    SHOWN.map((name) => tile(name, now[name], answer.quality?.odd?.[name])),
    h("div", { class: "tile signal-level", role: "group", "aria-label": `Level in force ${level}, speed ${speed}`, "data-testid": "now-level" },
      h("span", { class: "name" }, "Level"), h("span", { class: "big num" }, level), h("span", { class: "more num" }, speed)));
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
