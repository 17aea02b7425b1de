// One answer as a screen: now, candidates with charts, comparison, suggestion or refusal.

import { MARGIN, dataTable, mountChart } from "./chart.js";
import { comparePanel, evidencePanel } from "./compare.js";
import { SHOWN, SIGNALS, announce, h, num } from "./dom.js";
import { levelGroup } from "./levels.js";
import { linkedCharts } from "./linked.js";
import { nowPanel } from "./now_panel.js";
import { refusalPanel, suggestionPanel } from "./suggestion.js";

const LIMITED = { map: "map", hr: "hr", pulsatility: "pulsatility" };

/** Hours of the past that are drawn for a horizon. */
export function pastHours(horizon) {
  return horizon === 6 ? 6 : 2 * horizon;
}

/** The level that is shown first: suggested, in force, or the first there is. */
export function firstLevel(answer) {
  const known = answer.candidates.map((one) => one.p);
  return [answer.suggested, answer.p_now, known[0]].find((p) => known.includes(p)) ?? null;
}

function whyNot(answer, name, candidate) {
  if (answer.status === "refused") return answer.refusals[0] ?? null;
  if (!candidate) return null;
  if (candidate.status === "refused") return candidate.refusals.find((one) => one.scope !== "chart") ?? candidate.refusals[0];
  if (candidate.quantiles?.[name]) return null;
  const about = candidate.refusals.find((one) => one.about === name);
  return about ?? { code: "", sentence: "This signal is not forecast by this model.", remedy: "" };
}

function chartSpec(view, name, candidate, refused) {
  const { answer, past } = view;
  const limits = answer.limits ?? {};
  const hours = answer.horizon_h;
  return {
    name, id: name, gridMin: answer.grid_min, span: [-60 * pastHours(hours), 60 * hours], nowMinute: past.nowMinute,
    past: { minutes: past.minutes, values: past.channels[name] ?? [] },
    quantiles: refused ? null : candidate?.quantiles?.[name] ?? null,
    carry: refused ? null : candidate?.carry_forward?.[name] ?? null,
    low: LIMITED[name] ? limits[`${name}_low`] : null, high: LIMITED[name] ? limits[`${name}_high`] : null,
    steps: name === "map" ? { minutes: past.minutes, levels: past.levels, candidate: refused ? null : candidate?.p } : null,
  };
}

/** The hatched box in place of a forecast. */
function refusalBox(name, refusal, whole) {
  const code = refusal.code ? `${refusal.code} · ` : "";
  const short = "no forecast";
  const words = whole || refusal.code === "R12" || !refusal.code ? refusal.sentence : short;
  return h("div", { class: "hatched refusal-box", "data-testid": `refused-${name}`, "data-code": refusal.code },
    h("p", { class: "plate" }, h("b", {}, code), h("span", { class: whole ? "roomy" : null }, words, whole && refusal.remedy ? h("span", { class: "remedy" }, ` ${refusal.remedy}`) : null),
      whole ? h("span", { class: "cramped", "aria-hidden": "true" }, short) : null));
}

function chartBox(view, name) {
  const box = h("div", { class: "plot" });
  const figure = h("figure", { class: `chart-${name}`, "data-testid": `chart-${name}` }, box);
  let spec = null, redraw = null;
  const behind = dataTable(() => spec);
  figure.append(behind.details);
  const update = (candidate) => {
    const refused = whyNot(view.answer, name, candidate);
    spec = chartSpec(view, name, candidate, refused);
    figure.querySelector(".refusal-box")?.remove();
    if (redraw) redraw(spec);
    else redraw = mountChart(box, spec);
    if (refused) {
      const overlay = refusalBox(name, refused, name === "map");
      const ahead = spec.span[1] / (spec.span[1] - spec.span[0]);
      overlay.style.width = `calc((100% - ${MARGIN.left + MARGIN.right}px) * ${ahead.toFixed(4)})`;
      box.append(overlay);
    }
    behind.fill();
  };
  return { name, figure, update, look: (...asked) => redraw.look(...asked) };
}

function candidateNote(answer, candidate) {
  if (!candidate || answer.status === "refused") return "";
  const once = " No forecast is shown."; // after the last of several reasons
  const told = (found) => found.map((one, i) => `${one.code}: ${i + 1 < found.length ? one.sentence.replace(once, "") : one.sentence}`);
  const why = candidate.status === "refused" ? told(candidate.refusals.filter((one) => one.scope !== "chart")) : [candidate.verdict, ...told(candidate.gates)];
  return [candidate.label, ...why, ...candidate.notes].join(" · ");
}

