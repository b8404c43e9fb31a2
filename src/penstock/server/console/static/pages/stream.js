// The messages of a topic or a queue in the order of the log: browse, search, tail, publish. Reading here never consumes.

import { get, postText } from "../api.js";
import { navigate, watch } from "../app.js";
import { actionButton, may, perform } from "../dialog.js";
import { copy, el, empty, fromQuery, keyed, messageLink, path, setText, time, toast, withQuery } from "../dom.js";
import { bytes, clock, count, instant, jump, plural, quote, visible } from "../format.js";
import { payloadView } from "./payload.js";

const TAIL_ROWS = 500, PAGE = 50;

export function browse(place, kind, name) {
  const at = ["streams", kind, name, "messages"];
  const body = el("tbody"), note = el("p", { class: "soft small", role: "status" }), foot = el("div", { class: "foot" });
  const table = el("table", { class: "rows", "aria-label": `Messages of ${name}` }, el("thead", {}, el("tr", {}, ...["Offset", "Published", "Message", "Key", "Size", "Payload"].map((text, index) => el("th", { scope: "col", class: index === 0 || index === 4 ? "number" : null }, text)))), body);
  const none = el("div", {}), detail = el("div", { class: "column" });
  const goto = el("input", { type: "search", placeholder: "Offset, id, or 2026-05-03 14:00", "aria-label": "Jump to an offset, an id or a time", value: fromQuery("at") ?? "" });
  const key = el("input", { type: "search", placeholder: "Ordering key", "aria-label": "Only messages with this ordering key", value: fromQuery("key") ?? "" });
  const text = el("input", { type: "search", placeholder: may("consume") ? "Text in the payload" : "Text (needs consume)", disabled: !may("consume"), "aria-label": "Text in the payload", value: fromQuery("text") ?? "" });
  const tail = el("button", { type: "button", "aria-pressed": String(fromQuery("tail") === "1"), onclick: () => navigate(withQuery({ tail: fromQuery("tail") === "1" ? null : "1", at: null, text: null }), { isReplaced: true }) }, fromQuery("tail") === "1" ? "Stop tail" : "Tail");
  const form = el("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    const wanted = goto.value.trim();
    if (/^[0-9a-f]{30}$/.test(wanted)) { navigate(path("message", wanted)); return; }
    if (jump(wanted) === null) { toast(`"${wanted}" is not an offset, id or time. Expected: 1200, an id, or 2026-05-03 14:00`, "bad"); return; }
    navigate(withQuery({ at: wanted, key: key.value, text: text.value, tail: null, from: null }));
  } }, el("div", { class: "grow" }, goto), el("div", { class: "grow" }, key), el("div", { class: "grow" }, text), el("button", { type: "submit", class: "main" }, "Show"), tail);
  place.replaceChildren(el("section", { class: "card" }, el("div", { class: "body" }, form, note), el("div", { class: "scroll" }, table), none, foot), detail);

  const row = (one) => el("tr", {}, ...[
    ["number", "figure", count(one.offset)], ["whole", "figure", time(instant(one.published_at))], ["name", "name", messageLink(one.message_id)], ["name", "hide", one.key || "–"], ["number", "figure", bytes(one.size)],
    ["words", "line", el("button", { type: "button", class: "plain peek mono", onclick: () => open(one) }, one.preview === null ? "not shown" : visible(one.preview) || "empty")],
  ].map(([mood, phone, content], index) => el("td", { class: mood, "data-phone": phone, "data-label": ["#", "", "", "", "", ""][index] }, content)));

  const open = async (one) => {
    const message = await perform(null, () => get([...at, one.offset]));
    if (!message) return;
    detail.replaceChildren(el("section", { class: "card", "aria-label": `Message at offset ${one.offset}` }, el("header", {}, el("h2", {}, `Offset ${count(one.offset)}`), messageLink(one.message_id, 34), el("div", { class: "tools" }, el("a", { class: "button", href: path("message", one.message_id) }, "Its life"), el("button", { type: "button", onclick: () => detail.replaceChildren() }, "Close"))),
      el("div", { class: "body" }, payloadView(message, [...at, one.offset, "raw"]))));
    detail.scrollIntoView({ block: "nearest" });
  };

  if (fromQuery("tail") === "1") {
    const rows = [];
    let hidden = 0;
    setText(note, "New messages appear here.");
    return watch("tail", { kind, name }, (data) => {
      hidden += data.skipped;
      for (const one of [...data.rows].reverse()) if (!rows.some((other) => other.offset === one.offset)) rows.unshift(one);
      rows.length = Math.min(rows.length, TAIL_ROWS);
      keyed(body, rows, (one) => one.offset, row);
      setText(note, `Newest first, at most 5 a second${hidden ? `: +${count(hidden)} not shown` : ""}.`);
    });
  }

  const parameters = { ...jump(fromQuery("at")), key: fromQuery("key"), text: fromQuery("text"), limit: PAGE };
  let isOpen = true, rows = [];
  const load = async (offset) => {
    setText(note, "Reading…");
    const data = await get(at, { ...parameters, offset: offset ?? parameters.offset, time: offset === undefined ? parameters.time : null }).catch((error) => { setText(note, error.text); return null; });
    if (!data || !isOpen) return;
    rows = [...rows, ...data.rows];
    keyed(body, rows, (one) => one.offset, row);
    table.hidden = !rows.length;
    const isFiltered = parameters.key || parameters.text || fromQuery("at");
    none.replaceChildren(...(rows.length || !data.is_end ? [] : [isFiltered ? empty("No message matches.", el("a", { class: "button", href: withQuery({ at: null, key: null, text: null }) }, "Clear filter"))
      : empty(`Nothing was published to ${name} yet, or retention removed it.`, el("a", { class: "button", href: withQuery({ tab: "publish" }) }, "Publish a message"))]));
    const back = data.searched && parameters.text && `Searched ${plural(data.searched.messages, "message")}, back to ${clock(instant(data.searched.to_at))}.`;
    setText(note, [`Offsets ${count(data.earliest)} to ${count(Math.max(data.latest - 1, data.earliest))} are in the log.`, back].filter(Boolean).join(" "));
    foot.hidden = data.is_end;
    foot.replaceChildren(el("button", { type: "button", onclick: () => load(data.next) }, parameters.text ? "Continue the search" : parameters.direction === "newer" ? "Newer messages" : "Older messages"));
  };
  load();
  return () => { isOpen = false; };
}

