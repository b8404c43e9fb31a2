// How far are the readers outside the broker: Spark jobs and others that keep a cursor.

import { watch } from "../app.js";
import { command, el, empty, time } from "../dom.js";
import { count, instant, span } from "../format.js";
import { Table } from "../table.js";

export function mount(main) {
  const cursors = new Table({
    label: "Cursors", key: (row) => row.name,
    columns: [
      { label: "Cursor", kind: "name", phone: "name", show: (row) => row.name },
      { label: "Lag", kind: "number", phone: "figure", show: (row) => count(row.lag) },
      { label: "Streams", kind: "number", phone: "figure", show: (row) => count(row.streams.length) },
      { label: "Holds messages", kind: "whole", phone: "figure", show: (row) => (row.holds ? "yes" : "no") },
      { label: "Last heard of", kind: "whole", phone: "figure", show: (row) => ({ key: row.updated_at, nodes: () => time(instant(row.updated_at)) }) },
    ],
    none: empty("No reader keeps a cursor yet. The archive job is one:", command("penstock pipeline run --lake lake")),
  });
  const streams = new Table({
    label: "Streams of the cursors", key: (row) => `${row.cursor} ${row.stream}`,
    columns: [
      { label: "Stream", kind: "name", phone: "name", show: (row) => row.stream },
      { label: "Cursor", kind: "name", phone: "line", show: (row) => row.cursor },
      { label: "Offset", kind: "number", phone: "figure", show: (row) => count(row.offset) },
      { label: "Lag", kind: "number", phone: "figure", show: (row) => count(row.lag) },
      { label: "Read up to", kind: "whole", phone: "figure", show: (row) => ({ key: row.read_to_at, nodes: () => time(instant(row.read_to_at)) }) },
    ],
    none: empty("No streams."),
  });
  const metrics = new Table({
    label: "Latest metrics", key: (row) => `${row.window_end} ${row.stream} ${row.subscription} ${row.consumer}`,
    columns: [
      { label: "Window ended", kind: "whole", phone: "state", show: (row) => ({ key: row.window_end, nodes: () => time(instant(row.window_end)) }) },
      { label: "Of", kind: "name", phone: "name", show: (row) => [row.stream, row.subscription, row.consumer].filter(Boolean).join(" → ") },
      { label: "Published", kind: "number", phone: "figure", show: (row) => count(row.published) },
      { label: "Delivered", kind: "number", show: (row) => count(row.delivered) },
      { label: "Acked", kind: "number", phone: "figure", show: (row) => count(row.acked) },
      { label: "Failed", kind: "number", phone: "figure", show: (row) => count(row.nacked + row.expired) },
      { label: "Dead", kind: "number", show: (row) => count(row.dead_lettered) },
      { label: "Wait, p95", kind: "number", show: (row) => (row.wait_p95_ms === null ? "–" : span(row.wait_p95_ms)) },
    ],
    none: empty("The metrics job has published nothing yet."),
  });
  const streamsCard = el("section", { class: "card" }, el("header", {}, el("h2", {}, "Streams, most behind first")), streams.node);
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Pipeline")), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Cursors"), el("span", { class: "small soft" }, "a cursor that holds keeps messages from being removed")), cursors.node), streamsCard, el("section", { class: "card" }, el("header", {}, el("h2", {}, "Latest metrics")), metrics.node));
  return watch("pipeline", {}, (data) => {
    metrics.update(data.metrics);
    cursors.update([...data.cursors].sort((a, b) => b.lag - a.lag));
    const all = data.cursors.flatMap((cursor) => cursor.streams.map((one) => ({ ...one, cursor: cursor.name })));
    streamsCard.hidden = !all.length;
    streams.update(all.sort((a, b) => b.lag - a.lag).slice(0, 200));
  });
}
