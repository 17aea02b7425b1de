// The audit: an append-only list, verified and replayed, never edited.

import { get } from "./api.js";
import { DASH, chip, clip, entryName, h, num, stamp, table } from "./dom.js";
import { showReplay } from "./whatif.js";

const KINDS = { start: "server started", whatif: "what-if", response: "response", limits: "limits changed", choice: "clinician's choice", plan: "plans compared" };

/** Draw the list, one entry, or a replay. */
export async function showAudit(context) {
  const { main, query, signal } = context;
  const asked = (name) => (/^[1-9][0-9]{0,14}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
  if (asked("replay")) return showReplay(context, asked("replay"));
  const page = h("section", { class: "page" }, h("h1", {}, "Audit"),
    h("p", { class: "lead" }, "Every answer, response and change of limits, newest first. Entries follow each other in a chain and are never edited. Times are of this server."));
  main.append(page);
  if (asked("entry")) page.append(await oneEntry(asked("entry"), signal));
  const told = h("p", { role: "status", "data-testid": "verify-told" });
  page.append(h("div", { class: "row" }, h("button", { type: "button", "data-testid": "verify", onclick: () => verify(told) }, "Verify the chain"),
    h("a", { class: "button", href: "/v1/audit/export", download: "audit.ndjson" }, "Export all entries")), told);
  const list = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Entries" });
  page.append(list);
  return more(list, page, null, [], signal);
}

async function verify(told) {
  told.textContent = "Walking the chain …";
  try {
    const found = await get("/v1/audit/verify");
    told.replaceChildren(found.valid ? chip("good", "●", `The chain is whole: ${num(found.entries)} entries.`)
      : chip("outside", "■", `The chain is broken at entry ${found.at ?? DASH}: ${clip(found.problem, 200)}`));
  } catch (error) {
    told.textContent = `Could not be verified: ${error.message}`;
  }
}

async function more(list, page, before, known, signal) {
  const { entries } = await get(`/v1/audit?limit=50${before ? `&before=${before}` : ""}`, signal);
  const all = [...known, ...entries];
  list.replaceChildren(table("Entries", ["Entry", "Time", "Kind", "What", "Digest", "Replay"], all.map(row), { class: "list", "data-testid": "audit" }));
  page.querySelector("[data-testid=older]")?.remove();
  if (entries.length === 50) {
    page.append(h("button", { type: "button", "data-testid": "older", onclick: () => more(list, page, entries.at(-1).id, all, signal) }, "Older entries"));
  }
}

function words(told) {
  const found = [];
  if (told.source) found.push(`${clip(told.source.patient)} at ${num(told.source.minute / 60, 1)} h of support`);
  if (told.patient) found.push(clip(told.patient));
  if (told.plans) found.push(`plans ${told.plans.map((one) => one.join("")).join(", ")}`);
  if (told.status) found.push(told.plans && told.status === "ok" ? "compared" : told.status === "refused" ? `refused ${(told.codes ?? []).join(", ")}` : `acceptable: ${(told.acceptable ?? []).map((p) => `P-${p}`).join(", ") || "none"}`);
  if (told.answer) found.push(`${told.answer.replace("_", " ")} with entry ${entryName(told.audit_id)}`);
  if (typeof told.p === "number") found.push(`P-${told.p}`);
  if (told.reason) found.push(`“${clip(told.reason, 500)}”`);
  if (told.by) found.push(`by ${clip(told.by, 32)}`);
  if (told.preset) found.push(`limits ${told.preset}`);
  return found.join(" · ") || DASH;
}

function row(entry) {
  return [
    h("a", { class: "button", href: `/audit?entry=${entry.id}`, "aria-label": `Entry ${entry.id}` }, entryName(entry.id)),
    stamp(entry.time), KINDS[entry.kind] ?? entry.kind, words(entry.told), h("code", {}, `${entry.digest.slice(0, 10)}…`),
    entry.kind === "whatif" ? h("a", { class: "button", href: `/audit?replay=${entry.id}`, "data-testid": `replay-${entry.id}`, "aria-label": `Replay entry ${entry.id}` }, "Replay") : DASH,
  ];
}

async function oneEntry(number, signal) {
  const entry = await get(`/v1/audit/${number}`, signal);
  return h("section", { class: "panel", "data-testid": "entry" }, h("h2", {}, `Entry ${entryName(number)}: ${KINDS[entry.kind] ?? entry.kind}`),
    h("p", {}, words(entry.body ?? {})),
    entry.kind === "whatif" ? h("p", { class: "row" }, h("a", { class: "button", href: `/audit?replay=${number}` }, "Replay on screen"),
      h("a", { class: "button", href: `/v1/audit/${number}/replay` }, "Replay as JSON")) : null,
    h("details", {}, h("summary", {}, "All that the entry holds"),
      h("pre", { tabindex: "0" }, JSON.stringify(entry, null, 1))));
}
