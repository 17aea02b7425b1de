// Study mode: the clinician chooses first, the model is shown after.

import { get, patientPath, post } from "./api.js";
import { LEVELS, clip, entryName, h } from "./dom.js";
import { levelGroup } from "./levels.js";
import { nowFromTrend, nowPanel } from "./now_panel.js";
import { addressOf } from "./patient_bar.js";
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
      h("a", { class: "button", href: "/v1/audit/export", download: "audit.ndjson" }, "Export all entries"));
    return;
  }
  const at = query.get("at");
  const moment = at === null ? "" : `&at=${encodeURIComponent(at.replace(" ", "+"))}`;
  const [row, trend] = await Promise.all([get(patientPath(patient, `?${moment.slice(1)}`), signal), get(patientPath(patient, `/trends?hours=6${moment}`), signal)]);
  page.append(h("h2", {}, clip(row.patient)), nowPanel({ now: nowFromTrend(trend), p_now: row.p_now }), question(patient, row, at));
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
      after.replaceChildren(h("a", { class: "button", href: addressOf(patient, "whatif", { at }), "data-testid": "show-model" }, "Show the model's answer"));
    } catch (error) {
      told.textContent = `Not kept: ${error.message}`;
    }
  };
  return h("div", { class: "panel form" }, h("h3", {}, "Which level would you choose for the next hour?"), group,
    h("label", { for: "choice-reason" }, "Reason ", reason), h("div", { class: "row" }, who.nodes), h("div", { class: "row" }, h("button", { type: "button", "data-testid": "keep-choice", onclick: keep }, "Keep my choice")), told, after);
}
