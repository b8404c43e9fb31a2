// The content of a message: JSON, text or hexadecimal; never more than the server sends, and always as text.

import { download } from "../api.js";
import { may, perform } from "../dialog.js";
import { copyButton, el, facts, icon } from "../dom.js";
import { bytes, fromBase64, hexDump, indentJson, visible } from "../format.js";

/** Why a payload is not shown. */
const NOT_SHOWN = {
  hidden: "Payloads are hidden on this server, by the setting console_payloads.",
  denied: "Your token lacks the verb consume, which payloads need.",
};

/** The forms in which a payload can be read: {json, text, hex}, the best one first. */
export function forms(payload) {
  const found = {}, data = () => (payload.base64 !== null ? fromBase64(payload.base64) : new TextEncoder().encode(payload.text));
  const json = payload.is_json && !payload.is_cut ? indentJson(payload.text) : null;
  if (json !== null) found.JSON = () => json;
  if (payload.text !== null) found.text = () => payload.text;
  found.hex = () => hexDump(data());
  return found;
}

/** The attributes and the payload of a message. `raw` are the parts of the address to download it from. */
export function payloadView({ payload, attributes }, raw, { isClosed = false } = {}) {
  const pairs = Object.entries(attributes ?? {});
  const above = pairs.length ? facts(pairs.map(([name, value]) => [name, el("span", { class: "mono" }, visible(value))])) : null;
  if (!payload) return [above, el("p", { class: "soft small" }, "The message itself is no longer in the log.")];
  if (payload.state !== "shown") return [above, el("p", { class: "soft small" }, NOT_SHOWN[payload.state])];
  const all = forms(payload), box = el("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" }), buttons = el("div", { class: "segments", role: "group", "aria-label": "Show as" });
  let shown = "";
  const show = (name) => {
    shown = all[name]();
    box.textContent = name === "hex" ? shown : visible(shown);
    box.classList.toggle("hex", name === "hex");
    for (const button of buttons.children) button.setAttribute("aria-pressed", String(button.textContent === name));
  };
  buttons.append(...Object.keys(all).map((name) => el("button", { type: "button", onclick: () => show(name) }, name)));
  show(Object.keys(all)[0]);
  const copying = copyButton("", "Copy the payload");
  copying.addEventListener("click", (event) => { event.stopImmediatePropagation(); navigator.clipboard?.writeText(shown); }, { capture: true });
  const size = el("span", { class: "soft small" }, bytes(payload.size), payload.is_cut && `, the first ${bytes(64 * 1024)} are shown`);
  const content = el("div", { class: "column" }, el("div", { class: "head" }, buttons, size, el("div", { class: "tools" }, copying, raw && may("consume") && el("button", { type: "button", class: "plain icon", title: "Download", "aria-label": "Download the payload", onclick: () => perform(null, () => download(raw, {}, raw.at(-2))) }, icon("M12 4v11M7 10l5 5 5-5M5 20h14")))), box);
  return [above, isClosed ? el("details", {}, el("summary", { class: "small" }, "Payload"), content) : content];
}
