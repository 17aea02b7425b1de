// Who answers: initials for the audit, asked once in each tab.

import { h } from "./dom.js";

const KEPT = "stepdown-who";

/** An input for initials; `name()` is what stands there, or says that it is missing and is "". */
export function whoInput(told) {
  const input = h("input", { type: "text", id: "who", maxlength: 32, size: 6, autocomplete: "off", placeholder: "initials", "data-testid": "who" });
  input.value = sessionStorage.getItem(KEPT) ?? "";
  const name = () => {
    const found = input.value.trim();
    input.setAttribute("aria-invalid", String(!found));
    if (found) sessionStorage.setItem(KEPT, found);
    else {
      told.textContent = "Say who you are first: your initials.";
      input.focus();
    }
    return found;
  };
  return { nodes: [h("label", { for: "who", class: "unseen" }, "Your initials, for the audit"), input], name };
}
