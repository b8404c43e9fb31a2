// The common parts of queues and subscriptions: their numbers, why messages wait, and their actions.

import { post } from "../api.js";
import { sparkline, stackedBar } from "../chart.js";
import { actionButton, destroy, menuButton } from "../dialog.js";
import { command, el, empty, messageLink, path, setText, state, time, withIds, withQuery } from "../dom.js";
import { navigate } from "../app.js";
import { age, count, instant, plural, quote, rate, short, span } from "../format.js";
import { Table } from "../table.js";

const WORDS = { busy: ["working", "busy"], empty: ["ok", "empty"], stuck: ["dead", "stuck"], growing: ["growing"], paused: ["paused"], detached: ["detached"] };
const seen = new Map();
const SEEN = 60;

export const stateOf = (row) => state(...(WORDS[row.state] ?? [row.state]));

/** Why the oldest message is still there, with links to what keeps it. */
export function why(reason) {
  if (!reason) return { key: "", nodes: () => null };
  // A time in the text is shown as a countdown instead.
  const text = reason.until_at ? reason.text.replace(/ until .*$/, "") : reason.text;
  const message = (content) => el("a", { class: "why", href: path("message", reason.message_id), title: "Open this message" }, content);
  return { key: `${text} ${reason.until_at} ${reason.message_id}`, nodes: () => [...withIds(text).map((part) => (typeof part === "string" ? part && message(part) : part)), reason.until_at && message([reason.reason === "leased" ? ", lease ends " : ", due ", time(instant(reason.until_at))])] };
}

/** Remember the rates of a snapshot: the sparklines are made of them. */
export function remember(kind, rows) {
  for (const row of rows) {
    const key = `${kind} ${row.name}`, values = seen.get(key) ?? seen.set(key, []).get(key);
    values.push(row.out_rate);
    if (values.length > SEEN) values.shift();
  }
}

/** Ready by priority: high, normal, low. */
const priorities = (row) => [["p3", "priority 7 to 9", 7, 9], ["p2", "priority 4 to 6", 4, 6], ["p1", "priority 0 to 3", 0, 3]].map(([kind, name, from, to]) => ({ kind, name, value: (row.priorities ?? []).reduce((sum, [priority, size]) => sum + (priority >= from && priority <= to ? size : 0), 0) }));

export const columns = (kind) => [
  { label: kind === "queues" ? "Queue" : "Subscription", kind: "name", phone: "name", sort: "name", show: (row) => ({ key: row.name, nodes: () => [el("a", { href: path(kind, row.name) }, row.name), row.topic && el("div", { class: "label" }, "of ", el("a", { href: path("topics", row.topic) }, row.topic))] }) },
  { label: "State", kind: "whole", phone: "state", show: (row) => ({ key: row.state, nodes: () => stateOf(row) }) },
  { label: "Oldest", kind: "number", phone: "figure", sort: "oldest", isDefault: true, show: (row) => (row.oldest_seconds === null ? "–" : age(row.oldest_seconds * 1000)) },
  { label: "Why it waits", kind: "words", phone: "line", show: (row) => why(row.why) },
  { label: "Ready", kind: "number", phone: "figure", sort: "ready", show: (row) => (row.priorities?.length > 1 ? { key: JSON.stringify(row.priorities), nodes: () => [short(row.ready), stackedBar(priorities(row))] } : short(row.ready)) },
  { label: "In flight", kind: "number", sort: "in_flight", show: (row) => short(row.in_flight) },
  { label: "Delayed", kind: "number", sort: "delayed", show: (row) => short(row.delayed) },
  { label: "Dead", kind: "number", phone: "figure", sort: "dead", show: (row) => (row.dead && kind === "queues" ? { key: row.dead, nodes: () => el("a", { class: "bad", href: withQuery({ source: `queue:${row.name}` }, path("dead")) }, short(row.dead)) } : short(row.dead)) },
  { label: "In/s", kind: "number", sort: "in_rate", show: (row) => rate(row.in_rate) },
  { label: "Out/s", kind: "number", sort: "out_rate", show: (row) => {
    const values = seen.get(`${kind} ${row.name}`) ?? [];
    return values.some(Boolean) ? { key: `${values.length} ${values.join()}`, nodes: () => [sparkline(values, "out per second, the last minute", "spark roomy"), " ", rate(row.out_rate)] } : rate(row.out_rate);
  } },
  { label: "Consumers", kind: "number", sort: "consumers", show: (row) => count(row.consumers) },
  { label: "Actions", kind: "actions", show: (row) => ({ key: `${row.name} ${row.state === "paused"}`, nodes: () => actions(kind, row) }) },
];

