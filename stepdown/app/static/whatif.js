// The what-if screen of a recorded patient: ask, check that the answer is to the question, draw.

import { askWhenReady, get, getWhenReady, patientPath } from "./api.js";
import { announce, clip, clock, entryName, exact, h, learnSignals } from "./dom.js";
import { followNewest, watchAge } from "./live.js";
import { nowFromTrend } from "./now_panel.js";
import { addressOf, patientBar } from "./patient_bar.js";
import { pastHours, renderAnswer } from "./whatif_view.js";

const PRESETS = { upper: (low) => `MAP ${low} mmHg, with upper ones`, paper: (low) => `paper, MAP ${low} mmHg`, map65: (low) => `MAP ${low} mmHg`, site: () => "site" };

let kept = { patient: null, p: null }; // the level that was looked at last

function horizonOf(query) {
  const asked = Number(query.get("h") ?? 6);
  return Number.isInteger(asked) && asked >= 1 && asked <= 6 ? asked : 6;
}

function questionOf(context) {
  const query = new URLSearchParams();
  const at = context.query.get("at"), limits = context.query.get("limits");
  if (at !== null) query.set("at", at.replace(" ", "+"));
  query.set("h", String(horizonOf(context.query)));
  if (limits in PRESETS) query.set("limits", limits);
  return query;
}

/** The past of a trend, in minutes from now. */
export function pastOf(trend) {
  const channels = Object.fromEntries(Object.entries(trend.channels).map(([name, one]) => [name, one.values]));
  return { minutes: trend.minutes.map((one) => one - trend.minute), levels: trend.p_levels, channels, nowMinute: trend.minute };
}

/** Ask and draw. */
export async function showWhatIf(context) {
  const { main, patient, signal } = context;
  main.className = "fitted";
  const waiting = h("p", { class: "waiting", role: "status" }, "Computing …");
  main.append(h("h1", { class: "unseen" }, clip(patient)), waiting);
  const query = questionOf(context);
  const at = query.has("at") ? `&at=${encodeURIComponent(query.get("at"))}` : "";
  const hours = pastHours(horizonOf(context.query));
  const [answer, row, trend, quality, limits, codes] = await Promise.all([
    askWhenReady(patientPath(patient, `/whatif?${query}`), signal, (words) => { waiting.textContent = `${words} Waiting …`; }),
    get(patientPath(patient, `?${at.slice(1)}`), signal),
    get(patientPath(patient, `/trends?hours=${hours}${at}`), signal),
    get(patientPath(patient, `/quality?${at.slice(1)}`), signal),
    get("/v1/limits", signal),
    get("/v1/codes", signal),
  ]);
  if (signal.aborted) return;
  requireSame(patient, answer, row, trend);
  learnSignals(quality.channels);
  draw(context, { answer, row, trend, quality, limits, tooOld: codes.refusals.R01 });
  followNewest(context, row);
}

/** What is shown together must be about one patient and one moment. */
function requireSame(patient, answer, row, trend) {
  const ids = [answer.source?.patient, row.patient, trend.patient];
  const minutes = [answer.source?.minute, row.minute, trend.minute];
  if (ids.some((one) => one !== patient) || minutes.some((one) => one !== minutes[0])) {
    throw new Error("The server answered for another patient or moment; nothing of it is shown.");
  }
}

function draw(context, found) {
  const { main, patient, signal } = context;
  const { row, trend, limits } = found;
  const host = h("div", { class: "host" });
  const bar = patientBar(context, row, found.quality.chip, [horizonLinks(context), limitsLink(limits, context)]);
  main.replaceChildren(bar.node, host);
  const show = (answer) => renderAnswer(host, {
    answer: Object.keys(answer.now ?? {}).length ? answer : { ...answer, now: nowFromTrend(trend) },
    past: pastOf(trend), further: row.further, selected: selectedFor(context, answer),
    onSelect: (p) => keep(context, p),
  });
  show(found.answer);
  watchAge({
    age: found.answer.quality?.age_min ?? row.age_min, oldest: limits.gates.oldest, signal, tick: bar.setAge,
    expire: async () => {
      if (found.answer.refusals.some((one) => one.code === "R01")) return;
      show(expired(found.answer, found.tooOld));
    },
  });
}

