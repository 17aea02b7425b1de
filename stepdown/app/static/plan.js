// Plans of levels over 6 to 24 hours, laid over each other and over holding; the address holds all.

import { askWhenReady, get, patientPath } from "./api.js";
import { dataTable, mountChart } from "./chart.js";
import { between, hundredths } from "./compare.js";
import { DASH, LEVELS, SHOWN, SIGNALS, announce, clip, entryName, h, learnSignals, num, table } from "./dom.js";
import { linkedCharts } from "./linked.js";
import { addressOf, patientBar } from "./patient_bar.js";
import { planEditor } from "./plan_editor.js";
import { pastOf } from "./whatif.js";

const LENGTHS = [6, 12, 24];
const NAMES = ["Plan A", "Plan B", "Plan C"];
const LOOKS = ["held", "plan-a", "plan-b", "plan-c"];
const DIFFERENCE = { map: 30, pulsatility: 20, hr: 30, lvedp: 20, flow: 3 };
const PAUSE = 350; // ms after a change

/** "665544,555555": a digit for every hour, a comma between plans. */
export function readPlans(text, now) {
  const found = (text ?? "").split(",").filter((one) => /^[2-9]{1,24}$/.test(one)).slice(0, NAMES.length).map((one) => [...one].map(Number));
  if (found.length) return found;
  const lower = Math.max((now ?? LEVELS[0] + 1) - 1, LEVELS[0]);
  return [Array(6).fill(lower)];
}

const lengthOf = (plans) => LENGTHS.find((hours) => plans.every((one) => one.length <= hours)) ?? 24;
const stretch = (plan, hours) => Array.from({ length: hours }, (_, i) => plan[Math.min(i, plan.length - 1)]);
const wean = (now, hours, every) => Array.from({ length: hours }, (_, i) => Math.max((now ?? 6) - 1 - Math.floor(i / every), LEVELS[0]));

/** Draw the screen; what is asked follows every change. */
export async function showPlan(context) {
  const { main, patient, query, signal } = context;
  main.append(h("p", { class: "waiting", role: "status" }, `Loading ${clip(patient)} …`));
  const moment = query.get("at") === null ? "" : `at=${encodeURIComponent(query.get("at").replace(" ", "+"))}`;
  const preset = query.get("limits") ? `&limits=${encodeURIComponent(query.get("limits"))}` : "";
  const [row, trend, quality, limits] = await Promise.all([
    get(patientPath(patient, `?${moment}`), signal), get(patientPath(patient, `/trends?hours=6&${moment}`), signal),
    get(patientPath(patient, `/quality?${moment}`), signal), get("/v1/limits", signal)]);
  if (signal.aborted) return;
  learnSignals(quality.channels);
  const asked = readPlans(query.get("plans"), row.p_now), hours = lengthOf(asked);
  const state = { plans: asked.map((one) => stretch(one, hours)), hours, difference: false, answer: null };
  const bar = patientBar(context, row, quality.chip);
  const editors = h("div", { class: "plans" }), result = h("div", { class: "plan-result", "data-testid": "plan-result" });
  const told = h("p", { role: "status", class: "note", "data-testid": "plan-told" });
  main.replaceChildren(bar.node, h("section", { class: "page" },
    h("h2", {}, "Plans beside holding"), h("p", { class: "lead" }, "Drag over the hours, or use the keys: up and down change an hour and all after it, with Shift that hour alone; 2 to 9 set a level. The address keeps patient, moment, limits and plans."),
    editors, told, result));
  bar.setAge(row.age_min);
  let timer = null, pending = null;
  const ask = async () => {
    pending?.abort();
    pending = new AbortController();
    signal.addEventListener("abort", () => pending.abort());
    told.textContent = "Computing …";
    const mine = pending;
    try {
      const answer = await askWhenReady(patientPath(patient, `/plans?${moment}${preset}`), mine.signal, (words) => { told.textContent = `${words} Waiting …`; }, { plans: state.plans });
      if (mine.signal.aborted) return;
      if (answer.source?.patient !== patient || answer.source?.minute !== row.minute) throw new Error("The server answered for another patient or moment.");
      state.answer = answer;
      told.textContent = "";
      drawResult(result, state, pastOf(trend), limits);
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = `Nothing can be shown: ${clip(error.message, 300)}`;
    }
  };
  const changed = (now = false) => {
    const kept = Object.fromEntries([...query].filter(([name]) => name !== "plans"));
    history.replaceState(null, "", addressOf(patient, "plan", { ...kept, plans: state.plans.map((one) => one.join("")).join(",") }));
    clearTimeout(timer);
    timer = setTimeout(() => { if (!signal.aborted) ask(); }, now ? 0 : PAUSE);
  };
  const draw = () => editors.replaceChildren(...state.plans.map((plan, i) => onePlan(state, i, row, changed, draw)), actions(state, row, changed, draw));
  draw();
  changed(true);
}

