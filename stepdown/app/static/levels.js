// The candidate P-levels: one radio group, arrows move, Home and End jump.

import { h } from "./dom.js";

const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

const MARKS = { more: "no need", undecided: "?" };

/** Whether the pump of the answer has this level. */
export function lacksLevel(answer, candidate) {
  return typeof answer.pump?.highest === "number" && candidate.p > answer.pump.highest;
}

function marks(answer, candidate) {
  const told = [];
  if (candidate.p === answer.p_now) told.push("now");
  if (lacksLevel(answer, candidate)) told.push("none");
  else if (candidate.status === "refused") told.push(told.length ? "⊘" : `⊘ ${candidate.refusals.find((one) => one.scope !== "chart")?.code ?? ""}`);
  else if (candidate.acceptable !== null) told.push(candidate.acceptable ? "✓" : MARKS[candidate.word] ?? "✕");
  return told.join(" ") || "\u00a0";
}

function nameOf(answer, candidate) {
  if (lacksLevel(answer, candidate)) return `P-${candidate.p}, ${candidate.refusals[0]?.sentence ?? "not a level of this pump"}`;
  return candidate.label;
}

function detailOf(candidate) {
  if (candidate.status === "refused") return `refused ${candidate.refusals.map((one) => one.code).join(", ")}`;
  return candidate.verdict ?? "";
}

/** The group; `choose` gets the level that was chosen. */
export function levelGroup(answer, selected, choose) {
  const radios = answer.candidates.map((candidate) => {
    const off = lacksLevel(answer, candidate);
    return h("button", {
      type: "button", role: "radio", "data-testid": `plevel-${candidate.p}`, "data-p": candidate.p,
      "aria-label": nameOf(answer, candidate), "aria-disabled": off ? "true" : null,
      title: off ? nameOf(answer, candidate) : detailOf(candidate),
      class: candidate.status === "refused" ? "level refused" : "level",
      onclick: () => pick(candidate.p),
    }, h("b", {}, `P-${candidate.p}`), h("small", {}, marks(answer, candidate)));
  });
  const usable = radios.filter((one) => one.getAttribute("aria-disabled") !== "true");
  const show = (p) => {
    const known = usable.some((one) => Number(one.dataset.p) === p);
    for (const one of radios) {
      const on = Number(one.dataset.p) === p;
      one.setAttribute("aria-checked", String(on));
      one.tabIndex = on || (!known && one === usable[0]) ? 0 : -1;
    }
  };
  const pick = (p, focus = false) => {
    const one = usable.find((radio) => Number(radio.dataset.p) === p);
    if (!one) return;
    show(p);
    if (focus) one.focus();
    choose(p);
  };
  const group = h("div", { role: "radiogroup", "aria-label": "Candidate P-level", class: "levels", "data-testid": "plevel-group" }, radios);
  group.addEventListener("keydown", (event) => {
    const here = usable.indexOf(document.activeElement);
    let next = null;
    if (event.key in KEYS) next = (here + KEYS[event.key] + usable.length) % usable.length;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = usable.length - 1;
    if (next === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    pick(Number(usable[next].dataset.p), true);
  });
  show(selected);
  return { group, show };
}
