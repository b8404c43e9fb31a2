// The settings of this server with the origin of each value, and its tokens.

import { get, post, token } from "../api.js";
import { watch } from "../app.js";
import { destroy, menuButton } from "../dialog.js";
import { command, el, empty, fromQuery, time } from "../dom.js";
import { instant } from "../format.js";
import { filteredEmpty, filterField, Table } from "../table.js";

export function mount(main, { session }) {
  const field = filterField("filter", "Filter by name", "Filter by name"), problem = el("p", { class: "bad", role: "alert" });
  const settings = new Table({
    label: "Settings", key: (row) => row.name,
    columns: [
      { label: "Setting", kind: "name", phone: "name", show: (row) => ({ key: row.name, nodes: () => el("code", { title: row.help }, row.name) }) },
      { label: "Value", kind: "words", phone: "line", show: (row) => (row.value === null || row.value === "" ? "–" : typeof row.value === "object" ? JSON.stringify(row.value) : String(row.value)) },
      { label: "From", kind: "whole", phone: "state", show: (row) => ({ key: row.origin, nodes: () => el("span", { class: row.origin === "default" ? "soft" : "" }, row.origin) }) },
      { label: "Meaning", kind: "words", show: (row) => row.help },
    ],
    none: filteredEmpty("filter"),
  });
  const tokens = new Table({
    label: "Tokens", key: (row) => row.id,
    columns: [
      { label: "Name", kind: "name", phone: "name", show: (row) => row.name || "without a name" },
      { label: "Id", kind: "name", phone: "figure", show: (row) => row.id },
      { label: "May", kind: "words", phone: "line", show: (row) => (row.verbs ?? ["everything"]).join(", ") },
      { label: "Project", kind: "name", show: (row) => row.project ?? "every" },
      { label: "Names", kind: "words", show: (row) => (row.names ?? ["*"]).join(", ") },
      { label: "Created", kind: "whole", show: (row) => ({ key: row.created_at, nodes: () => time(instant(row.created_at)) }) },
      { label: "Expires", kind: "whole", phone: "figure", show: (row) => ({ key: row.expires_at, nodes: () => (row.expires_at ? time(instant(row.expires_at)) : "never") }) },
      { label: "Actions", kind: "actions", phone: "state", show: (row) => ({ key: row.id, nodes: () => menuButton(`More for ${row.name || row.id}`, () => [{ label: "Revoke…", verb: "manage", isHarmful: true, run: () => destroy({ title: `Revoke ${row.name || row.id}`, text: "Whoever uses this token is refused from now on. There is no undo.", label: "Revoke", name: row.id, run: ({ confirm }) => post(["tokens", row.id, "revoke"], { confirm }), done: "The token is revoked" }).then((done) => done && load()) }]) }) },
    ],
    none: session.needs_token ? empty("Your token may not list tokens: this needs the verb manage for every project.") : empty("This server needs no tokens. To require them, create one, and start the server with --auth token:", command("penstock token create --name console")),
  });
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Settings"), el("div", { class: "tools" }, field)), problem,
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "You"), session.needs_token && el("div", { class: "tools" }, el("button", { type: "button", onclick: () => { token.set(null); location.reload(); } }, "Forget the token"))), el("div", { class: "body small" }, session.token ? `Token ${session.token.id} may ${session.verbs.join(", ") || "do nothing"} in ${session.token.project ?? "every project"}.` : "This server asks for no token: everybody who reaches it may do everything.")),
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "Tokens")), tokens.node), el("section", { class: "card" }, el("header", {}, el("h2", {}, "Settings of the server")), settings.node));
  let all = [];
  const show = () => { const part = (fromQuery("filter") ?? "").toLowerCase(); settings.update(all.filter((row) => row.name.toLowerCase().includes(part))); };
  const load = async () => {
    try {
      const data = await get(["settings"]);
      all = data.settings;
      tokens.update(data.tokens ?? []);
      show();
    } catch (error) { problem.textContent = error.text; }
  };
  load();
  // Nothing on this page is live; the badge of dead letters beside it is.
  const end = watch("overview", {}, () => {});
  return { unmount: end, query: () => { if (document.activeElement !== field) field.value = fromQuery("filter") ?? ""; show(); } };
}
