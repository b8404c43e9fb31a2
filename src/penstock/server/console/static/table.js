// A table of live rows. The server sorts and pages; here nodes stay with their key, and the order is frozen while the table is in use.

import { el, empty, fromQuery, keyed, setText, withQuery } from "./dom.js";
import { count } from "./format.js";
import { navigate } from "./app.js";

/**
 * Columns: {name, label, kind ("number", "name", "words", "actions"), phone ("name", "state", "figure", "line", "hide"), sort, show(row)}.
 * `show` returns a text or {key, nodes}: nodes are made again only when the key differs. `sort` is the name of the order in the URL.
 */
export class Table {
  #columns;
  #key;
  #body = el("tbody");
  #rows = [];
  #isFrozen = false;
  #order = [];
  #head;

  constructor({ columns, key, label, none }) {
    this.#columns = columns.filter(Boolean);
    this.#key = key;
    this.#head = el("tr", {}, ...this.#columns.map((column) => this.#heading(column)));
    this.table = el("table", { class: "rows", "aria-label": label }, el("thead", {}, this.#head), this.#body);
    this.none = el("div", { hidden: true }, none);
    this.apply = el("button", { type: "button", class: "plain", hidden: true, onclick: () => { this.#isFrozen = false; this.#patch(); } }, "Order changed · apply");
    this.scroll = el("div", { class: "scroll" }, this.table);
    this.node = el("div", {}, this.apply, this.scroll, this.none);
    const freeze = (event) => { this.#isFrozen = event.type === "pointerenter" || event.type === "focusin" || this.scroll.contains(document.activeElement); if (!this.#isFrozen) this.#patch(); };
    for (const name of ["pointerenter", "pointerleave", "focusin", "focusout"]) this.scroll.addEventListener(name, freeze);
  }

  #heading(column) {
    const chosen = fromQuery("sort") ?? this.#columns.find((one) => one.isDefault)?.sort, isChosen = column.sort && chosen === column.sort;
    const first = column.kind === "number" ? "desc" : "asc", order = fromQuery("order") ?? first;
    const next = isChosen ? { desc: "asc", asc: "desc" }[order] : first;
    const label = column.kind === "actions" ? el("span", { class: "unseen" }, column.label) : column.label;
    return el("th", { class: column.kind, scope: "col", "aria-sort": isChosen ? `${order}ending` : null },
      column.sort ? el("button", { type: "button", class: "sort", onclick: () => navigate(withQuery({ sort: column.sort, order: next, offset: null }), { isReplaced: true }) }, label, isChosen && (order === "desc" ? " ↓" : " ↑")) : label);
  }

  /** The order in the URL has changed. */
  sorted() {
    const focused = [...this.#head.cells].findIndex((cell) => cell.contains(document.activeElement));
    this.#head.replaceChildren(...this.#columns.map((column) => this.#heading(column)));
    this.#head.cells[focused]?.querySelector("button")?.focus();
    this.#order = [];
  }

  /** Show these rows, in this order. */
  update(rows) {
    this.#rows = rows;
    this.scroll.hidden = !rows.length;
    this.none.hidden = Boolean(rows.length);
    this.#patch();
  }

  #patch() {
    const byKey = new Map(this.#rows.map((row) => [String(this.#key(row)), row]));
    let keys = [...byKey.keys()];
    if (this.#isFrozen) {
      const stays = this.#order.filter((key) => byKey.has(key)), known = new Set(stays);
      const frozen = [...stays, ...keys.filter((key) => !known.has(key))];
      this.apply.hidden = frozen.every((key, index) => key === keys[index]);
      keys = frozen;
    } else this.apply.hidden = true;
    this.#order = keys;
    keyed(this.#body, keys, (key) => key, () => el("tr", {}, ...this.#columns.map((column) =>
      el("td", { class: column.kind, "data-phone": column.phone ?? "hide", "data-label": column.label }))), (node, key) => this.#fill(node, byKey.get(key)));
  }

  #fill(node, row) {
    this.#columns.forEach((column, index) => {
      const cell = node.cells[index], shown = column.show(row);
      if (shown !== null && typeof shown === "object") {
        const key = String(shown.key);
        if (cell.shows === key) return;
        cell.shows = key;
        cell.replaceChildren(...[shown.nodes()].flat().filter((one) => one !== null && one !== undefined && one !== false && one !== ""));
      } else {
        const text = String(shown ?? "");
        if (cell.shows !== undefined && cell.shows !== text && column.kind === "number") {
          cell.classList.remove("changed");
          requestAnimationFrame(() => cell.classList.add("changed"));
        }
        cell.shows = text;
        setText(cell, text);
        cell.classList.toggle("zero", text === "0" || text === "–");
      }
    });
  }
}

/** Below a table: which rows are shown of how many, and the way to the others. */
export function pager(offset, shown, total, size = 200) {
  if (offset === 0 && shown >= total) return null;
  return el("div", { class: "foot" }, `${count(offset + 1)} to ${count(offset + shown)} of ${count(total)}`,
    offset > 0 && el("a", { class: "button", href: withQuery({ offset: offset > size ? offset - size : null }) }, "Previous"),
    offset + shown < total && el("a", { class: "button", href: withQuery({ offset: offset + shown }) }, "Next"));
}

/** A field whose text is a filter in the URL, a moment after the last key. */
export function filterField(name, label, placeholder) {
  let timer = 0;
  const field = el("input", { type: "search", "aria-label": label, placeholder, value: fromQuery(name) ?? "", autocomplete: "off", spellcheck: "false", oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => navigate(withQuery({ [name]: field.value.trim(), offset: null }), { isReplaced: true }), 200);
  } });
  return field;
}

/** Nothing to show because of a filter: says so, and offers to clear it. */
export const filteredEmpty = (...names) => empty("Nothing matches the filter.", el("a", { class: "button", href: withQuery(Object.fromEntries(names.map((name) => [name, null]))) }, "Clear filter"));
