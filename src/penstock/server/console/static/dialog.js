// Dialogs, menus and action buttons. Actions that cannot be undone are in a menu, and ask for the name of what they delete.

import { byId, el, icon, toast } from "./dom.js";

let verbs = new Set();

/** What the caller may do: from the session. */
export const setVerbs = (all) => { verbs = new Set(all); };
export const may = (verb) => verbs.has(verb);

/** Run an action of a button: disabled meanwhile, and an error is shown as the server words it. */
export async function perform(button, run, done) {
  if (button) button.disabled = true;
  try {
    const result = await run();
    const text = typeof done === "function" ? done(result) : done;
    if (text) toast(text);
    return result;
  } catch (error) {
    toast(error.text ?? error.message, "bad");
    return null;
  } finally {
    if (button) button.disabled = false;
  }
}

/** A button for an action that needs a verb; without it the button is disabled and names the verb. */
export function actionButton(label, verb, run, { kind = "", done } = {}) {
  const isAllowed = !verb || may(verb);
  return el("button", { type: "button", class: kind, disabled: !isAllowed, title: isAllowed ? null : `Your token lacks the verb ${verb}`, onclick: (event) => perform(event.currentTarget, run, done) },
    label, !isAllowed && el("span", { class: "unseen" }, ` (needs the verb ${verb})`));
}

/**
 * Open a dialog. `content` are nodes; `run` gets the form's values and may throw, which is shown in the dialog. `name` must be typed
 * before the button works. Resolves to what `run` returned, or null if it was cancelled.
 */
export function ask({ title, content = [], label, name = null, isHarmful = Boolean(name), run = () => true }) {
  return new Promise((resolve) => {
    const problem = el("p", { class: "problem bad small", role: "alert" });
    const typed = name && el("input", { name: "confirm", autocomplete: "off", spellcheck: "false", oninput: () => { go.disabled = typed.value !== name; } });
    const go = el("button", { type: "submit", class: isHarmful ? "main harm" : "main", disabled: Boolean(name) }, label);
    const close = (result) => { box.close(); box.remove(); before?.focus?.(); resolve(result); };
    const before = document.activeElement;
    const form = el("form", { method: "dialog", onsubmit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      problem.textContent = "";
      try { close(await run(Object.fromEntries(new FormData(form)))); } catch (error) { problem.textContent = error.text ?? error.message; go.disabled = false; }
    } },
    el("h2", { id: "dialog-title" }, title), ...content,
    name && el("label", { class: "field" }, el("span", {}, "Type ", el("b", {}, name), " to confirm"), typed),
    problem,
    el("footer", {}, label !== "Close" && el("button", { type: "button", onclick: () => close(null) }, "Cancel"), go));
    const box = el("dialog", { "aria-labelledby": "dialog-title", oncancel: (event) => { event.preventDefault(); close(null); } }, form);
    document.body.append(box);
    box.showModal();
  });
}

/** A dialog for something that cannot be undone. */
export const destroy = ({ title, text, label, name, run, done }) =>
  ask({ title, content: [el("p", { class: "small" }, text)], label, name, run }).then((result) => { if (result !== null && done) toast(typeof done === "function" ? done(result) : done); return result; });

/** A button with three dots that opens a menu: items are {label, verb, run, isHarmful}. */
export function menuButton(label, items) {
  let list = null;
  const button = el("button", { type: "button", class: "plain icon", "aria-haspopup": "menu", "aria-label": label, title: label, onclick: () => {
    if (list?.isConnected) { list.remove(); return; }
    list = menu(label, items(), button);
    document.body.append(list);
    list.showPopover();
    const from = button.getBoundingClientRect(), size = list.getBoundingClientRect();
    list.style.left = `${Math.max(8, Math.min(from.right - size.width, innerWidth - size.width - 8))}px`;
    list.style.top = `${from.bottom + size.height + 8 > innerHeight ? Math.max(8, from.top - size.height - 4) : from.bottom + 4}px`;
    list.querySelector("button:not(:disabled)")?.focus();
  } }, icon("M5 12h.01M12 12h.01M19 12h.01"));
  return button;
}

function menu(label, items, button) {
  const list = el("div", { class: "menu", role: "menu", popover: "auto", "aria-label": label }, ...items.map((item) => {
    const isAllowed = !item.verb || may(item.verb);
    return el("button", { type: "button", role: "menuitem", class: item.isHarmful ? "harm" : "", disabled: !isAllowed, onclick: () => { list.hidePopover(); item.run(); } }, item.label, !isAllowed && ` (needs ${item.verb})`);
  }));
  list.addEventListener("toggle", (event) => { if (event.newState === "closed") { list.remove(); if (document.activeElement === document.body) button.focus(); } });
  list.addEventListener("keydown", (event) => {
    const all = [...list.querySelectorAll("button:not(:disabled)")], at = all.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    all.at(next % all.length)?.focus();
  });
  return list;
}

/** Forget every menu and dialog: the page is left. */
export function closeAll() {
  for (const node of document.querySelectorAll("dialog, .menu")) node.remove();
  byId("side").classList.remove("open");
}