export function publishForm(place, kind, name) {
  const isQueue = kind === "queue", field = (label, node) => el("label", { class: "field" }, label, node);
  const text = el("textarea", { name: "text", rows: 8, spellcheck: "false", placeholder: '{"order": 1}' }), attributes = el("textarea", { name: "attributes", rows: 3, spellcheck: "false", placeholder: "name=value, one on each line" });
  const key = el("input", { name: "key", autocomplete: "off" }), priority = el("input", { type: "number", min: 0, max: 9, value: "0" }), delay = el("input", { type: "number", min: 0, value: "0" });
  const line = el("code", {}), sent = el("p", { role: "status" });
  const pairs = () => Object.fromEntries(attributes.value.split("\n").filter((one) => one.trim()).map((one) => { const [, left, right] = /^\s*([^=]+?)\s*=(.*)$/.exec(one) ?? []; if (!left) throw new Error(`"${one}" is no attribute, expected name=value`); return [left, right]; }));
  const asCommand = () => {
    let given = {};
    try { given = pairs(); } catch { /* the form says what is wrong when it is sent */ }
    return ["penstock", ...(isQueue ? ["queue"] : []), "publish", quote(name), quote(text.value || "hello"), ...Object.entries(given).map(([left, right]) => `--${isQueue ? "header" : "attribute"} ${quote(`${left}=${right}`)}`), key.value && `--key ${quote(key.value)}`, priority.value !== "0" && `--priority ${priority.value}`, isQueue && delay.value !== "0" && `--delay ${delay.value}s`].filter(Boolean).join(" ");
  };
  const send = actionButton("Publish message", "publish", async () => {
    // The text is sent unchanged: numbers beyond 2^53 must arrive as they were typed.
    const rest = { attributes: pairs(), priority: Number(priority.value), ...(isQueue ? { delay_seconds: Number(delay.value) } : { key: key.value }) };
    const { message_id: id } = await postText(["streams", kind, name, "publish"], JSON.stringify({ text: text.value, ...rest }));
    sent.replaceChildren("Published: ", messageLink(id, 34));
  }, { kind: "main" });
  const form = el("form", { class: "stack", oninput: () => setText(line, asCommand()), onsubmit: (event) => { event.preventDefault(); send.click(); } },
    field("Payload", text), field(isQueue ? "Headers" : "Attributes", attributes),
    el("div", { class: "row" }, !isQueue && field("Ordering key", key), field("Priority, 9 is first", priority), isQueue && field("Delay in seconds", delay)),
    el("div", { class: "head" }, send, el("button", { type: "button", onclick: () => copy(asCommand()) }, "Copy as command"), sent));
  setText(line, asCommand());
  place.replaceChildren(el("section", { class: "card" }, el("header", {}, el("h2", {}, `Publish to ${name}`)), el("div", { class: "body" }, form, el("p", { class: "small soft" }, line))));
}

