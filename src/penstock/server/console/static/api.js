// Requests to the server. The token is kept in session storage and sent in a header: there is no cookie that another site could use.

import { fromQuery } from "./dom.js";

const TOKEN = "penstock-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

/** What the server refused: `reason` is for programs, `message` and `hint` for people. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message || `the server answered with status ${status}`);
    this.status = status;
    this.reason = error?.reason;
    this.hint = error?.hint;
  }

  get text() { return this.hint ? `${this.message} (${this.hint})` : this.message; }
}

/** The address of an operation, with the project and the parameters that have a value. */
export function address(parts, parameters = {}) {
  const query = new URLSearchParams();
  const project = fromQuery("project");
  for (const [name, value] of Object.entries({ ...parameters, project })) if (value !== null && value !== undefined && value !== "") query.set(name, value);
  const text = query.toString();
  return `/console/api/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

async function call(method, url, body) {
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, { method, headers, body, cache: "no-store" });
  } catch {
    throw new ApiError(0, { message: "the server cannot be reached" });
  }
  if (response.ok) return response;
  throw new ApiError(response.status, (await response.json().catch(() => ({}))).error);
}

export const get = async (parts, parameters) => (await call("GET", address(parts, parameters))).json();
export const post = async (parts, body = {}) => (await call("POST", address(parts), JSON.stringify(body))).json();

/** Post a body that is JSON text already: numbers in it must not pass through JavaScript. */
export const postText = async (parts, text) => (await call("POST", address(parts), text)).json();

/** Save what the server answers as a file. */
export async function download(parts, parameters, name) {
  const response = await call("GET", address(parts, parameters));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