function onePlan(state, i, row, changed, draw) {
  const fill = (words, levels) => h("button", { type: "button", "aria-label": `${NAMES[i]}: ${words}`, onclick: () => { state.plans[i] = levels; draw(); changed(); } }, words);
  return h("div", { class: `panel plan-row ${LOOKS[i + 1]}` },
    h("div", { class: "row" }, h("h3", {}, h("i", { class: "key", "aria-hidden": "true" }), NAMES[i]),
      fill("one down every 2 h", wean(row.p_now, state.hours, 2)), fill("every 4 h", wean(row.p_now, state.hours, 4)),
      state.plans.length > 1 ? h("button", { type: "button", "aria-label": `Remove ${NAMES[i]}`, onclick: () => { state.plans.splice(i, 1); draw(); changed(); } }, "Remove") : null),
    planEditor(NAMES[i], state.plans[i], row.pump_highest, (levels) => { state.plans[i] = levels; changed(); }));
}

function actions(state, row, changed, draw) {
  const length = (hours) => h("button", { type: "button", "aria-pressed": String(state.hours === hours), "data-testid": `hours-${hours}`, onclick: () => {
    state.hours = hours;
    state.plans = state.plans.map((one) => stretch(one, hours));
    draw();
    changed();
  } }, `${hours} h`);
  const add = h("button", { type: "button", "data-testid": "add-plan", onclick: () => { state.plans.push(wean(row.p_now, state.hours, 2)); draw(); changed(); } }, "Add a plan");
  return h("div", { class: "row" }, h("div", { class: "row", role: "group", "aria-label": "Length of the plans" }, LENGTHS.map(length)), state.plans.length < NAMES.length ? add : null,
    h("button", { type: "button", onclick: () => window.print() }, "Print"));
}

function named(answer) {
  return answer.plans.map((one, i) => ({ ...one, name: i ? NAMES[i - 1] : "Holding", look: LOOKS[i] }));
}

function drawResult(result, state, past, limits) {
  const { answer } = state;
  if (answer.status === "refused") {
    result.replaceChildren(h("section", { class: "panel hatched", "data-testid": "screen-refusal" }, h("ul", { class: "plate" },
      answer.refusals.map((one) => h("li", {}, h("b", {}, `${one.code} · `), one.sentence, " ", h("span", { class: "remedy" }, one.remedy))))));
    announce(`Refused. ${answer.refusals.map((one) => `${one.code}: ${one.sentence}`).join(" ")}`);
    return;
  }
  const plans = named(answer);
  const toggle = h("button", { type: "button", "aria-pressed": String(state.difference), "data-testid": "difference", onclick: () => {
    state.difference = !state.difference;
    drawResult(result, state, past, limits);
    result.querySelector("[data-testid=difference]").focus();
  } }, "Difference from holding");
  const names = SHOWN.filter((name) => plans.some((one) => one.quantiles[name]));
  const charts = names.map((name) => planChart(name, state, plans, past));
  const grid = h("div", { class: "trend-grid" }, charts.map((one) => one.figure));
  const legend = h("ul", { class: "legend plan-legend", "aria-label": "Lines of the charts" }, plans.filter((one) => !(state.difference && one.holding)).map((one) =>
    h("li", { class: one.look }, h("i", { class: "key", "aria-hidden": "true" }), `${one.name}: ${one.words}`)), h("li", {}, "thick: median · thin: 90 % band"));
  const far = answer.hours > answer.tested_hours ? h("p", { class: "note", "data-testid": "untested" }, `Forecasts have been tested over ${answer.tested_hours} h; what lies beyond is a guess.`) : null;
  const tools = h("div", { class: "row" }, toggle);
  result.replaceChildren(legend, tools, grid, far ?? "", risks(answer, plans), evidence(answer, plans),
    h("p", { class: "note" }, `Not known to this model: ${answer.unknowns.join(", ")}.`), provenance(answer));
  charts.forEach((one) => one.mount());
  tools.append(linkedCharts(grid, charts.map(({ name, look }) => ({ name, look })), spanOf(state), answer.grid_min).node);
}

const spanOf = (state) => (state.difference ? [0, 60 * state.hours] : [-60 * Math.min(state.hours, 6), 60 * state.hours]);

