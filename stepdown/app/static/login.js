// The token of a server that others can reach; it is kept in a cookie that no script reads.

import { post } from "./api.js";
import { h } from "./dom.js";

/** Ask for the token in place of a screen; `again` is called once it was right. */
export function showLogin(main, again) {
  const token = h("input", { type: "password", id: "token", autocomplete: "off", "data-testid": "token" });
  const told = h("p", { role: "status", "data-testid": "login-told" });
  const send = async (event) => {
    event.preventDefault();
    try {
      await post("/v1/login", { token: token.value.trim() });
      again();
    } catch (error) {
      told.textContent = error.message;
    }
  };
  main.replaceChildren(h("section", { class: "page" }, h("h1", {}, "This server needs a token"),
    h("p", { class: "lead" }, "Others than this machine can reach it. The token was shown once, when the server was first started."),
    h("form", { class: "panel form", onsubmit: send }, h("label", { for: "token" }, "Token ", token),
      h("div", { class: "row" }, h("button", { type: "submit" }, "Use this token")), told)));
}
