// The hub: connected clients, slow readers, and the messages of a topic.

import { token } from "../api.js";
import { watch } from "../app.js";
import { el, empty, keyed, setText, time } from "../dom.js";
import { count, instant, short, visible, words } from "../format.js";
import { Table } from "../table.js";
import { patchTile, tileNode } from "./backlog.js";

const KEPT = 100;

/** JSON in which integers beyond 2^53 keep their digits, where the browser can do that. */
const parse = (text) => JSON.parse(text, (_, value, { source } = {}) => (Number.isInteger(value) && !Number.isSafeInteger(value) && source && JSON.rawJSON ? JSON.rawJSON(source) : value));

/** The messages of a topic, as they come: {node, end}. */
function inspector({ payloads }) {
  const note = el("p", { class: "small soft", role: "status" }), rows = el("ul", { class: "list" }), field = el("input", { type: "search", name: "topic", placeholder: "orders/#", "aria-label": "Topic or pattern", required: true, spellcheck: "false", autocomplete: "off" });
  const button = el("button", { type: "submit", class: "main" }, "Listen");
  let hub = null, seen = 0;
  const show = (text, isBad) => { setText(note, text); note.className = `small ${isBad ? "bad" : "soft"}`; };
  const stop = () => { hub?.close(); hub = null; button.textContent = "Listen"; };
  const start = async (topic) => {
    button.textContent = "Stop";
    show("Connecting…");
    const { HubClient } = await import("/hub/client.js"), mine = (hub = new HubClient(location.origin, { token: token.get() ?? undefined, parse, onState: ({ state, problem }) => mine === hub && state === "waiting" && show(problem, true) }));
    try {
      await mine.connect();
      await mine.subscribe(topic, {
        onMessage(message) {
          if (mine !== hub) return;
          seen += 1;
          rows.prepend(el("li", {}, time((message.sentAt ?? new Date()).getTime(), true), el("span", {}, el("b", {}, visible(message.topic ?? "")), ` ${visible(message.type)} `, el("span", { class: "soft" }, visible(message.sender))), el("code", {}, visible(JSON.stringify(message.data) ?? "").slice(0, 2000))));
          while (rows.children.length > KEPT) rows.lastChild.remove();
          show(`${count(seen)} since you started to listen, newest first${seen > KEPT ? `, the last ${KEPT} are shown` : ""}.`);
        },
      }).ready;
      if (mine === hub && !seen) show(`Messages of ${topic} appear here.`);
    } catch (error) {
      if (mine === hub) { stop(); show(error.message, true); }
    }
  };
  const body = payloads === "hidden" ? el("p", { class: "small soft" }, "Payloads are hidden on this server, by the setting console_payloads.") : [el("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    if (hub) { stop(); show("Stopped."); return; }
    rows.replaceChildren();
    seen = 0;
    start(field.value.trim());
  } }, el("div", { class: "grow" }, field), button), note];
  return { node: el("section", { class: "card" }, el("header", {}, el("h2", {}, "Listen to a topic"), el("div", { class: "tools" }, el("a", { class: "button", href: "/hub" }, "Publish, and more"))), el("div", { class: "body" }, body), rows), end: stop };
}

export function mount(main, { session }) {
  const tiles = el("div", { class: "tiles" });
  const topics = new Table({
    label: "Topics of the hub", key: (row) => row.name,
    columns: [
      { label: "Topic", kind: "name", phone: "name", show: (row) => visible(row.name) },
      { label: "Subscribers", kind: "number", phone: "state", show: (row) => count(row.subscribers) },
    ],
    none: empty("No client is connected to the hub, or subscribed to a topic.", el("a", { class: "button", href: "/hub" }, "Open the hub's page")),
  });
  const actors = new Table({
    label: "Actors", key: (row) => row.address,
    columns: [
      { label: "Actor", kind: "name", phone: "name", show: (row) => visible(row.address) },
      { label: "Can", kind: "words", phone: "line", show: (row) => visible(row.capabilities.join(", ")) || "–" },
      { label: "Subscriptions", kind: "number", phone: "figure", show: (row) => count(row.subscriptions) },
      { label: "Since", kind: "whole", phone: "figure", show: (row) => ({ key: row.since_at, nodes: () => time(instant(row.since_at)) }) },
    ],
    none: empty("No actor is registered."),
  });
  const errors = new Table({
    label: "Errors of the hub", key: (row) => row[0],
    columns: [
      { label: "Error", kind: "name", phone: "name", show: ([name]) => words(name) },
      { label: "How often", kind: "number", phone: "state", show: ([, times]) => count(times) },
    ],
    none: empty("No errors since the server started."),
  });
  const listening = inspector(session);
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Hub")), tiles,
    el("div", { class: "two" }, el("section", { class: "card" }, el("header", {}, el("h2", {}, "Topics with subscribers")), topics.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Actors")), actors.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Errors")), errors.node), listening.node));
  const end = watch("hub", {}, (data) => {
    keyed(tiles, [[short(data.connections), "connections"], [short(data.actors), "actors"], [short(data.topics), "topics"], [short(data.slow_readers_total), "slow readers", data.slow_readers_total ? "warn" : ""], [short(data.received_total), "received"], [short(data.sent_total), "sent"], [short(data.opened_total), "connected so far"]], (tile) => tile[1], tileNode, patchTile);
    topics.update(data.topic_rows);
    actors.update(data.actor_rows);
    errors.update(Object.entries(data.errors).sort((a, b) => b[1] - a[1]));
  });
  return () => { end(); listening.end(); };
}
