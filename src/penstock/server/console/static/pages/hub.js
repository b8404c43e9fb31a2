// Who is connected to the hub, and whether somebody reads too slowly.

import { watch } from "../app.js";
import { el, empty, keyed, time } from "../dom.js";
import { count, instant, short, visible, words } from "../format.js";
import { Table } from "../table.js";
import { patchTile, tileNode } from "./backlog.js";

export function mount(main) {
  const tiles = el("div", { class: "tiles" });
  const topics = new Table({
    label: "Topics of the hub", key: (row) => row.name,
    columns: [
      { label: "Topic", kind: "name", phone: "name", show: (row) => visible(row.name) },
      { label: "Subscribers", kind: "number", phone: "state", show: (row) => count(row.subscribers) },
    ],
    none: empty("Nobody is connected to the hub, or listens to a topic of it.", el("a", { class: "button", href: "/hub" }, "Open the hub's page")),
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
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Hub"), el("div", { class: "tools" }, el("a", { class: "button", href: "/hub" }, "Listen and publish"))), tiles,
    el("div", { class: "two" }, el("section", { class: "card" }, el("header", {}, el("h2", {}, "Topics with subscribers")), topics.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Actors")), actors.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Errors")), errors.node)));
  return watch("hub", {}, (data) => {
    keyed(tiles, [[short(data.connections), "connections"], [short(data.actors), "actors"], [short(data.topics), "topics"], [short(data.slow_readers_total), "slow readers", data.slow_readers_total ? "warn" : ""], [short(data.received_total), "received"], [short(data.sent_total), "sent"], [short(data.opened_total), "connected so far"]], (tile) => tile[1], tileNode, patchTile);
    topics.update(data.topic_rows);
    actors.update(data.actor_rows);
    errors.update(Object.entries(data.errors).sort((a, b) => b[1] - a[1]));
  });
}