/** Pause or resume, and the menu with what destroys. */
export function actions(kind, row, { isPage = false } = {}) {
  const isPaused = row.state === "paused", noun = kind === "queues" ? "queue" : "subscription", at = (verb) => [kind, row.name, verb];
  const items = () => [
    kind === "queues" && { label: "Purge…", verb: "manage", isHarmful: true, run: () => destroy({ title: `Purge ${row.name}`, text: `Removes everything that waits in the queue: ${plural(row.backlog, "message")} now. Dead letters stay. There is no undo.`, label: "Purge", name: row.name, run: ({ confirm }) => post(at("purge"), { confirm }), done: (result) => `${plural(result.purged, "message")} removed from ${row.name}` }) },
    { label: "Delete…", verb: "manage", isHarmful: true, run: () => destroy({ title: `Delete ${row.name}`, text: `Deletes the ${noun} with everything in it: ${plural(row.backlog, "message")}${kind === "queues" ? ` and ${plural(row.dead, "dead letter")}` : ""}. There is no undo.`, label: "Delete", name: row.name, run: ({ confirm }) => post(at("delete"), { confirm }), done: `${row.name} is deleted` }).then((done) => { if (done && isPage) navigate(path(kind)); }) },
  ].filter(Boolean);
  return [
    actionButton(isPaused ? "Resume" : "Pause", "manage", () => post(at(isPaused ? "resume" : "pause")), { kind: isPage && isPaused ? "main" : "", done: isPaused ? `${row.name} delivers again` : `${row.name} is paused` }), " ",
    menuButton(`More for ${row.name}`, items),
  ];
}

/** The tiles of one queue or subscription. */
export function tiles(row, totals) {
  return [
    [row.oldest_seconds === null ? "–" : age(row.oldest_seconds * 1000), "oldest"], [short(row.ready), "ready"], [short(row.in_flight), "in flight"], [short(row.delayed), "delayed"],
    [short(row.dead), "dead", row.dead ? "bad" : ""], [rate(row.in_rate), "in per second"], [rate(row.out_rate), "out per second"], [totals.average_wait_seconds ? span(totals.average_wait_seconds * 1000) : "–", "average wait"],
  ];
}

export const tileNode = ([value, name, mood]) => el("div", { class: "tile" }, el("b", { class: mood || null }, value), el("span", {}, name));

export function patchTile(node, [value, , mood]) {
  setText(node.firstChild, value);
  node.firstChild.className = mood ?? "";
}

/** The oldest messages and what keeps each of them. */
export const oldestTable = (kind) => new Table({
  label: "The oldest messages that are not settled", key: (row) => row.message_id,
  columns: [
    { label: "Message", kind: "name", phone: "name", show: (row) => ({ key: row.message_id, nodes: () => messageLink(row.message_id) }) },
    { label: "Why it is still here", kind: "words", phone: "line", show: (row) => why(row.why) },
    { label: "Published", kind: "whole", phone: "figure", show: (row) => ({ key: row.published_at, nodes: () => time(instant(row.published_at)) }) },
    kind === "subscriptions" && { label: "Key", kind: "name", show: (row) => row.key || "–" },
    { label: "Attempts", kind: "number", phone: "figure", show: (row) => count(row.attempts) },
  ],
  none: empty("Nothing waits here."),
});

/** Who holds messages. */
export const consumersTable = (kind, name) => new Table({
  label: "Consumers", key: (row) => row.name ?? "",
  columns: [
    { label: "Consumer", kind: "name", phone: "name", show: (row) => row.name ?? "without a name" },
    { label: "Holds", kind: "number", phone: "figure", show: (row) => count(row.held) },
    { label: "First lease ends", kind: "whole", phone: "figure", show: (row) => ({ key: row.first_deadline_at, nodes: () => time(instant(row.first_deadline_at)) }) },
  ],
  none: empty("No consumer holds a message.", command(kind === "queues" ? `penstock queue consume ${quote(name)}` : `penstock pull ${quote(name)} --follow`)),
});

/** Settings as a list of names and values. */
export function settingsList(settings) {
  const shown = (value) => (value === null || value === "" ? el("span", { class: "soft" }, "not set") : typeof value === "object" ? el("code", {}, JSON.stringify(value)) : String(value));
  return el("dl", { class: "facts" }, ...Object.entries(settings).flatMap(([name, value]) => [el("dt", {}, el("code", {}, name)), el("dd", {}, shown(value))]));
}

