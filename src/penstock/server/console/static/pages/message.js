// The life of a message, and why it waits: verdict, lanes, events, payload.

import { post } from "../api.js";
import { setTitle, watch } from "../app.js";
import { actionButton } from "../dialog.js";
import { command, copyButton, el, facts, keyed, messageLink, path, setContent, setText, settings, state, svg, time, withIds, withQuery } from "../dom.js";
import { count, exact, instant, middle, plural, span, visible, words } from "../format.js";
import { drawBar, moments, rows, scale } from "../timeline.js";
import { payloadView } from "./payload.js";

const WIDTH = 860, NARROW = 320;
const MOODS = { ok: "good", good: "good", warn: "warn", bad: "bad" };
const EVENT_STATES = { published: "waiting", leased: "leased", acked: "done", dead_lettered: "dead", nacked: "delayed", expired: "delayed", dropped: "gone", redriven: "waiting" };

export function mount(main, { parts: [id = ""] }) {
  const head = el("p", {}), act = el("span", {}), verdict = el("div", { class: "verdict", role: "status" }, head, act);
  const reading = el("p", { class: "small soft", role: "status" });
  const lanes = el("div", {}), body = el("tbody"), related = el("ul", { class: "list" }), content = el("div", { class: "body" }), line = el("span", {});
  const relatedCard = el("section", { class: "card", hidden: true }, el("header", {}, el("h2", {}, "Related")), related);
  const lanesCard = el("section", { class: "card" }, el("header", {}, el("h2", {}, "Where it is"), legend()), lanes);
  const table = el("table", { class: "rows", "aria-label": "Events" }, el("thead", {}, el("tr", {}, ...["Time", "After", "Event", "Where", "Attempt", "Who", "Detail"].map((text, index) => el("th", { scope: "col", class: [1, 4].includes(index) ? "number" : null }, text)))), body);
  const events = el("section", { class: "card" }, el("header", {}, el("h2", {}, "What happened"), el("div", { class: "tools roomy" }, line)), el("div", { class: "scroll" }, table));
  const parts = el("div", { class: "wide" }, el("div", { class: "column" }, lanesCard, events), el("div", { class: "column" }, el("section", { class: "card" }, el("header", {}, el("h2", {}, "Message")), content), relatedCard));
  main.replaceChildren(
    el("div", { class: "head" }, el("h1", { class: "id", title: id }, el("span", { class: "unseen" }, "Message "), visible(middle(id, 34))), copyButton(id, "Copy the id")), verdict, reading, parts);
  setTitle(`Message ${middle(id, 12)}`);
  setText(head, "Reading its life…");
  const opened = new Set();

  return watch("message", { id }, (data) => {
    verdict.className = `verdict ${data.verdict.state === "leased" ? "accent" : MOODS[data.verdict.level] ?? ""}`;
    const now = settings.now();
    setContent(head, JSON.stringify([data.verdict, data.lanes.map((lane) => lane.until_at)]), () => [el("span", {}, state(GLYPHS[data.verdict.state] ?? "waiting", ""), withIds(visible(data.verdict.text))), until(data.lanes)]);
    setContent(act, JSON.stringify(data.verdict.action), () => action(data.verdict.action, id));
    const { log } = data;
    setText(reading, !data.is_known && log.is_complete ? "An id has 30 characters, 0 to 9 and a to f, or is the id that the router was given. Old events may have been removed by retention." : log.is_complete ? (log.is_torn ? `Its beginning was removed by retention: the event log begins on ${exact(instant(log.begins_at), settings.isUtc)}.` : "") : `Reading the event log: up to ${exact(instant(log.read_to_at), settings.isUtc).slice(0, 19)}, ${Math.round(100 * log.progress)} %`);
    parts.hidden = !data.is_known;
    if (!data.is_known) return;
    setContent(line, data.command, () => command(data.command));
    showLanes(lanes, data, now);
    lanesCard.hidden = !data.lanes.length;
    table.classList.toggle("one-lane", data.lanes.length < 2);
    showEvents(body, data, opened);
    relatedCard.hidden = !data.related.length;
    keyed(related, data.related, (one) => `${one.kind} ${one.message_id}`, (one) => el("li", {}, el("span", { class: "soft kind" }, words(one.kind)), el("span", {}, one.text), messageLink(one.message_id, 14)));
    setContent(content, JSON.stringify(data.message), () => about(data.message));
  }, (error) => { setText(head, error.message); verdict.className = "verdict bad"; parts.hidden = true; });
}

const GLYPHS = { waiting: "waiting", leased: "leased", delayed: "delayed", paused: "paused", dead: "dead", done: "done", gone: "gone", unknown: "idle" };

/** The next moment at which something happens by itself, counted down. */
function until(lanes) {
  const next = lanes.filter((lane) => lane.until_at && !lane.is_ended).map((lane) => [instant(lane.until_at), lane]).sort((a, b) => a[0] - b[0])[0];
  if (!next || next[0] < settings.now()) return null;
  return el("small", {}, next[1].state === "leased" ? "The lease ends " : "The next attempt is ", time(next[0]));
}

function action(wish, id) {
  if (!wish) return null;
  if (wish.kind === "open") return el("a", { class: "button", href: path("message", wish.message_id) }, wish.text);
  const place = wish.queue ? ["queues", wish.queue] : ["subscriptions", wish.subscription];
  if (wish.kind === "resume") return actionButton(wish.text, "manage", () => post([...place, "resume"]), { kind: "main", done: `${place[1]} delivers again` });
  if (wish.kind === "redrive") return actionButton(wish.text, "manage", async () => {
    const found = await post(["dead", "preview"], { source: wish.queue ? `queue:${wish.queue}` : `topic:${wish.topic ?? ""}`, group: null, where: null, message_ids: [wish.message_id ?? id] });
    return post(["dead", "redrive"], { selection: found.selection, limit: null, rate: null });
  }, { kind: "main", done: (job) => `${plural(job.moved || job.total, "message")} on the way back to ${job.source.name}` });
  return null;
}

