// All candidates side by side, and the recorded hours nearest to this one.

import { DASH, exact, h, num, table } from "./dom.js";
import { lacksLevel } from "./levels.js";

/** A count of courses as a rounded share of twenty. */
export function twentieths(count, draws) {
  if (typeof count !== "number" || !draws) return DASH;
  const rounded = Math.round((20 * count) / draws);
  if (count > 0 && rounded === 0) return "<1/20";
  if (count < draws && rounded === 20) return ">19/20";
  return `${rounded}/20`;
}

function row(answer, candidate, selected) {
  const marks = [candidate.p === answer.p_now ? " now" : "", candidate.acceptable ? " ✓" : "", candidate.p === answer.suggested ? "*" : ""].join("");
  const head = `P-${candidate.p}${marks}`;
  const className = candidate.p === selected ? "selected" : null;
  if (candidate.status === "refused") {
    const codes = candidate.refusals.filter((one) => one.scope !== "chart").map((one) => one.code).join(", ") || answer.refusals.map((one) => one.code).join(", ");
    const support = candidate.support ? [dataCell(candidate), pCell(candidate)] : [DASH, DASH];
    const words = lacksLevel(answer, candidate) ? "not on this pump" : `refused ${codes}`;
    return { class: className, cells: [head, { text: `⊘ ${words}`, span: 3 }, ...support] };
  }
  const { risk } = candidate;
  const cell = (name, what) => ({ text: twentieths(risk?.[name], risk?.draws),
    label: `${risk?.words?.[name] ?? DASH} ${what} within ${risk?.hours ?? 6} h` });
  return { class: className, cells: [head, cell("map_low", "cross the MAP limit"), cell("puls_low", "cross the pulsatility limit"),
    cell("hr_out", "leave the HR limits"), dataCell(candidate), pCell(candidate)] };
}

function dataCell(candidate) {
  const { n, needed } = candidate.support;
  return { text: num(n), label: `${num(n)} similar patient-hours, ${num(needed)} hours are needed` };
}

function pCell(candidate) {
  const { pvalue } = candidate.support;
  const text = pvalue < 0.01 ? "<.01" : num(pvalue, 2).replace(/^0/, "");
  return { text, label: `conformal p-value ${num(pvalue, 3)} of this level in such a state (a share, no unit)` };
}

/** The table; refused levels have no numbers of a forecast. */
export function comparePanel(answer, selected) {
  const limits = answer.limits ?? {};
  const below = (name, limit) => (typeof limit === "number" ? `${name}<${exact(limit)}` : name);
  const head = ["Level", below("MAP", limits.map_low), below("puls.", limits.pulsatility_low), "HR", "hours", "p"];
  const rows = answer.candidates.map((one) => row(answer, one, selected));
  const made = table("Compare, next 6 h", head, rows.map((one) => ({ class: one.class, cells: one.cells.filter(Boolean) })), { class: "compare", "data-testid": "compare" });
  [...made.querySelectorAll("tbody tr")].forEach((line, i) => {
    const spanned = rows[i].cells.findIndex((one) => one?.span);
    if (spanned > 0) line.children[spanned].colSpan = 3;
  });
  const names = [`simulated courses below MAP ${exact(limits.map_low)} mmHg`, `simulated courses below pulsatility ${exact(limits.pulsatility_low)} mmHg`,
    "simulated courses outside the HR limits", "similar recorded patient-hours", "conformal p-value"];
  [...made.querySelectorAll("thead th")].slice(1).forEach((one, i) => one.setAttribute("aria-label", names[i]));
  return [made, h("p", { class: "note" }, "Simulated courses of 20 that cross each limit · similar recorded patient-hours · conformal p-value · ✓ acceptable · * least support")];
}

/** What happened next in the nearest recorded hours at this level. */
export function evidencePanel(candidate) {
  const found = candidate?.evidence ?? [];
  return h("div", { class: "evidence", "data-testid": "evidence" },
    h("h3", {}, candidate ? `Nearest recorded hours at P-${candidate.p}` : "Nearest recorded hours"),
    found.length ? h("ul", {}, found.map((one) => h("li", { class: "num" }, evidenceWords(one))))
      : h("p", { class: "note" }, "None is shown for this level."));
}

function evidenceWords(one) {
  const next = one.next_hour ?? {};
  return `${one.patient}, hour ${num(one.hour)}, P-${one.p_before} to P-${one.p}: MAP ${num(next.map_mean)} (lowest ${num(next.map_lowest)}) mmHg, `
    + `puls. ≥ ${num(next.pulsatility_lowest)} mmHg, HR ${num(next.hr_mean)} /min`;
}
