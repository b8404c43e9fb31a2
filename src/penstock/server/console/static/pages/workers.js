// Is it the worker? Who holds messages, and since when.

import { watch } from "../app.js";
import { command, el, empty, messageLink, path, setText, time } from "../dom.js";
import { count, instant, plural } from "../format.js";
import { Table } from "../table.js";

export function mount(main) {
  const summary = el("span", { class: "soft small" });
  const running = new Table({
    label: "Running now", key: (row) => `${row.worker} ${row.message_id}`,
    columns: [
      { label: "Task", kind: "name", phone: "name", show: (row) => ({ key: row.message_id, nodes: () => [row.task ? `${row.task} ` : "", messageLink(row.message_id)] }) },
      { label: "Since", kind: "whole", phone: "figure", show: (row) => ({ key: row.since_at, nodes: () => time(instant(row.since_at)) }) },
      { label: "Queue", kind: "name", phone: "figure", show: (row) => ({ key: row.queue, nodes: () => el("a", { href: path(row.kind === "subscription" ? "subscriptions" : "queues", row.queue) }, row.queue) }) },
      { label: "Worker", kind: "name", phone: "line", show: (row) => row.worker ?? "without a name" },
      { label: "Attempt", kind: "number", show: (row) => count(row.attempt) },
      { label: "Lease ends", kind: "whole", show: (row) => ({ key: row.deadline_at, nodes: () => time(instant(row.deadline_at)) }) },
    ],
    none: empty("Nothing runs at the moment."),
  });
  const workers = new Table({
    label: "Workers", key: (row) => row.name ?? "",
    columns: [
      { label: "Worker", kind: "name", phone: "name", show: (row) => row.name ?? "without a name" },
      { label: "Queues", kind: "words", phone: "line", show: (row) => ({ key: row.queues.join(), nodes: () => row.queues.flatMap((name, index) => [index ? ", " : "", el("a", { href: path("queues", name) }, name)]) }) },
      { label: "Holds", kind: "number", phone: "state", show: (row) => plural(row.held, "message") },
    ],
    none: empty("No worker is connected.", command("penstock worker app:worker")),
  });
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Workers"), summary), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Connected")), workers.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Running now")), running.node));
  return watch("workers", {}, (data) => {
    workers.update(data.workers);
    running.update(data.workers.flatMap((worker) => worker.running.map((one) => ({ ...one, worker: worker.name }))).sort((a, b) => (instant(a.since_at) ?? Infinity) - (instant(b.since_at) ?? Infinity)).slice(0, 200));
    setText(summary, data.workers.length ? `${plural(data.workers.length, "worker")}${data.is_bounded ? ", from the oldest messages of each queue" : ""}` : "");
  });
}
