// The patient list: who needs a look first.

import { get } from "./api.js";
import { DASH, chip, clip, h, num, qualityChip, table } from "./dom.js";
import { addressOf, reviewChip } from "./patient_bar.js";

const AGAIN = 2500; // ms between looks while reviews are still missing
const OFTEN = 1000; // ms between looks at patients of one's own, who may grow

const SORTS = {
  review: ["who needs a look first", () => 0], // as the server sends them
  patient: ["name", (a, b) => a.patient.localeCompare(b.patient, undefined, { numeric: true })],
  level: ["level, highest first", (a, b) => (b.p_now ?? 0) - (a.p_now ?? 0)],
  time: ["time on support, longest first", (a, b) => b.hours_on_support - a.hours_on_support],
  age: ["newest sample, oldest first", (a, b) => (b.age_min ?? Infinity) - (a.age_min ?? Infinity)],
};

/** The list as it was asked for: whose name or state holds the words, in an order. */
function chosen(patients, words, sort) {
  const sought = words.trim().toLowerCase();
  const text = (one) => `${one.patient} ${one.pump_label ?? ""} P-${one.p_now ?? ""} ${reviewChip(one.review).textContent}`.toLowerCase();
  return patients.filter((one) => text(one).includes(sought)).sort((SORTS[sort] ?? SORTS.review)[1]);
}

/** Search and order; both are part of the address. */
function tools(query, changed) {
  const search = h("input", { type: "search", id: "search", "data-testid": "search", autocomplete: "off", maxlength: 64 });
  search.value = query.get("q") ?? "";
  const sort = h("select", { id: "sort", "data-testid": "sort" }, Object.entries(SORTS).map(([name, [words]]) => h("option", { value: name, selected: name === query.get("sort") }, words)));
  const keep = () => {
    const asked = new URLSearchParams();
    if (search.value) asked.set("q", search.value);
    if (sort.value !== "review") asked.set("sort", sort.value);
    history.replaceState(null, "", asked.size ? `/?${asked}` : "/");
    changed();
  };
  search.addEventListener("input", keep);
  sort.addEventListener("change", keep);
  return { read: () => [search.value, sort.value], node: h("div", { class: "row finding" }, h("label", { for: "search" }, "Find ", search), h("label", { for: "sort" }, "Order by ", sort)) };
}

/** Draw the list, and draw it again until every patient was looked at. */
export async function showPatients({ main, query, signal }) {
  const body = h("div", {}, h("p", {}, "Loading …"));
  let found = null;
  const draw = () => { if (found) body.replaceChildren(...content(found, chosen(found.patients, ...finding.read()))); };
  const finding = tools(query, draw);
  main.append(h("section", { class: "page" }, h("h1", {}, "Patients"),
    h("p", { class: "lead" }, "Recorded test patients, whom no model has seen. Those who need a review come first. Ids are pseudonyms."), finding.node, body));
  for (;;) {
    found = await get("/v1/patients", signal);
    const { patients, phase, own } = found;
    const focused = document.activeElement?.getAttribute?.("href");
    draw();
    if (focused) [...body.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
    if (phase === "refused" || (phase === "ready" && !own && patients.every((one) => one.review))) return;
    await new Promise((done) => setTimeout(done, own ? OFTEN : AGAIN));
    if (signal.aborted) return;
  }
}

function content({ patients, phase, trouble }, shown) {
  const found = trouble ? [h("p", { role: "status", "data-testid": "trouble" }, chip("check", "▲", trouble))] : [];
  if (phase === "warming") found.push(h("p", { role: "status" }, chip("info", "…", "The models are being loaded.")));
  if (phase === "refused") found.push(h("p", { role: "status" }, chip("check", "⊘", "R13 · The models cannot be used. Recordings can still be read.")));
  if (!patients.length) return [...found, h("p", {}, phase === "warming" ? "The list comes in a moment." : "This run has no test patients.")];
  if (!shown.length) return [...found, h("p", { role: "status" }, "Nobody is found by these words.")];
  const rows = shown.map((one) => [
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
