// All candidates side by side, and the recorded hours nearest to this one.

import { DASH, exact, h, num, table } from "./dom.js";
import { lacksLevel } from "./levels.js";

/** A count of courses as how many of a hundred. */
export function hundredths(count, draws) {
  if (typeof count !== "number" || !draws) return DASH;
  const rounded = Math.round((100 * count) / draws);
  if (count > 0 && rounded === 0) return "<1";
  if (count < draws && rounded === 100) return ">99";
  return num(rounded);
}

/** The interval of a share, in courses of a hundred; outward, so that it never looks narrower. */
export function between(ends) {
  if (!Array.isArray(ends)) return DASH;
  return `${num(Math.floor(100 * ends[0]))}–${num(Math.ceil(100 * ends[1]))}`;
}

function row(answer, candidate, selected) {
  const marks = [candidate.p === answer.p_now ? " now" : "", candidate.acceptable ? " ✓" : candidate.word === "undecided" ? " ?" : "", candidate.p === answer.suggested ? "*" : ""].join("");
  const head = `P-${candidate.p}${marks}`;
  const className = candidate.p === selected ? "selected" : null;
  if (candidate.status === "refused") {
    const codes = candidate.refusals.filter((one) => one.scope !== "chart").map((one) => one.code).join(", ") || answer.refusals.map((one) => one.code).join(", ");
    const support = candidate.support ? [dataCell(candidate), pCell(candidate)] : [DASH, DASH];
    const words = lacksLevel(answer, candidate) ? "not on this pump" : `refused ${codes}`;
    return { class: className, cells: [head, { text: `⊘ ${words}`, span: 5 }, ...support] };
  }
  const { risk } = candidate;
  const cell = (name, what) => ({ text: hundredths(risk?.[name], risk?.draws),
    label: `${risk?.words?.[name] ?? DASH} ${what} within ${risk?.hours ?? 6} h (${between(risk?.intervals?.[name])} of 100 courses)` });
  const worst = { text: between(risk?.worst), class: "between", label: `${between(risk?.worst)} of 100 courses, the 99 % interval of the limit that most of ${num(risk?.draws)} courses cross` };
  return { class: className, cells: [head, cell("map_low", "cross the MAP limit"), cell("puls_low", "cross the pulsatility limit"),
    cell("hr_out", "leave the HR limits"), worst, againstCell(answer, candidate), dataCell(candidate), pCell(candidate)] };
}

/** How many more or fewer courses than at the level in force leave any limit. */
function againstCell(answer, candidate) {
  const [mean, low, high] = candidate.risk?.more_than_holding ?? [];
  if (typeof mean !== "number") return DASH;
  if (candidate.p === answer.p_now) return { text: "now", label: "the level in force, to which the others are compared, in courses" };
  const signed = (x) => `${x > 0 ? "+" : ""}${num(100 * x)}`;
  return { text: signed(mean), label: `${signed(mean)} in 100 courses (${signed(low)} to ${signed(high)}) leave a limit, against holding P-${answer.p_now}` };
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
  const head = ["Level", below("MAP", limits.map_low), below("puls.", limits.pulsatility_low), "HR", "99 %", "± now", "hours", "p"];
  const rows = answer.candidates.map((one) => row(answer, one, selected));
  const made = table("Compare, next 6 h", head, rows.map((one) => ({ class: one.class, cells: one.cells.filter(Boolean) })), { class: "compare", "data-testid": "compare" });
  [...made.querySelectorAll("tbody tr")].forEach((line, i) => {
    const spanned = rows[i].cells.findIndex((one) => one?.span);
    if (spanned > 0) line.children[spanned].colSpan = 5;
  });
  const names = [`simulated courses below MAP ${exact(limits.map_low)} mmHg`, `simulated courses below pulsatility ${exact(limits.pulsatility_low)} mmHg`,
    "simulated courses outside the HR limits", "99 % interval of the worst of these", "more or fewer courses that leave any limit than at the level in force", "similar recorded patient-hours", "conformal p-value"];
  [...made.querySelectorAll("thead th")].slice(1).forEach((one, i) => one.setAttribute("aria-label", names[i]));
  return [made, h("p", { class: "note" }, "Simulated courses of 100 that cross each limit · 99 % interval of the worst · more or fewer than at the level in force · similar recorded patient-hours · conformal p-value · ✓ acceptable · ? undecided · * least support")];
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