/** Where the charts are too narrow for sentences, those of a refused state stand above them. */
function refusedNote(answer) {
  if (answer.status !== "refused") return null;
  return h("p", { class: "note cramped", "data-testid": "refused-note" }, answer.refusals.map((one) => `${one.code}: ${one.sentence}`).join(" "));
}

function absentLevels(answer) {
  const found = answer.candidates.filter((one) => one.refusals.some((r) => r.code === "R07" && r.scope === "state") && answer.status === "ok");
  return found.map((one) => h("p", { class: "note", "data-testid": `plevel-${one.p}-reason` }, one.refusals[0].sentence));
}

const KEY = [["key-measured", "measured"], ["key-median", "median"], ["key-50", "50 % band"], ["key-90", "90 %"], ["key-carry", "carry-forward"], ["key-limit", "limit"]];

function legend() {
  return h("ul", { class: "legend", "aria-label": "Lines of the charts" }, KEY.map(([name, words]) => h("li", {}, h("i", { class: name, "aria-hidden": "true" }), words)));
}

/** Signals that only some places record and this answer forecasts. */
function furtherOf(answer) {
  const names = new Set(answer.candidates.flatMap((one) => Object.keys(one.quantiles ?? {})));
  return [...names].filter((name) => SIGNALS[name] && !SHOWN.includes(name));
}

/** Draw an answer into `host`; `view` is {answer, past, selected, replay, onSelect}. */
export function renderAnswer(host, view) {
  const { answer } = view;
  const charts = [...SHOWN, ...furtherOf(answer)].map((name) => chartBox(view, name));
  const note = h("p", { class: "note candidate-note", "data-testid": "candidate-note", role: "status" });
  const right = h("section", { class: "panel compare-panel", "aria-label": "Compare", tabindex: "0" });
  let selected = view.selected ?? firstLevel(answer), linked = null;
  const choose = (p) => {
    selected = p;
    const candidate = answer.candidates.find((one) => one.p === p);
    charts.forEach((one) => one.update(candidate));
    linked?.again();
    note.textContent = candidateNote(answer, candidate);
    right.replaceChildren(...comparePanel(answer, p), evidencePanel(answer.status === "refused" ? null : candidate), ...qualityNote(answer));
    view.onSelect?.(p);
  };
  const levels = levelGroup(answer, selected, choose);
  const middle = h("section", { class: "panel charts", "aria-labelledby": "charts-title" },
    h("div", { class: "charts-head" }, h("h2", { id: "charts-title" }, "Candidate P-level"), legend()),
    levels.group, h("div", { class: "notes" }, note, refusedNote(answer), absentLevels(answer)), h("div", { class: "chart-grid" }, charts.map((one) => one.figure)));
  const last = answer.status === "refused" ? refusalPanel(answer) : suggestionPanel(answer, view.replay);
  host.replaceChildren(h("div", { class: "whatif", "data-testid": "whatif", "data-status": answer.status }, nowPanel(answer, view.further), middle, right, last));
  choose(selected);
  linked = linkedCharts(middle.querySelector(".chart-grid"), charts, [-60 * pastHours(answer.horizon_h), 60 * answer.horizon_h], answer.grid_min);
  middle.querySelector(".charts-head").append(linked.node);
  const codes = answer.refusals.map((one) => `${one.code}: ${one.sentence} ${one.remedy}`);
  announce(answer.status === "refused" ? `Refused. ${codes.join(" ")}` : "");
}

function qualityNote(answer) {
  const quality = answer.quality;
  const told = [];
  const both = quality?.carried_over?.length && Object.keys(quality.missing).sort().join() === [...quality.carried_over].sort().join();
  if (quality?.carried_over?.length && !both) told.push(`Carried over for the model: ${namesOf(quality.carried_over)}.`);
  const shares = Object.entries(quality?.missing ?? {});
  for (const part of new Set(shares.map(([, one]) => one))) {
    told.push(`${num(100 * part)} % of the last hour missing${both ? ", carried over for the model" : ""}: ${namesOf(shares.filter(([, one]) => one === part).map(([name]) => name))}.`);
  }
  return told.length ? [h("p", { class: "note quality-note", "data-testid": "quality-note" }, told.join(" "))] : [];
}

function namesOf(names) {
  return names.length > 3 ? `${names.length} signals` : names.map((name) => SIGNALS[name]?.short ?? name).join(", ");
}
