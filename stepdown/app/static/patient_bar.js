// The line above every screen of a patient: who, which pump, which level, how old, which moment.

import { DASH, chip, clip, clock, h, isoOf, num, qualityChip } from "./dom.js";
import { ageWords } from "./live.js";

const TABS = [["trends", "Trends"], ["whatif", "What-if"], ["plan", "Plans"], ["quality", "Data quality"]];

/** Address of a screen of a patient at a moment. */
export function addressOf(patient, screen, changes = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(changes)) if (value !== null && value !== undefined) query.set(name, value);
  const text = query.toString();
  return `/p/${encodeURIComponent(patient)}/${screen}${text ? `?${text}` : ""}`;
}

function momentLinks(context, row) {
  const { patient, name, query } = context;
  const kept = Object.fromEntries([...query].filter(([key]) => key !== "at"));
  const last = row.recorded_hours * 60;
  const link = (minutes, words, label) => {
    const there = row.minute + minutes;
    const possible = there >= 0 && there <= last + 3;
    return possible
      ? h("a", { class: "button", href: addressOf(patient, name, { ...kept, at: isoOf(there) }), "aria-label": label }, words)
      : h("span", { class: "button off", "aria-hidden": "true" }, words);
  };
  return h("div", { class: "moments", role: "group", "aria-label": "Moment of the recording" },
    link(-360, "−6 h", "Six hours earlier"), link(-60, "−1 h", "One hour earlier"),
    link(60, "+1 h", "One hour later"), link(360, "+6 h", "Six hours later"),
    h("a", { class: "button", href: addressOf(patient, name, kept) }, "newest"));
}

/** The bar; the returned `setAge` keeps the age alive. */
export function patientBar(context, row, quality, extra = []) {
  const age = h("span", { class: "num", "data-testid": "age" }, ageWords(row.age_min));
  const at = context.query.get("at");
  const level = typeof row.p_now === "number" ? `P-${row.p_now}` : DASH;
  const node = h("div", { class: "patient-bar", "data-testid": "patient-header" },
    h("h1", { "data-testid": "patient-id" }, clip(row.patient)),
    h("p", { class: "facts" },
      h("span", {}, row.pump_label ?? DASH), h("span", { class: "num" }, `now ${level}`),
      h("span", { class: "num" }, `${num(row.hours_on_support, 1)} h on support`), age,
      quality ? qualityChip(quality) : null,
      h("time", { datetime: row.now, "data-testid": "moment", class: "num" }, clock(row.now))),
    h("nav", { "aria-label": "Screens of this patient", class: "tabs" }, TABS.map(([screen, words]) =>
      h("a", { href: addressOf(row.patient, screen, { at }), "aria-current": screen === context.name ? "page" : null }, words))),
    momentLinks(context, row), ...extra);
  return { node, setAge: (minutes) => { age.textContent = ageWords(minutes); } };
}

/** A chip for what the server thinks of the newest moment of a patient. */
export function reviewChip(review) {
  if (!review) return chip("info", "…", "not looked at yet");
  if (review.status === "refused") return chip("check", "⊘", `refused ${review.codes.join(", ")}`);
  if (review.inside_limits === false) return chip("outside", "■", "outside limits");
  if (typeof review.suggested === "number") return chip("info", "→", `least acceptable: P-${review.suggested}`);
  if (review.advice === "act") return chip("check", "▲", `act: P-${review.act_on} has less risk`);
  if (review.advice === "watch") return chip("info", "●", "hold and watch");
  if (review.advice === "undecided") return chip("info", "?", "undecided");
  return chip("good", "●", "nothing to suggest");
}