/** The level that is looked at is part of the address, so that a link shows the same. */
function keep({ patient, query, signal }, p) {
  if (signal.aborted || p === null) return;
  kept = { patient, p };
  query.set("p", p);
  history.replaceState(null, "", addressOf(patient, "whatif", Object.fromEntries(query)));
}

function selectedFor({ patient, query }, answer) {
  const asked = Number(query.get("p"));
  if (answer.candidates.some((one) => one.p === asked)) return asked;
  const known = answer.candidates.some((one) => one.p === kept.p);
  return kept.patient === patient && known ? kept.p : null;
}

/** The answer after its newest sample became too old: R01, without any forecast. */
export function expired(answer, tooOld) {
  const refusal = { code: "R01", ...tooOld, about: null };
  const bare = { status: "refused", refusals: [refusal], acceptable: false, word: "unjudged", rank: null, verdict: "Not acceptable: no forecast is shown.", quantiles: null, carry_forward: null, risk: null,
    support: null, evidence: [], uncertainty: null, gates: [], notes: [] };
  return { ...answer, status: "refused", refusals: [refusal, ...answer.refusals], acceptable: [], undecided: [], suggested: null, policy: null, advice: { kind: "none", p: null, words: "" },
    uncertainty: null, candidates: answer.candidates.map((one) => ({ ...one, ...bare })) };
}

function horizonLinks(context) {
  const others = Object.fromEntries([...context.query].filter(([name]) => name !== "h"));
  const now = horizonOf(context.query);
  return h("div", { class: "horizon", role: "group", "aria-label": "Horizon" }, [1, 6].map((hours) =>
    h("a", { class: "button", href: addressOf(context.patient, "whatif", { ...others, h: hours }), "data-testid": `horizon-${hours}`,
      "aria-label": `${hours} h ahead`, "aria-current": hours === now ? "true" : null }, `${hours} h`)));
}

function limitsLink(limits, context) {
  const asked = context.query.get("limits");
  const name = asked in PRESETS ? asked : limits.preset;
  return h("a", { class: "button", href: "/limits", "data-testid": "limits-preset" }, `Limits: ${PRESETS[name](exact(limits.presets[name].limits.map_low))}`);
}

/** A kept answer, computed again by the server, on the same screen. */
export async function showReplay({ main, signal }, number) {
  main.className = "fitted";
  const [answer, entry] = await Promise.all([
    getWhenReady(`/v1/audit/${number}/replay`, signal), get(`/v1/audit/${number}`, signal)]);
  if (signal.aborted) return;
  const host = h("div", { class: "host" });
  main.replaceChildren(h("div", { class: "patient-bar", "data-testid": "patient-header" },
    h("h1", { "data-testid": "patient-id" }, clip(answer.source?.patient ?? "a moment described by hand")),
    h("p", { class: "facts" }, h("span", { "data-testid": "replayed" }, `Replay of audit entry ${entryName(number)}: the same bytes.`),
      h("span", {}, answer.pump?.label ?? "pump not known"), h("time", { datetime: answer.at, "data-testid": "moment" }, clock(answer.at))),
    h("a", { class: "button", href: "/audit" }, "Back to the audit")), host);
  renderAnswer(host, { answer, past: pastOfRequest(answer, entry.body?.request), replay: true });
  if (answer.status === "ok") announce(`Entry ${number} was computed again: the same bytes.`);
}

function pastOfRequest(answer, request) {
  const channels = {};
  let count = 0;
  for (const [name, one] of Object.entries(request?.channels ?? {})) {
    const key = name.toLowerCase();
    const same = answer.now?.[key]?.ucum === one.unit;
    channels[key] = same ? one.values : one.values.map(() => null); // other units are not drawn
    count = Math.max(count, one.values.length);
  }
  const grid = answer.grid_min;
  const late = (Date.parse(answer.at) - Date.parse(answer.t_end)) / 60000 || 0;
  const minutes = Array.from({ length: count }, (_, i) => (i - count + 1) * grid - late);
  const levels = request?.p_levels ?? minutes.map(() => answer.p_now);
  return { minutes, levels, channels, nowMinute: answer.source?.minute ?? null };
}
