// The model card: what it is, on whom it was fitted, whether its bands hold.

import { getWhenReady, get } from "./api.js";
import { DASH, SIGNALS, h, num, s, share, table } from "./dom.js";

const ROLES = { train: "fitted on", select: "chosen on", test: "tested on" };

/** Draw the card, then the calibration, which takes a moment. */
export async function showModel({ main, signal }) {
  const waiting = h("p", { role: "status" }, "Loading …");
  const page = h("section", { class: "page" }, h("h1", {}, "Model card"), waiting);
  main.append(page);
  const [card, codes] = await Promise.all([getWhenReady("/v1/model", signal, (words) => { waiting.textContent = words; }), get("/v1/codes", signal)]);
  waiting.remove();
  const place = h("div", { "data-testid": "calibration" }, h("p", { role: "status" }, "Computing the calibration …"));
  page.append(...facts(card), h("h2", {}, "Calibration on test patients"), place, ...risks(card.tables?.risks), ...scores(card.tables), ...codeTables(codes));
  const found = await getWhenReady("/v1/model/calibration", signal);
  place.replaceChildren(...calibration(found));
}

function facts(card) {
  const rows = [
    ["Version", card.version], ["Digest (SHA-256)", h("code", {}, card.sha256)],
    ["Forecasts (twin)", String(card.twin ?? DASH)], ["Refusals (guardian)", String(card.guardian ?? DASH)], ["Learned policy", String(card.policy ?? "none")],
    ["Patients", Object.entries(card.patients).map(([role, n]) => `${ROLES[role] ?? role} ${num(n)} patients`).join(", ")],
    ["Recorded hours", Object.entries(card.hours ?? {}).map(([role, n]) => `${ROLES[role] ?? role} ${num(n)} h`).join(", ")],
    ["Signals used", card.signals.map((name) => SIGNALS[name]?.short ?? name).join(", ")],
    ["Simulated courses per level", `${num(card.draws)} courses`], ["Similar means closer than", `${num(card.similar_radius, 2)} (distance of scaled hours)`],
    ["Holds recorded patient data", card.guardian_holds_patient_data ? "yes, the guardian" : "no"],
    ["Not known to this model", card.unknowns.join(", ")]];
  const list = (lines) => lines.map(([name, words]) => h("div", {}, h("dt", {}, name), h("dd", {}, words)));
  const parts = Object.entries(card.parts ?? {}).map(([name, digest]) => [`Digest of ${name}`, h("code", {}, digest)]);
  return [h("dl", { class: "facts-list", "data-testid": "model-card" }, list(rows)),
    h("details", { class: "panel" }, h("summary", {}, "Digests of the parts"), h("dl", { class: "facts-list" }, list(parts)))];
}

function calibration(found) {
  const rows = found.groups.map((one) => [one.group, `${num(one.hours)} h`, share(one.coverage90), relative(one.vs_persistence)]);
  return [h("p", {}, `MAP one hour ahead, ${num(found.hours)} recorded hours: how often what happened lay inside a band, against what the band claims.`),
    h("figure", {}, curve(found.curve)), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Coverage by group" },
      table("By level in force, and by whether it was changed", ["Group", "Hours", "90 % band held", "Error against carry-forward"], rows, { class: "list" }))];
}

function relative(value) {
  if (typeof value !== "number") return DASH;
  return `${num(Math.abs(100 * value))} % ${value < 0 ? "below" : "above"}`;
}

function curve(points) {
  const size = 300, edge = 46, inner = size - edge - 22;
  const x = (v) => edge + v * inner, y = (v) => size - edge - v * inner; // the corner is 0 %, 0 %
  const path = points.map((one, i) => `${i ? "L" : "M"}${x(one.claimed).toFixed(1)} ${y(one.covered).toFixed(1)}`).join("");
  const words = points.map((one) => `${share(one.claimed)} claimed, ${share(one.covered)} covered`).join("; ");
  return s("svg", { width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img", class: "chart signal-map", "aria-label": `Calibration curve: ${words}.` },
    s("g", { class: "grid" }, [0, 0.5, 1].map((v) => [s("line", { x1: x(0), x2: x(1), y1: y(v), y2: y(v) }),
      s("text", { x: x(0) - 5, y: y(v) + 5, "text-anchor": "end" }, num(100 * v)), s("text", { x: x(v), y: y(0) + 17, "text-anchor": "middle" }, num(100 * v))]),
      s("text", { x: x(0.5), y: size - 8, "text-anchor": "middle" }, "claimed, %"), s("text", { x: 8, y: 14 }, "held, %")),
    s("path", { class: "carry", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }), s("path", { class: "median", d: path }));
}

/** Six-hour risks on which suggestions rest: what was said, and what happened to test patients. */
function risks(rows) {
  const head = h("h2", {}, "Risks over six hours, on test patients");
  if (!rows?.length) return [head, h("p", { class: "note" }, "This run did not calibrate its risks.")];
  const names = { map: "MAP limit", hr: "HR limit", pulsatility: "pulsatility limit", any: "any limit" };
  const part = (text) => share(text === "" || text === undefined ? null : Number(text));
  const lines = rows.filter((one) => Number(one.windows) > 0).map((one) => [names[one.limit] ?? one.limit, `${part(one.from)} to ${part(one.to)}`, `${num(Number(one.windows))} hours`, part(one.said), part(one.happened), `${part(one.low)} to ${part(one.high)}`]);
  return [head, h("p", {}, "Under the levels that were really set: of recorded hours at which a risk was said, how often the limit was left within six hours, with a 95 % interval over patients."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Risks over six hours" }, table("What was said and what happened", ["Limit", "Said between", "Asked at", "Said, mean", "Happened", "95 % interval"], lines, { class: "list", "data-testid": "risks" }))];
}

function scores(tables) {
  return Object.entries(tables ?? {}).filter(([name, rows]) => rows?.length && name !== "risks").map(([name, rows]) => {
    const head = Object.keys(rows[0]);
    return h("details", { class: "panel" }, h("summary", {}, `Scores of the run: ${name}`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Scores of ${name}` },
        table(name, head, rows.map((row) => head.map((column) => String(row[column] ?? DASH))), { class: "list" })));
  });
}

function codeTables(codes) {
  const rows = Object.entries(codes.refusals).map(([code, one]) => [code, one.scope, one.sentence, one.remedy]);
  const gates = Object.entries(codes.gates).map(([code, words]) => [code, words]);
  const wrap = (name, inner) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, inner);
  return [h("h2", {}, "Why the tool refuses"), wrap("Refusal codes", table("Refusal codes", ["Code", "Refuses", "Sentence", "Remedy"], rows, { class: "list" })),
    h("h2", {}, "Hard gates"), wrap("Hard gates", table("Never suggested", ["Gate", "What"], gates, { class: "list" }))];
}
