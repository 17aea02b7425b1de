// Data quality by channel: units, ranges, what is missing, what stands still, what was excluded.

import { get, patientPath } from "./api.js";
import { DASH, h, num, share, table } from "./dom.js";
import { patientBar } from "./patient_bar.js";

/** Draw the table of a patient at a moment. */
export async function showQuality(context) {
  const { main, patient, query, signal } = context;
  const at = query.get("at") === null ? "" : `?at=${encodeURIComponent(query.get("at").replace(" ", "+"))}`;
  const [row, found] = await Promise.all([get(patientPath(patient, at), signal), get(patientPath(patient, `/quality${at}`), signal)]);
  if (signal.aborted) return;
  const range = ([low, high], unit) => `${num(low)} to ${num(high)} ${unit}`;
  const rows = Object.values(found.channels).map((one) => [
    one.label, one.unit, range(one.hard_range, one.unit), range(one.soft_range, one.unit), counted(one.samples, "samples"),
    share(one.missing_share), share(one.missing_last_hour), counted(one.outside_hard, "samples"), counted(one.outside_soft, "samples"),
    counted(one.flat_stretches, "times")]);
  const head = ["Signal", "Unit", "Possible", "Usual", "Samples", "Missing", "Last hour missing", "Not possible", "Not usual", "Standing still"];
  main.replaceChildren(patientBar(context, row, found.chip).node, h("section", { class: "page" }, h("h2", {}, "Data quality"),
    h("p", { class: "lead" }, `One sample every ${num(found.clock.grid_min)} min, ${found.clock.regular ? "regular" : "irregular"} clock, dates ${found.clock.dates ?? DASH}, `
      + `${num(found.gaps)} gaps. Nothing is repaired silently.`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Data quality by signal" }, table("Up to the chosen moment", head, rows, { class: "list", "data-testid": "quality" })),
    found.odd.length ? [h("h2", {}, "To be checked"), h("ul", { "data-testid": "odd" }, found.odd.map((one) => h("li", {}, one)))] : "",
    h("h2", {}, "Excluded, and why"),
    found.excluded.length ? h("ul", {}, found.excluded.map((one) => h("li", {}, one))) : h("p", {}, "Nothing was excluded.")));
}

/** A count that says what it counts, to those who cannot see the head of the column. */
function counted(count, what) {
  return { text: num(count), label: `${num(count)} ${what}` };
}
