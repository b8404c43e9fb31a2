// Workers: which messages they hold, and since when.

import { watch } from "../app.js";
import { command, el, empty, messageLink, path, setText, settings, time } from "../dom.js";
import { clock, count, instant, percent, plural, span } from "../format.js";
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
    none: empty("No message is being processed."),
  });
  const workers = new Table({
    label: "Workers", key: (row) => row.name ?? "",
    columns: [
      { label: "Worker", kind: "name", phone: "name", show: (row) => row.name ?? "without a name" },
      { label: "Queues", kind: "words", phone: "line", show: (row) => ({ key: row.queues.join(), nodes: () => row.queues.flatMap((name, index) => [index ? ", " : "", el("a", { href: path("queues", name) }, name)]) }) },
      { label: "Connection", kind: "name", show: (row) => row.connection ?? "–" },
      { label: "Holds", kind: "number", phone: "state", show: (row) => plural(row.held, "message") },
    ],
    none: empty("No worker is connected.", command("penstock worker app:worker")),
  });
  const queue = (name) => ({ key: name, nodes: () => el("a", { href: path("queues", name) }, name) });
  const ends = [
    { label: "Failures", kind: "number", phone: "state", show: (row) => percent(row.failed, row.done + row.failed) },
    { label: "Done", kind: "number", phone: "figure", show: (row) => count(row.done) },
    { label: "Failed", kind: "number", phone: "figure", show: (row) => count(row.failed) },
    { label: "Dead", kind: "number", phone: "figure", show: (row) => count(row.dead) },
  ];
  const took = (seconds) => span(seconds === null ? null : seconds * 1000);
  const covers = el("span");
  const tasks = new Table({
    label: "Tasks", key: (row) => `${row.queue} ${row.task}`,
    columns: [
      { label: "Task", kind: "name", phone: "name", show: (row) => row.task ?? "without a name" },
      { label: "Queue", kind: "name", phone: "line", show: (row) => queue(row.queue) },
      ...ends,
      { label: "p50", kind: "number", show: (row) => took(row.p50_seconds) },
      { label: "p95", kind: "number", show: (row) => took(row.p95_seconds) },
    ],
    none: empty("No delivery has ended in this time."),
  });
  const outcomes = new Table({
    label: "How deliveries ended", key: (row) => row.queue,
    columns: [{ label: "Queue", kind: "name", phone: "name", show: (row) => queue(row.queue) }, ...ends],
    none: empty("No delivery has ended yet."),
  });
  const card = (text, node, note = null) => el("section", { class: "card" }, el("header", {}, el("h2", {}, text), note && el("span", { class: "small soft" }, note)), node);
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Workers"), summary), card("Workers", workers.node), card("Running now", running.node), card("By task", tasks.node, covers), card("By queue", outcomes.node, "since the queue was created; a delivery that failed may have succeeded later"));
  return watch("workers", {}, (data) => {
    workers.update(data.workers);
    outcomes.update(data.outcomes);
    tasks.update(data.tasks.rows);
    setText(covers, `of the last ${plural(data.tasks.deliveries, "delivery", "deliveries")}, since ${clock(instant(data.tasks.since_at), settings.isUtc)}`);
    running.update(data.workers.flatMap((worker) => worker.running.map((one) => ({ ...one, worker: worker.name }))).sort((a, b) => (instant(a.since_at) ?? Infinity) - (instant(b.since_at) ?? Infinity)).slice(0, 200));
    setText(summary, data.workers.length ? `${plural(data.workers.length, "worker")}${data.is_bounded ? ", from the oldest messages of each queue" : ""}` : "");
  });
}
