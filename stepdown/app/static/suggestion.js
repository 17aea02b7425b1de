// The suggestion as a set of levels, with reasons, what is not known, and what the reader says to it.

import { post } from "./api.js";
import { DASH, chip, entryName, h, num, share } from "./dom.js";
import { whoInput } from "./who.js";

const ADVICE = { act: ["check", "▲", "act"], watch: ["info", "●", "hold and watch"], undecided: ["info", "?", "undecided"], none: ["check", "⊘", "nothing"] };
const ANSWERS = [["agree", "Agree"], ["disagree", "Disagree"], ["not_now", "Not now"]];

function listed(levels) {
  const names = levels.map((p) => `P-${p}`);
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} or ${names.at(-1)}`;
}

function headline(answer) {
  const least = answer.candidates.find((one) => one.p === answer.suggested);
  const where = least?.label.split(", ").slice(1).join(", ");
  const found = [h("p", { class: "headline num", "data-testid": "acceptable" },
    answer.acceptable.length ? `Acceptable: ${listed(answer.acceptable)}.` : "No level is acceptable to this model.")];
  found.push(h("p", { class: "num", "data-testid": "suggested" }, least ? `Smallest support among them: P-${least.p} (${where}).` : "Nothing is suggested."));
  if (answer.undecided?.length) found.push(h("p", { class: "num", "data-testid": "undecided" }, `Undecided, too near the line: ${listed(answer.undecided)}.`));
  if (ADVICE[answer.advice?.kind]) found.push(h("p", { class: "num advice", "data-testid": "advice" }, chip(...ADVICE[answer.advice.kind]), ` ${answer.advice.words}`));
  return found;
}

/** What a planner expects of each level within reach, with the spread between its models. */
function planned(policy) {
  if (!policy?.values?.length) return null;
  const signed = (x) => `${x > 0 ? "+" : ""}${num(x, 2)}`;
  const told = policy.values.map((one) => `P-${one.p} ${signed(one.gain)} ± ${num(one.spread, 2)}`).join(" · ");
  return h("li", { class: "note num", "data-testid": "planned" }, `Reward that the planner expects above holding within ${num(policy.hours)} h, ± spread of ${num(policy.models)} models: ${told}`);
}

function uncertaintyWords(one) {
  if (!one || typeof one.patient !== "number") return null;
  const signal = typeof one.signal === "number" ? `, signal ${share(one.signal)}` : "";
  return `within the model's draws ${share(one.patient)}, between models ${share(one.data)}${signal}`;
}

function line(name, words, testid) {
  return words ? h("p", { "data-testid": testid, class: "num" }, h("b", {}, `${name}: `), words) : null;
}

/** The panel of an answer that is not refused. */
export function suggestionPanel(answer, replay) {
  return h("section", { class: "panel suggestion", "aria-labelledby": "suggestion-title", "data-testid": "suggestion" },
    h("div", { class: "said" }, h("h2", { id: "suggestion-title" }, "Suggestion"), headline(answer)),
    h("div", { class: "because" },
      h("ul", { "data-testid": "reasons", "aria-label": "Why" }, answer.reasons.filter((one) => one !== answer.advice?.words).map((one, i) => h("li", { class: "num" }, i ? null : h("b", {}, "Why: "), one)),
        answer.policy ? h("li", { class: "note", "data-testid": "policy" }, answer.policy.words) : null, planned(answer.policy)),
      line("Uncertainty", uncertaintyWords(answer.uncertainty), "uncertainty"),
      line("Forecast record, this patient, last 24 h", answer.skill?.words ?? DASH, "skill"),
      line("Not known to this model", answer.unknowns.join(", "), "unknowns")),
    h("div", { class: "foot" }, replay ? null : responseForm(answer), provenance(answer)));
}

/** The panel of a refused state: codes, sentences, remedies; nothing is suggested. */
export function refusalPanel(answer) {
  return h("section", { class: "panel hatched screen-refusal", "aria-labelledby": "refusal-title", "data-testid": "screen-refusal" },
    h("div", { class: "plate" }, h("div", { class: "said" }, h("h2", { id: "refusal-title" }, "Refused: no forecast, no suggestion"), provenance(answer)),
      h("ul", {}, answer.refusals.map((one) => h("li", { "data-code": one.code },
        h("b", {}, `${one.code} · `), `${one.sentence} `, h("span", { class: "remedy" }, one.remedy)))),
      h("p", { "data-testid": "unknowns" }, h("b", {}, "Not known to this model: "), answer.unknowns.join(", "))));
}

function provenance(answer) {
  const { model } = answer;
  const number = entryName(answer.audit_id);
  return h("p", { class: "provenance", "data-testid": "provenance" },
    h("span", { "data-testid": "model-version" }, `model ${model?.version ?? DASH}`), " · ",
    h("span", { "data-testid": "model-hash", title: model?.sha256 ?? "" }, model?.sha256 ? `${model.sha256.slice(0, 12)}…` : DASH), " · ",
    h("a", { href: `/audit?entry=${answer.audit_id}`, "data-testid": "audit-id" }, `audit ${number}`), " · ",
    h("a", { href: `/v1/audit/${answer.audit_id}/replay`, "data-testid": "replay-link" }, "replay"));
}

function responseForm(answer) {
  const told = h("p", { role: "status", class: "told", "data-testid": "response-told" });
  const reason = h("input", { type: "text", id: "reason", maxlength: 20000, "data-testid": "reason", autocomplete: "off", placeholder: "reason" });
  const who = whoInput(told);
  const buttons = ANSWERS.map(([name, words]) => h("button", { type: "button", "data-testid": name.replace("_", "-"), onclick: () => send(name, words) }, words));
  const send = async (name, words) => {
    const text = reason.value.trim();
    if (name === "disagree" && !text) {
      told.textContent = "Disagree needs a reason.";
      reason.setAttribute("aria-invalid", "true");
      reason.focus();
      return;
    }
    reason.removeAttribute("aria-invalid");
    const by = who.name();
    if (!by) return;
    for (const one of buttons) one.disabled = true;
    try {
      const stored = await post("/v1/responses", { audit_id: answer.audit_id, answer: name, reason: text, by });
      const clipped = stored.clipped ? " The reason was clipped." : "";
      told.textContent = `${words}: ${stored.new ? "kept" : "was kept already"} as audit ${entryName(stored.audit_id)}.${clipped}`;
      buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(ANSWERS[i][0] === name)));
    } catch (error) {
      told.textContent = `Not kept: ${error.message}`;
    } finally {
      for (const one of buttons) one.disabled = false;
    }
  };
  return h("div", { class: "respond" }, h("div", { class: "row" }, buttons),
    h("div", { class: "row reason" }, h("label", { for: "reason", class: "unseen" }, "Reason (needed to disagree)"), reason, who.nodes), told);
}
