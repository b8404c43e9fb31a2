// Who is connected to the hub, and who reads too slowly.

import { watch } from "../app.js";
import { el, empty, keyed, time } from "../dom.js";
import { bytes, count, instant, rate, short, visible } from "../format.js";
import { Table } from "../table.js";
import { patchTile, tileNode } from "./backlog.js";

export function mount(main) {
  const tiles = el("div", { class: "tiles" });
  const sessions = new Table({
    label: "Connections", key: (row) => row.id,
    columns: [
      { label: "Actor", kind: "name", phone: "name", show: (row) => row.actor ?? row.id },
      { label: "Connected", kind: "whole", phone: "figure", show: (row) => ({ key: row.since_at, nodes: () => time(instant(row.since_at)) }) },
      { label: "Subscriptions", kind: "number", phone: "figure", show: (row) => count(row.subscriptions) },
      { label: "Waiting to be sent", kind: "number", phone: "figure", show: (row) => bytes(row.queued_bytes) },
    ],
    none: empty("Nobody is connected to the hub.", el("a", { class: "button", href: "/hub" }, "Open the hub's page")),
  });
  const topics = new Table({
    label: "Topics of the hub", key: (row) => row.name,
    columns: [
      { label: "Topic", kind: "name", phone: "name", show: (row) => visible(row.name) },
      { label: "Subscribers", kind: "number", phone: "state", show: (row) => count(row.subscribers) },
    ],
    none: empty("Nobody subscribes to a topic of the hub."),
  });
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Hub"), el("div", { class: "tools" }, el("a", { class: "button", href: "/hub" }, "Listen and publish"))), tiles,
    el("div", { class: "two" }, el("section", { class: "card" }, el("header", {}, el("h2", {}, "Connections, slowest readers first")), sessions.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Topics")), topics.node)));
  return watch("hub", {}, (data) => {
    keyed(tiles, [[short(data.connections), "connections"], [short(data.actors), "actors"], [short(data.topics), "topics"], ...Object.entries(data.rates ?? {}).map(([name, value]) => [rate(value), `${name.replaceAll("_", " ")} per second`])], (tile) => tile[1], tileNode, patchTile);
    sessions.update([...data.sessions].sort((a, b) => (b.queued_bytes ?? 0) - (a.queued_bytes ?? 0)));
    topics.update(data.topic_rows);
  });
}
