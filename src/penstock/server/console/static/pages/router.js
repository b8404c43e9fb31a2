// The router: targets, pools and running deliveries.

import { post } from "../api.js";
import { watch } from "../app.js";
import { meter } from "../chart.js";
import { actionButton, destroy, menuButton } from "../dialog.js";
import { command, el, empty, keyed, messageLink, path, setText, state, time, withQuery } from "../dom.js";
import { count, instant, percent, plural, rate, span, visible, words } from "../format.js";
import { Table } from "../table.js";

const BREAKERS = { CLOSED: ["closed", "closed"], OPEN: ["open", "open"], HALF_OPEN: ["half open", "half open"] };

export function mount(main) {
  const summary = el("span", {}), warnings = el("ul", { class: "list" }), warningCard = el("section", { class: "card", hidden: true }, el("header", {}, el("h2", {}, "Warnings")), warnings);
  const targets = new Table({
    label: "Targets", key: (row) => row.name,
    columns: [
      { label: "Target", kind: "name", phone: "name", show: (row) => row.name },
      { label: "Breaker", kind: "whole", phone: "state", show: (row) => ({ key: `${row.state} ${row.paused_until_at} ${row.next_try_at}`, nodes: () => (row.paused_until_at ? [state("paused"), " at its wish, until ", time(instant(row.paused_until_at))] : [state(...BREAKERS[row.state]), row.next_try_at && [", next try ", time(instant(row.next_try_at))]].flat()) }) },
      { label: "Failures", kind: "number", phone: "figure", show: (row) => (row.failure_rate === null ? "–" : percent(row.failure_rate, 1)) },
      { label: "Calls", kind: "number", phone: "figure", show: (row) => count(row.succeeded + row.failed) },
      { label: "Failed", kind: "number", phone: "figure", show: (row) => count(row.failed) },
      { label: "Held back", kind: "number", show: (row) => count(row.rejected) },
      { label: "Last error", kind: "words", phone: "line", show: (row) => visible(row.error) || "–" },
      { label: "Actions", kind: "actions", phone: "figure", show: (row) => ({ key: `${row.name} ${row.state}`, nodes: () => row.state !== "CLOSED" && actionButton("Reset", "manage", () => post(["router", "reset-breaker"], { target: row.name }), { done: "The breaker is closed" }) }) },
    ],
    none: empty("The router has not called any target yet.", command("penstock router --help")),
  });
  const pools = new Table({
    label: "Pools", key: (row) => row.code,
    columns: [
      { label: "Pool", kind: "name", phone: "name", show: (row) => row.code },
      { label: "State", kind: "whole", phone: "state", show: (row) => ({ key: row.is_paused, nodes: () => state(row.is_paused ? "paused" : row.active ? "working" : "idle") }) },
      { label: "Active", kind: "number", phone: "figure", show: (row) => ({ key: `${row.active} ${row.concurrency}`, nodes: () => [`${count(row.active)} / ${count(row.concurrency)}`, meter(row.active, row.concurrency, "how full")] }) },
      { label: "Waiting", kind: "number", phone: "figure", show: (row) => count(row.queued) },
      { label: "Limit a minute", kind: "number", show: (row) => (row.rate_per_minute ? count(row.rate_per_minute) : "–") },
      { label: "Success", kind: "number", phone: "figure", show: (row) => (row.success_rate === null ? "–" : percent(row.success_rate, 1)) },
      { label: "Average", kind: "number", show: (row) => (row.average_seconds ? span(row.average_seconds * 1000) : "–") },
      { label: "Actions", kind: "actions", phone: "figure", show: (row) => ({ key: row.is_paused, nodes: () => actionButton(row.is_paused ? "Resume" : "Pause", "manage", () => post(["router", row.is_paused ? "resume-pool" : "pause-pool"], { pool: row.code }), { done: row.is_paused ? `${row.code} delivers again` : `${row.code} is paused, until it is resumed or the server restarts` }) }) },
    ],
    none: empty("No pools."),
  });
  const queues = new Table({
    label: "Sources", key: (row) => row.name,
    columns: [
      { label: "Queue", kind: "name", phone: "name", show: (row) => row.name },
      { label: "State", kind: "whole", phone: "state", show: (row) => ({ key: row.is_connected, nodes: () => (row.is_connected ? state("running", "connected") : state("gone", "not connected")) }) },
      { label: "Pending", kind: "number", phone: "figure", show: (row) => count(row.pending) },
      { label: "Not visible", kind: "number", phone: "figure", show: (row) => count(row.not_visible) },
      { label: "Per second", kind: "number", phone: "figure", show: (row) => rate(row.per_second) },
      { label: "Dead", kind: "number", phone: "figure", show: (row) => (row.dead ? { key: row.dead, nodes: () => el("a", { class: "bad", href: withQuery({ source: `queue:${row.dead_letters}` }, path("dead")) }, count(row.dead)) } : "0") },
    ],
    none: empty("No sources."),
  });
  const flights = new Table({
    label: "In flight", key: (row) => row.message_id,
    columns: [
      { label: "Message", kind: "name", phone: "name", show: (row) => ({ key: row.message_id, nodes: () => messageLink(row.broker_id ?? row.message_id) }) },
      { label: "State", kind: "whole", phone: "state", show: (row) => ({ key: `${row.is_running} ${row.next_attempt_at}`, nodes: () => (row.is_running ? state("working", "running") : row.next_attempt_at ? [state("retrying"), " ", time(instant(row.next_attempt_at))] : state("waiting")) }) },
      { label: "Target, and last error", kind: "words", phone: "line", show: (row) => ({ key: `${row.target} ${row.error}`, nodes: () => [row.target || "–", row.error && el("div", { class: "label" }, visible(row.error))] }) },
      { label: "Since", kind: "whole", phone: "figure", show: (row) => ({ key: row.since_at, nodes: () => time(instant(row.since_at)) }) },
      { label: "Attempts", kind: "number", phone: "figure", show: (row) => count(row.attempts) },
      { label: "Pool, group", kind: "name", show: (row) => ({ key: row.message_id, nodes: () => [row.pool, el("div", { class: "label" }, row.group)] }) },
      { label: "Actions", kind: "actions", phone: "figure", show: (row) => ({ key: `${Boolean(row.next_attempt_at)}`, nodes: () => [row.next_attempt_at && actionButton("Retry now", "manage", () => post(["router", "retry-now"], { message_id: row.message_id }), { done: "It is tried now" }), " ", menuButton(`More for ${row.message_id}`, () => [{ label: "Force ack…", verb: "manage", isHarmful: true, run: () => destroy({ title: "Force ack", text: "The message counts as delivered although no target confirmed it. It is lost if it was not delivered.", label: "Force ack", name: row.message_id, run: ({ confirm }) => post(["router", "force-ack"], { message_id: row.message_id, confirm }), done: "Acked" }) }])].filter(Boolean) }) },
    ],
    none: empty("No message is in the router."),
  });
  const total = el("span", { class: "small soft" });
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Router"), summary), warningCard,
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "Targets")), targets.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Pools")), pools.node),
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "In flight"), total), flights.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Sources")), queues.node));
  return watch("router", {}, (data) => {
    summary.replaceChildren(data.is_ready ? state("running", "ready") : state("stopped", "not ready"));
    targets.update([...data.targets].sort((a, b) => (b.state !== "CLOSED") - (a.state !== "CLOSED") || (b.failure_rate ?? -1) - (a.failure_rate ?? -1)));
    pools.update(data.pools);
    queues.update(data.queues);
    flights.update(data.in_flight);
    setText(total, data.in_flight_total > data.in_flight.length ? `the oldest ${data.in_flight.length} of ${count(data.in_flight_total)}` : plural(data.in_flight_total, "message"));
    warningCard.hidden = !data.warnings.length;
    keyed(warnings, data.warnings, (one) => `${one.at} ${one.text}`, (one) => el("li", {}, state(one.level === "bad" || one.level === "CRITICAL" || one.level === "ERROR" ? "failed" : "growing", words(one.level).toLowerCase()), el("span", {}, visible(one.text)), time(instant(one.at))));
  });
}
