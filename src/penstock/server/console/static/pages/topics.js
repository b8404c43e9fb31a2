// Topics, and the stream of one topic.

import { post } from "../api.js";
import { navigate, watch } from "../app.js";
import { destroy, menuButton } from "../dialog.js";
import { command, el, empty, fromQuery, path, setContent, setText, time, withQuery } from "../dom.js";
import { count, instant, plural, quote, rate, short, span } from "../format.js";
import { Table } from "../table.js";
import { columns, remember, settingsList } from "./backlog.js";
import { list } from "./queues.js";
import { browse, publishForm } from "./stream.js";

const COLUMNS = [
  { label: "Topic", kind: "name", phone: "name", sort: "name", isDefault: true, show: (row) => ({ key: row.name, nodes: () => el("a", { href: path("topics", row.name) }, row.name) }) },
  { label: "In/s", kind: "number", phone: "figure", sort: "in_rate", show: (row) => rate(row.in_rate) },
  { label: "Published", kind: "number", phone: "figure", sort: "published", show: (row) => short(row.published) },
  { label: "Subscriptions", kind: "number", phone: "figure", sort: "subscriptions", show: (row) => ({ key: row.subscriptions, nodes: () => el("a", { href: withQuery({ topic: row.name }, path("subscriptions")) }, count(row.subscriptions)) }) },
  { label: "Retention", kind: "number", show: (row) => (row.retention_seconds ? span(row.retention_seconds * 1000) : "–") },
  { label: "Created", kind: "whole", show: (row) => ({ key: row.created_at, nodes: () => time(instant(row.created_at)) }) },
];

export const mount = (main, context) => (context.parts.length ? one(main, context.parts[0]) : list(main, "topics", "Topics", COLUMNS, () => empty("No topics yet.", command("penstock topic create orders"), command("penstock publish orders 'two books'"))));

function one(main, name) {
  const tabs = el("nav", { class: "tabs", "aria-label": `Parts of ${name}` }), place = el("div", { class: "column" }), head = el("span", { class: "small soft" });
  const menu = menuButton(`More for ${name}`, () => [{ label: "Delete…", verb: "manage", isHarmful: true, run: () => destroy({ title: `Delete ${name}`, text: "Deletes the topic. Its subscriptions stay, detached and empty. There is no undo.", label: "Delete", name, run: ({ confirm }) => post(["topics", name, "delete"], { confirm }), done: `${name} is deleted` }).then((done) => { if (done) navigate(path("topics")); }) }]);
  main.replaceChildren(el("div", { class: "head" }, el("p", { class: "crumbs" }, el("a", { href: path("topics") }, "Topics")), el("h1", {}, name), head, el("div", { class: "tools" }, menu)), tabs, place);
  const all = { browse: "Browse", consumers: "Subscriptions", publish: "Publish", settings: "Settings" };
  let ends = [];
  const show = () => {
    for (const end of ends) end?.();
    const tab = fromQuery("tab") in all ? fromQuery("tab") : "browse";
    tabs.replaceChildren(...Object.entries(all).map(([key, text]) => el("a", { href: withQuery({ tab: key === "browse" ? null : key }, path("topics", name)), "aria-current": key === tab ? "page" : null }, text)));
    let update = () => {};
    if (tab === "consumers") {
      const table = new Table({ label: `Subscriptions of ${name}`, key: (row) => row.name, columns: columns("subscriptions").map((column) => ({ ...column, sort: null })), none: empty("Nobody receives what is published here.", command(`penstock subscription create billing --topic ${quote(name)}`)) });
      place.replaceChildren(el("section", { class: "card" }, table.node));
      update = (data) => { remember("subscriptions", data.subscriptions); table.update(data.subscriptions); };
    } else if (tab === "settings") {
      const body = el("div", { class: "body" });
      place.replaceChildren(el("section", { class: "card" }, el("header", {}, el("h2", {}, "Settings"), el("div", { class: "tools" }, command(`penstock topic update ${quote(name)} --help`))), body));
      update = (data) => setContent(body, JSON.stringify(data.settings), () => settingsList(data.settings));
    } else if (tab === "publish") publishForm(place, "topic", name);
    const mine = (ends = []);
    let isBrowsing = tab !== "browse";
    mine.push(watch("topic", { name }, (data) => {
      setText(head, `${plural(data.row.published, "message")} published${data.row.in_rate ? `, ${rate(data.row.in_rate)}/s` : ""}, ${plural(data.row.subscriptions, "subscription")}`);
      update(data);
      if (isBrowsing) return;
      isBrowsing = true;
      mine.push(browse(place, "topic", name));
    }, (error) => { tabs.hidden = error.code === 404; if (tabs.hidden) place.replaceChildren(empty(`There is no topic ${name}.`, el("a", { class: "button", href: path("topics") }, "Back to the list"))); }));
  };
  show();
  return { unmount: () => { for (const end of ends) end?.(); }, query: show };
}