const legend = () => el("div", { class: "legend" }, ...[["waiting", "waiting"], ["leased", "leased"], ["delayed", "delayed"]].map(([kind, text]) => el("span", {}, svg("svg", { class: "key", viewBox: "0 0 22 10", "aria-hidden": "true" }, svg("rect", { class: kind, x: 1, y: 1, width: 20, height: 8, rx: 2 })), text)));

function showLanes(place, data, now) {
  const width = matchMedia("(max-width: 760px)").matches ? NARROW : WIDTH;
  const open = data.lanes.filter((lane) => !lane.is_ended), isAll = data.lanes.length < 3;
  const axis = scale(moments(data.lanes, now), width);
  keyed(place, data.lanes, (lane) => `${lane.kind} ${lane.name} ${lane.is_ended && !isAll && open.length > 0}`, (lane) => {
    const title = [el("a", { href: path(lane.kind === "queue" ? "queues" : "subscriptions", lane.name) }, el("b", {}, lane.name)), el("span", { class: "lane-state" }), el("span", { class: "when" })];
    return lane.is_ended && !isAll && open.length > 0 ? el("details", { class: "lane" }, el("summary", {}, ...title), el("div", { class: "lane-bar" })) : el("div", { class: "lane" }, el("header", {}, ...title), el("div", { class: "lane-bar" }));
  }, (node, lane) => {
    setContent(node.querySelector(".lane-state"), `${lane.state} ${lane.text}`, () => [state(GLYPHS[lane.state] ?? "idle", lane.state), el("span", { class: "soft small" }, " ", withIds(visible(lane.text.replace(/^\w+: /, "").replace(/ at [\d-]+ [\d:.]+ UTC/, ""))))]);
    setText(node.querySelector(".when"), lane.attempts ? plural(lane.attempts, "attempt") : "");
    setContent(node.querySelector(".lane-bar"), lane.is_ended ? JSON.stringify([lane, data.lanes.length, width]) : `${JSON.stringify(lane)} ${Math.floor(now / 1000)} ${width}`, () => (lane.segments.length ? drawBar(lane, axis, width, now) : null));
  });
}

function showEvents(body, data, opened) {
  const all = rows(data.events, data.folds).flatMap((row) => (row.events && opened.has(row.index) ? [row, ...row.events.map((event, at) => ({ event, index: `${row.index}.${at}` }))] : [row]));
  keyed(body, all, (row) => `${row.events ? "fold" : "one"} ${row.index} ${row.events?.length ?? ""}`, (row) => (row.events ? foldRow(row, () => { opened[opened.has(row.index) ? "delete" : "add"](row.index); showEvents(body, data, opened); }) : eventRow(row.event)));
}

function foldRow(row, toggle) {
  const button = el("button", { type: "button", class: "plain", "aria-expanded": "false", onclick: () => { toggle(); button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false")); } }, row.text);
  const [first, last] = [row.events[0], row.events.at(-1)];
  return el("tr", { class: "fold" }, el("td", { class: "whole", "data-phone": "figure" }, time(instant(first.at), true)), el("td", { class: "number", "data-phone": "hide" }, since(first)), el("td", { colspan: 5, "data-phone": "line" }, button, el("span", { class: "soft" }, ` over ${span(instant(last.at) - instant(first.at))}`)));
}

const since = (event) => (event.after_seconds === null ? "" : `+${span(event.after_seconds < 1 ? event.after_seconds * 1000 : Math.round(event.after_seconds * 1000))}`);

function eventRow(event) {
  const cells = [
    ["whole", "figure", time(instant(event.at), true)], ["number", "figure", since(event)], ["whole", "name", state(EVENT_STATES[event.kind] ?? (event.detail?.outcome === "success" ? "done" : event.kind === "attempted" ? "failed" : ""), words(event.kind))],
    [event.where?.length > 18 ? "name" : "whole", "figure", event.where ?? "–"], ["number", "hide", event.attempt === null ? "–" : count(event.attempt)], [event.who?.length > 18 ? "name" : "whole", "hide", event.who ? visible(event.who) : "–"], ["words", "line", visible(event.text ?? "")],
  ];
  return el("tr", {}, ...cells.map(([mood, phone, shown]) => el("td", { class: mood, "data-phone": phone, "data-label": "" }, shown)));
}

function about(message) {
  if (!message) return el("p", { class: "soft small" }, "The message itself is no longer in the log: only what happened to it is.");
  const home = path(message.kind === "queue" ? "queues" : "topics", message.name);
  return [
    facts([[message.kind === "queue" ? "Queue" : "Topic", el("a", { href: home }, message.name)], ["Offset", el("a", { href: withQuery({ tab: "browse", at: message.offset }, home) }, count(message.offset))], ["Published", time(instant(message.published_at))], ["Key", message.key && el("a", { href: withQuery({ tab: "browse", key: message.key }, home) }, visible(message.key))], ["Priority", message.priority || null]]),
    ...payloadView(message, ["streams", message.kind, message.name, "messages", message.offset, "raw"], { isClosed: matchMedia("(max-width: 760px)").matches }),
  ];
}

