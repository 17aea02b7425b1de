// The patient list: who needs a look first.

import { get } from "./api.js";
import { DASH, chip, clip, h, num, qualityChip, table } from "./dom.js";
import { addressOf, reviewChip } from "./patient_bar.js";

const AGAIN = 2500; // ms between looks while reviews are still missing

/** Draw the list, and draw it again until every patient was looked at. */
export async function showPatients({ main, signal }) {
  const body = h("div", {}, h("p", {}, "Loading …"));
  main.append(h("section", { class: "page" }, h("h1", {}, "Patients"),
    h("p", { class: "lead" }, "Recorded test patients, whom no model has seen. Those who need a review come first. Ids are pseudonyms."), body));
  for (;;) {
    const { patients, phase } = await get("/v1/patients", signal);
    const focused = document.activeElement?.getAttribute?.("href");
    body.replaceChildren(...content(patients, phase));
    if (focused) [...body.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
    if (phase === "refused" || (phase === "ready" && patients.every((one) => one.review))) return;
    await new Promise((done) => setTimeout(done, AGAIN));
    if (signal.aborted) return;
  }
}

function content(patients, phase) {
  const found = [];
  if (phase === "warming") found.push(h("p", { role: "status" }, chip("info", "…", "The models are being loaded.")));
  if (phase === "refused") found.push(h("p", { role: "status" }, chip("check", "⊘", "R13 · The models cannot be used. Recordings can still be read.")));
  if (!patients.length) return [...found, h("p", {}, phase === "warming" ? "The list comes in a moment." : "This run has no test patients.")];
  const rows = patients.map((one) => [
    h("a", { class: "button wide", href: addressOf(one.patient, "whatif"), "aria-label": `What-if of ${clip(one.patient)}` }, clip(one.patient)),
    phase === "refused" ? chip("check", "⊘", "no forecasts, R13") : reviewChip(one.review),
    qualityChip(one.quality),
    one.pump_label ?? DASH,
    typeof one.p_now === "number" ? `P-${one.p_now}` : DASH,
    `${num(one.hours_on_support, 1)} h on support`,
    typeof one.age_min === "number" ? `${num(one.age_min)} min old` : DASH,
    h("a", { class: "button", href: addressOf(one.patient, "trends"), "aria-label": `Trends of ${clip(one.patient)}` }, "Trends"),
  ]);
  const head = ["Patient", "Review", "Signal", "Pump", "Level", "Time", "Newest sample", "More"];
  return [...found, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Patients" },
    table(counts(patients), head, rows, { class: "list cards", "data-testid": "patients" }))];
}

/** How many there are of each kind, in the order of the list. */
function counts(patients) {
  const ranks = ["refused", "outside the limits", "with an acceptable level", "nothing to suggest"];
  const each = ranks.map((words, rank) => [patients.filter((one) => one.review?.rank === rank).length, words]).filter(([n]) => n);
  return [`${patients.length} patients`, ...each.map(([n, words]) => `${n} ${words}`)].join(" · ");
}
