// The shell: which screen is shown, the links between screens, and whether the server still lives.

import { clip, h } from "./dom.js";
import { showAudit } from "./audit.js";
import { showLimits } from "./limits.js";
import { busyWriting } from "./live.js";
import { showLogin } from "./login.js";
import { showModel } from "./model.js";
import { showPatients } from "./patients.js";
import { showPlan } from "./plan.js";
import { showQuality } from "./quality.js";
import { showReview } from "./review.js";
import { showTrends } from "./trends.js";
import { showWhatIf } from "./whatif.js";

const LINKS = [["/", "Patients"], ["/review", "Review"], ["/model", "Model"], ["/limits", "Limits"], ["/audit", "Audit"], ["/docs", "API"]];
const PATIENT = { "": showTrends, trends: showTrends, whatif: showWhatIf, plan: showPlan, quality: showQuality };
const PLAIN = { "/": showPatients, "/model": showModel, "/limits": showLimits, "/audit": showAudit, "/review": showReview };
const HEARTBEAT = 3000; // ms
const PATIENCE = 4000; // ms

let leaving = new AbortController(), away = false;

function part(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function screenOf(path) {
  const found = /^\/p\/([^/]+)(?:\/([^/]*))?\/?$/.exec(path);
  if (found) return { show: PATIENT[found[2] ?? ""], patient: part(found[1]), name: found[2] || "trends" };
  return { show: PLAIN[path], patient: null, name: path };
}

/** Show the screen of the address; whatever the last one still waits for is given up. */
function go() {
  leaving.abort();
  leaving = new AbortController();
  const { show, patient, name } = screenOf(location.pathname);
  const main = document.getElementById("main");
  main.className = "";
  main.replaceChildren();
  drawNav();
  document.getElementById("live").textContent = "";
  document.title = patient ? `${clip(patient)} · ${name} · stepdown` : "stepdown: what would happen";
  const context = { main, patient, name, query: new URLSearchParams(location.search), signal: leaving.signal, navigate, again: go };
  const shown = show ? show(context) : Promise.reject(new Error("There is no such screen."));
  Promise.resolve(shown).catch((error) => {
    if (error.name === "AbortError" || context.signal.aborted) return undefined;
    if (error.status === 401) return showLogin(main, go);
    if (!(error.status < 500)) setTimeout(() => { if (!context.signal.aborted) go(); }, HEARTBEAT); // it may pass
    return main.replaceChildren(h("section", { class: "panel hatched", "data-testid": "problem" },
      h("h1", { class: "plate" }, "Nothing can be shown"), h("p", { class: "plate", role: "status" }, clip(error.message, 300)),
      h("p", { class: "plate" }, h("a", { href: "/", class: "button" }, "Back to the patients"))));
  });
}

/** Go to another screen without loading the page again. */
export function navigate(address, replace = false) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  go();
  if (replace) return;
  window.scrollTo(0, 0);
  document.getElementById("main").focus({ preventScroll: true });
}

function drawNav() {
  const nav = document.getElementById("nav");
  const here = location.pathname;
  nav.replaceChildren(...LINKS.map(([address, words]) =>
    h("a", { href: address, "aria-current": address === here ? "page" : null }, words)));
}

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const address = new URL(link.href, location.href);
  if (address.origin !== location.origin || address.hash || !screenOf(address.pathname).show) return;
  event.preventDefault();
  navigate(address.pathname + address.search);
});
window.addEventListener("popstate", go);

async function beat() {
  let alive = false, gone = false;
  try {
    const answer = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    alive = answer.ok;
  } catch (error) {
    gone = error.name !== "TimeoutError"; // a slow server has lost nothing
  }
  if (alive && away && !busyWriting()) go(); // a server that came back may know other things
  away = gone;
  document.body.classList.toggle("not-updating", !alive);
  const words = alive ? "" : "Not updating: the server does not answer. Numbers are struck through.";
  const told = document.getElementById("stopped");
  if (told.textContent !== words) told.textContent = words;
  setTimeout(beat, HEARTBEAT);
}

go();
beat();
