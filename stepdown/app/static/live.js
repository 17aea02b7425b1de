// What changes by itself: the age of the newest sample, and the refusal R01 that follows from it.

import { num } from "./dom.js";

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