function planChart(name, state, plans, past) {
  const { answer, difference } = state;
  const size = DIFFERENCE[name], limit = (which) => (difference ? null : answer.limits[`${name}_${which}`] ?? null);
  const spec = {
    name, id: `plan-${name}`, label: difference ? `${SIGNALS[name].short}, against holding` : undefined, gridMin: answer.grid_min, span: spanOf(state), nowMinute: past.nowMinute,
    axis: difference ? [-size, size] : undefined, ticks: difference ? [-size, -size / 2, 0, size / 2, size] : undefined,
    past: { minutes: past.minutes, values: difference ? [] : past.channels[name] ?? [] }, quantiles: null, carry: null, low: limit("low"), high: limit("high"),
    overlays: plans.filter((one) => !(difference && one.holding)).map((one) => ({ name: one.name, look: one.look, quantiles: (difference ? one.difference : one.quantiles)[name] })),
    steps: name === "map" ? { minutes: past.minutes, levels: difference ? [] : past.levels, candidate: null, plans } : null,
  };
  const box = h("div", { class: "plot" });
  let look = () => "";
  return { name, figure: h("figure", { class: "panel", "data-testid": `plan-${name}` }, box, dataTable(() => spec).details),
    mount: () => { look = mountChart(box, spec).look; }, look: (...asked) => look(...asked) };
}

function risks(answer, plans) {
  const { limits } = answer;
  const count = (one, name, what) => ({ text: hundredths(one.risk?.[name], one.risk?.draws), label: `${hundredths(one.risk?.[name], one.risk?.draws)} of 100 courses ${what}` });
  const signed = (x) => `${x > 0 ? "+" : ""}${num(100 * x)}`;
  const rows = plans.map((one) => [
    one.name, one.words, ...(one.risk ? [count(one, "map_low", "below the MAP limit"), count(one, "puls_low", "below the pulsatility limit"), count(one, "hr_out", "outside the HR limits"),
      { text: `${hundredths(one.risk.any, one.risk.draws)} (${between(one.risk.interval)})`, label: `${hundredths(one.risk.any, one.risk.draws)} of 100 courses leave any limit, 99 % interval ${between(one.risk.interval)}` },
      one.holding ? DASH : { text: `${signed(one.risk.more_than_holding[0])} (${signed(one.risk.more_than_holding[1])} to ${signed(one.risk.more_than_holding[2])})`, label: `${signed(one.risk.more_than_holding[0])} in 100 courses leave a limit, against holding` },
      { text: `${one.until_h} h`, label: `forecast for ${one.until_h} h` }] : [DASH, DASH, DASH, DASH, DASH, "0 h"]),
    [...one.refusals.map((r) => `${r.code}: ${r.sentence}`), ...one.gates.map((g) => `${g.code} in hour ${g.hour}: ${g.sentence}`)].join(" ") || "none"]);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Risks of the plans" },
    table("Simulated courses of 100 that leave a limit", ["Plan", "Levels", `MAP below ${num(limits.map_low)} mmHg`, `Pulsatility below ${num(limits.pulsatility_low)} mmHg`, "HR outside", "Any limit (99 %)", "Against holding", "Forecast for", "Gates and refusals"], rows, { class: "list", "data-testid": "plan-risks" }));
}

function evidence(answer, plans) {
  const cell = (one, hour) => {
    const told = one.by_hour[hour], odd = told.unlike > 0.5;
    return { text: `P-${told.level} · ${told.pvalue < 0.01 ? "<.01" : num(told.pvalue, 2)}${odd ? " ⊘" : ""}${told.left === null ? "" : ` · ${num(100 * told.left)}`}`,
      label: `P-${told.level}, conformal p-value ${num(told.pvalue, 3)}, ${num(100 * told.unlike)} of 100 courses unlike the recorded decisions${told.left === null ? ", no forecast" : `, ${num(100 * told.left)} of 100 courses have left a limit by then`}` };
  };
  const rows = plans[0].by_hour.map((_, hour) => [`hour ${hour + 1}`, ...plans.map((one) => cell(one, hour))]);
  return h("details", { class: "panel", open: true }, h("summary", {}, "Evidence hour by hour"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Evidence hour by hour" },
      table("Level · p-value of the guardian in the states that the courses reach (⊘ unlike the recorded decisions: nothing is forecast from there on) · of 100 courses, those that have left a limit by then", ["Hour", ...plans.map((one) => one.name)], rows, { class: "list", "data-testid": "plan-evidence" })));
}

function provenance(answer) {
  return h("p", { class: "provenance" }, `model ${answer.model?.version ?? DASH} · `, h("span", { "data-testid": "model-hash" }, answer.model ? `${answer.model.sha256.slice(0, 12)}…` : DASH), " · ",
    h("a", { href: `/audit?entry=${answer.audit_id}`, "data-testid": "audit-id" }, `audit ${entryName(answer.audit_id)}`), " · ",
    h("a", { href: `/v1/audit/${answer.audit_id}/replay` }, "replay"));
}
