// What changes by itself: the age of the newest sample, and the refusal R01 that follows from it.

import { get, getSession, patientPath } from "./api.js";
import { num } from "./dom.js";

const AGAIN = 1000; // ms between looks at recordings that grow

/** Whether somebody is writing something that a new screen would lose. */
export function busyWriting() {
  const here = document.activeElement;
  return here instanceof HTMLInputElement && here.type !== "range" && here.value !== "";
}

/** Show the newest moment again as soon as there are new rows, where recordings are followed. */
export async function followNewest({ patient, query, signal, again }, row) {
  if (query.get("at") !== null || !(await getSession()).followed) return;
  for (;;) {
    await new Promise((done) => setTimeout(done, AGAIN));
    if (signal.aborted) return;
    try {
      const now = await get(patientPath(patient), signal);
      if (now.minute !== row.minute && !busyWriting() && !signal.aborted) return again();
    } catch {
      // a server that is away is told elsewhere; a patient who is gone stays on screen
    }
  }
}

/** "4 min ago", from minutes. */
export function ageWords(minutes) {
  if (typeof minutes !== "number" || !Number.isFinite(minutes)) return "age not known";
  return minutes < 120 ? `newest ${num(Math.floor(minutes))} min ago` : `newest ${num(minutes / 60, 1)} h ago`;
}

/**
 * Count the age of the newest sample on from `age` minutes, once a second, until given up.
 * `tick` gets the age in minutes, `expire` is called once when it passes `oldest`.
 */
export function watchAge({ age, oldest, signal, tick, expire }) {
  const since = Date.now();
  let expired = false;
  const step = () => {
    if (signal.aborted) return clearInterval(timer);
    const now = typeof age === "number" ? age + (Date.now() - since) / 60000 : null;
    tick(now);
    if (now !== null && now > oldest && !expired) {
      expired = true;
      expire(now);
    }
    return undefined;
  };
  const timer = setInterval(step, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  step();
}
