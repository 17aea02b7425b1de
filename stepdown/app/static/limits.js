// Limits: the preset in force, who changed it and when; a site may only be stricter.

import { get, post } from "./api.js";
import { entryName, exact, h, stamp, table } from "./dom.js";

const FIELDS = [["map_low", "MAP, lower limit", "mmHg"], ["map_high", "MAP, upper limit", "mmHg"], ["hr_low", "HR, lower limit", "/min"], ["hr_high", "HR, upper limit", "/min"],
  ["pulsatility_low", "Pulsatility, lower limit", "mmHg"], ["pulsatility_high", "Pulsatility, upper limit", "mmHg"]];
const GATES = { oldest: ["Age of the newest sample, at most (R01)", "min"], missing: ["Missing share of the hour, at most (R02)", "% of the hour"], flat: ["A signal standing still, less than (R03)", "min"],
  unlike_state: ["p-value of the state, at least (R09)", "%"], unlike_level: ["p-value of the level, at least (R10)", "%"], support: ["Similar recorded patient-hours, at least (R10)", "h"],
  disagreement: ["Risks by single models apart, at most (R11)", "% of the courses"], risk: ["Courses that cross a limit at an acceptable level, at most", "% of the courses"] };

/** Draw the limits and the form that changes them. */
export async function showLimits({ main, signal }) {
  const page = h("section", { class: "page" });
  main.append(page);
  const told = h("p", { role: "status", "data-testid": "limits-told" });
  const draw = (found) => page.replaceChildren(h("h1", {}, "Limits"), h("p", { class: "lead" }, found.rule), current(found), form(found, told, draw), told, presets(found), gates(found));
  draw(await get("/v1/limits", signal));
}

function value(limits, [name, , unit]) {
  return typeof limits[name] === "number" ? `${exact(limits[name])} ${unit}` : "no limit";
}

function current(found) {
  const { changed } = found;
  const who = changed ? ["Changed by ", changed.by, " at ", stamp(changed.time), `, audit ${entryName(changed.audit_id)}.`] : "Never changed.";
  return h("p", { "data-testid": "limits-current" }, h("b", {}, `In force: ${found.presets[found.preset]?.label ?? found.preset}, `),
    `${FIELDS.filter(([name]) => typeof found.effective[name] === "number").map((field) => `${field[1]} ${value(found.effective, field)}`).join("; ")}. `, who);
}

function form(found, told, draw) {
  const by = h("input", { type: "text", id: "limits-by", maxlength: 32, autocomplete: "off", required: true, "data-testid": "limits-by" });
  const site = FIELDS.map(([name, words, unit]) => {
    const start = found.presets.site.limits[name];
    const input = h("input", { type: "number", step: "any", id: `site-${name}`, value: typeof start === "number" ? start : "", "data-testid": `site-${name}` });
    return { name, input, node: h("label", { for: `site-${name}` }, `${words}, ${unit} `, input) };
  });
  const choose = async (preset) => {
    if (!by.value.trim()) {
      told.textContent = "Say who changes the limits first: your initials.";
      by.focus();
      return;
    }
    const given = Object.fromEntries(site.filter((one) => one.input.value !== "").map((one) => [one.name, Number(one.input.value)]));
    try {
      const now = await post("/v1/limits", { preset, by: by.value.trim(), ...(preset === "site" ? { site: given } : {}) });
      told.textContent = `${now.presets[now.preset]?.label ?? now.preset} is in force; audit ${entryName(now.audit_id)}.`;
      draw(now);
    } catch (error) {
      told.textContent = `Not changed: ${error.message}`;
    }
  };
  const buttons = Object.entries(found.presets).map(([name, one]) => h("button", { type: "button", "data-testid": `preset-${name}`,
    "aria-pressed": String(name === found.preset), onclick: () => choose(name) }, `Use ${one.label}`));
  return h("div", { class: "panel form" }, h("label", { for: "limits-by" }, "Your initials, for the audit ", by), h("div", { class: "row" }, buttons),
    h("details", {}, h("summary", {}, "Limits of the site (stricter only)"), h("div", { class: "fields" }, site.map((one) => one.node))));
}

function presets(found) {
  const columns = [["In force", found.effective], ...Object.values(found.presets).map((one) => [one.label, one.limits])];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Presets" },
    table("Presets", ["Limit", ...columns.map(([name]) => name)], FIELDS.map((field) => [field[1], ...columns.map(([, limits]) => value(limits, field))]), { class: "list" }));
}

function gates(found) {
  const rows = Object.entries(found.gates).map(([name, x]) => [GATES[name]?.[0] ?? name, `${exact(GATES[name]?.[1].startsWith("%") ? 100 * x : x)} ${GATES[name]?.[1] ?? ""}`.trim()]);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Thresholds" },
    table("Thresholds of the refusals; hard gates cannot be changed", ["Threshold", "Value"], rows, { class: "list" }));
}
