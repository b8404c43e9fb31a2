// Queues: the list, which shows backlogs and missing consumers, and one queue.

import { watch } from "../app.js";
import { command, el, empty, fromQuery, keyed, path, setContent, setText, withQuery } from "../dom.js";
import { count, quote } from "../format.js";
import { filteredEmpty, filterField, pager, Table } from "../table.js";
import { actions, columns, consumersTable, oldestTable, patchTile, remember, settingsList, stateOf, tileNode, tiles } from "./backlog.js";
import { browse, publishForm } from "./stream.js";

export const mount = (main, context) => (context.parts.length ? one(main, "queues", context.parts[0]) : list(main, "queues", "Queues", columns("queues"), () => empty("No queues yet.", command("penstock queue create mail"))));

/** A list that the server filters, sorts and pages: queues, subscriptions or topics. */
export function list(main, view, title, tableColumns, nothing) {
  const table = new Table({ label: title, key: (row) => row.name, columns: tableColumns, none: null });
  const field = filterField("filter", "Filter by name", "Filter by name"), summary = el("span", { class: "soft small" }), more = el("div", {});
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, title), summary, el("div", { class: "tools" }, field)), el("section", { class: "card" }, table.node, more));
  let end = null;
  const start = () => {
    end?.();
    end = watch(view, Object.fromEntries(["sort", "order", "filter", "offset", "topic"].map((name) => [name, fromQuery(name)])), (data) => {
      remember(view, data.rows);
      setContent(table.none, data.total ? "filtered" : "none", () => (data.total ? filteredEmpty("filter", "offset", "topic") : nothing()));
      table.update(data.rows);
      const all = `${count(data.total)} in all${fromQuery("sort") || view === "topics" ? "" : ", longest waiting first"}`;
      setText(summary, !data.total ? "" : data.matched === data.total ? all : `${count(data.matched)} of ${count(data.total)}`);
      setContent(more, `${data.offset} ${data.rows.length} ${data.matched}`, () => pager(data.offset, data.rows.length, data.matched));
    });
  };
  start();
  return { unmount: () => end(), query: () => { table.sorted(); if (document.activeElement !== field) field.value = fromQuery("filter") ?? ""; start(); } };
}

/** One queue, or one subscription: what waits and why; for a queue also its stream. */
export function one(main, kind, name, extra = () => []) {
  const isQueue = kind === "queues", noun = isQueue ? "queue" : "subscription";
  const tabs = el("nav", { class: "tabs", "aria-label": `Parts of ${name}` }), place = el("div", { class: "column" });
  const head = el("span", {}), tools = el("div", { class: "tools" });
  main.replaceChildren(el("div", { class: "head" }, el("p", { class: "crumbs" }, el("a", { href: path(kind) }, isQueue ? "Queues" : "Subscriptions")), el("h1", {}, name), head, tools), tabs, place);
  const all = isQueue ? { now: "Now", browse: "Browse", publish: "Publish", settings: "Settings" } : { now: "Now", settings: "Settings" };
  let ends = [], data = null;
  const show = () => {
    for (const end of ends) end?.();
    const tab = fromQuery("tab") in all ? fromQuery("tab") : "now";
    tabs.replaceChildren(...Object.entries(all).map(([key, text]) => el("a", { href: withQuery({ tab: key === "now" ? null : key }, path(kind, name)), "aria-current": key === tab ? "page" : null }, text)));
    const listeners = [];
    ends = [watch(noun, { name }, (next) => {
      data = next;
      setContent(head, next.row.state, () => stateOf(next.row));
      setContent(tools, `${next.row.state === "paused"}`, () => actions(kind, next.row, { isPage: true }));
      for (const listener of listeners) listener(next);
    }, (error) => { tabs.hidden = error.code === 404; if (tabs.hidden) place.replaceChildren(empty(`There is no ${noun} ${name}.`, el("a", { class: "button", href: path(kind) }, "Back to the list"))); })];
    if (tab === "browse") ends.push(browse(place, "queue", name));
    else if (tab === "publish") publishForm(place, "queue", name);
    else if (tab === "settings") {
      const body = el("div", { class: "body" });
      place.replaceChildren(el("section", { class: "card" }, el("header", {}, el("h2", {}, "Settings"), el("div", { class: "tools" }, command(`penstock ${noun} update ${quote(name)} --help`))), body));
      listeners.push((next) => setContent(body, JSON.stringify(next.settings), () => settingsList(next.settings)));
    } else listeners.push(now(place, kind, name, extra));
    if (data) for (const listener of listeners) listener(data);
  };
  show();
  return { unmount: () => { for (const end of ends) end?.(); }, query: show };
}

function now(place, kind, name, extra) {
  const figures = el("div", { class: "tiles" }), advice = el("ul", { class: "list" }), oldest = oldestTable(kind), consumers = consumersTable(kind, name), more = el("div", { class: "column" });
  const adviceCard = el("section", { class: "card", hidden: true }, el("header", {}, el("h2", {}, "What to do")), advice);
  place.replaceChildren(figures, adviceCard, el("div", { class: "wide" },
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "The oldest messages, and why they wait"), el("div", { class: "tools roomy" }, command(`penstock explain ${quote(name)}${kind === "queues" ? " --queue" : ""}`))), oldest.node),
    el("div", { class: "column" }, el("section", { class: "card" }, el("header", {}, el("h2", {}, "Consumers")), consumers.node), more)));
  return (data) => {
    keyed(figures, tiles(data.row, data.totals), (tile) => tile[1], tileNode, patchTile);
    adviceCard.hidden = !data.advice.length;
    keyed(advice, data.advice, (text) => text, (text) => { const [what, line] = text.split(/: (?=penstock )/); return el("li", {}, el("span", {}, what), line ? command(line) : el("span", {})); });
    oldest.update(data.oldest);
    consumers.update(data.consumers);
    keyed(more, extra(data), (part) => part.key, () => el("div", {}), (node, part) => setContent(node, part.shows, part.make));
  };
}
