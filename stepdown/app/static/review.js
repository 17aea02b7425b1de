// Study mode: the clinician chooses first, the model is shown after.

import { get, patientPath, post } from "./api.js";
import { DASH, LEVELS, clip, entryName, h, num, share, table } from "./dom.js";
import { levelGroup } from "./levels.js";
import { nowFromTrend, nowPanel } from "./now_panel.js";
import { whoInput } from "./who.js";

/** Draw the list of patients to review, or the question about one. */
export async function showReview(context) {
  const { main, query, signal } = context;
  const patient = query.get("patient");
  const page = h("section", { class: "page" }, h("h1", {}, "Review"),
    h("p", { class: "lead" }, "Choose what you would do; the model's answer is shown after that. Choices are kept in the audit."));
  main.append(page);
  if (!patient) {
    const { patients } = await get("/v1/patients", signal);
    page.append(h("ul", { class: "tiles" }, patients.map((one) => one.patient).sort().map((id) =>
      h("li", {}, h("a", { class: "button wide", href: `/review?patient=${encodeURIComponent(id)}` }, clip(id))))),
      ...study(await get("/v1/reviews", signal)),
      h("a", { class: "button", href: "/v1/reviews/export", download: "reviews.ndjson" }, "Export all choices with their digests"));
    return;
  }
  const at = query.get("at");
  const moment = at === null ? "" : `&at=${encodeURIComponent(at.replace(" ", "+"))}`;
  const [row, trend] = await Promise.all([get(patientPath(patient, `?${moment.slice(1)}`), signal), get(patientPath(patient, `/trends?hours=6${moment}`), signal)]);
  page.append(h("h2", {}, clip(row.patient)), nowPanel({ now: nowFromTrend(trend), p_now: row.p_now }, row.further), question(patient, row, at));
}

/** Agreement by reviewer and over time, and between reviewers. */
function study(found) {
  if (!found.choices) return [h("p", { class: "note" }, "Nobody has chosen yet.")];
  const of = (agreed, counted) => `${num(agreed)} of ${num(counted)} choices`;
  const wrap = (name, inner) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, inner);
  const rows = found.reviewers.map((one) => [one.by, `${num(one.choices)} choices`, `${num(one.not_blind)} choices`, of(one.agreed, one.counted),
    one.interval ? `${share(one.interval[0])} to ${share(one.interval[1])}` : DASH, one.over_time.map((x) => `${num(x.agreed)}/${num(x.counted)} choices`).join(", ") || DASH]);
  const pairs = found.pairs.map((one) => [one.by.join(" and "), `${num(one.moments)} choices`, of(one.same, one.moments), of(one.within_one, one.moments)]);
  return [h("h2", {}, "Agreement so far"), h("p", { class: "note" }, "A choice counts if it is the reviewer's first for that moment, made before the answer was on any screen, and the model said something to agree with."),
    wrap("Reviewers", table("Choices that agree with the model", ["Reviewer", "All", "Not blind", "Agree", "99 % interval", "In turn, by tens"], rows, { class: "list", "data-testid": "reviewers" })),
    pairs.length ? wrap("Pairs of reviewers", table("Reviewers on the same moments", ["Reviewers", "Moments", "Same level", "Within one level"], pairs, { class: "list", "data-testid": "pairs" })) : ""];
}

function question(patient, row, at) {
  const levels = LEVELS.map((p) => ({ p, label: `P-${p}${p === row.p_now ? ", level in force" : ""}`, status: "ok", refusals: [], gates: [], acceptable: null }));
  let chosen = row.p_now;
  const { group } = levelGroup({ p_now: row.p_now, candidates: levels, pump: null }, chosen, (p) => { chosen = p; });
  const reason = h("input", { type: "text", id: "choice-reason", maxlength: 500, autocomplete: "off" });
  const told = h("p", { role: "status" });
  const after = h("p", {});
  const who = whoInput(told);
  const keep = async () => {
    const by = who.name();
    if (!by) return;
    try {
      const stored = await post("/v1/choices", { patient, at, p: chosen, reason: reason.value, by });
      told.textContent = `P-${chosen} is kept as audit ${entryName(stored.audit_id)}.`;
      after.replaceChildren(h("a", { class: "button", href: `/audit?replay=${stored.answer_id}`, "data-testid": "show-model" }, "Show the model's answer"));
    } catch (error) {
      told.textContent = `Not kept: ${error.message}`;
    }
  };
  return h("div", { class: "panel form" }, h("h3", {}, "Which level would you choose for the next hour?"), group,
    h("label", { for: "choice-reason" }, "Reason ", reason), h("div", { class: "row" }, who.nodes), h("div", { class: "row" }, h("button", { type: "button", "data-testid": "keep-choice", onclick: keep }, "Keep my choice")), told, after);
}
