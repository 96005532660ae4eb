"use strict";
// Everything from candidates and models is put in as text (textContent), never as markup.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, text, name) => {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (name) node.className = name;
  return node;
};
const key = (cell) => (cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent);

function sortBy(table, index, button) {
  const header = button.closest("th");
  const down = header.getAttribute("aria-sort") !== "descending";
  $$("th", table).forEach((th) => th.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const number = (value) => (value === "" ? NaN : Number(value));
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a.cells[index]), key(b.cells[index])];
    if (header.dataset.kind === "text") return x.localeCompare(y, undefined, { numeric: true }) * (down ? -1 : 1);
    const [m, n] = [number(x), number(y)];
    if (Number.isNaN(m) || Number.isNaN(n)) return Number.isNaN(m) - Number.isNaN(n);
    return (m - n) * (down ? -1 : 1);
  });
  body.append(...rows);
}

$$("table.sortable").forEach((table) =>
  $$("thead button", table).forEach((button, index) => button.addEventListener("click", () => sortBy(table, index, button))));

function filterTasks() {
  const words = $("#f-text").value.trim().toLowerCase();
  const wanted = Object.fromEntries(["run", "level", "verdict", "degenerate"].map((n) => [n, $("#f-" + n).value]));
  let shown = 0;
  for (const row of $("#tasks").tBodies[0].rows) {
    const fits = (!words || row.textContent.toLowerCase().includes(words)) &&
      Object.entries(wanted).every(([name, value]) => !value || row.dataset[name] === value);
    row.hidden = !fits;
    shown += fits;
  }
  $("#shown").textContent = shown + " shown";
}
$$(".filters input, .filters select").forEach((node) => node.addEventListener("input", filterTasks));

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const time = (us) => (us < 1e3 ? us.toPrecision(3) + " us" : us < 1e6 ? (us / 1e3).toPrecision(3) + " ms" : (us / 1e6).toPrecision(3) + " s");
function folded(title, ...inside) {
  const node = make("details");
  node.append(make("summary", title), ...inside);
  return node;
}

function timesTable(data, result) {
  const table = make("table");
  const head = make("tr");
  ["", "median", "p10", "p90", "samples"].forEach((name, i) => head.append(make("th", name, i ? "" : "text")));
  table.append(make("thead"));
  table.tHead.append(head);
  const body = table.createTBody();
  const add = (name, cells) => {
    const row = body.insertRow();
    row.append(make("td", name, "text"), ...cells.map((c) => make("td", c)));
  };
  for (const name of ["candidate", "kernel", "wall", "eager", "compile"]) {
    const t = result && result[name + "_us"];
    if (t) add(name, [time(t.median), time(t.p10), time(t.p90), String(t.samples.length)]);
  }
  for (const [name, value] of Object.entries(data.baselines))
    if (name.endsWith("_us") && typeof value === "number") add("baseline: " + name.slice(0, -3).replaceAll("_", " "), [time(value), "", "", ""]);
  const box = make("div", null, "scroll");
  box.append(table);
  return box;
}

function verdictPart(name, result) {
  const part = make("div");
  part.append(make("h3", name));
  if (!result) { part.append(make("p", "no verdict", "note")); return part; }
  const list = make("dl");
  const add = (k, v) => { if (v !== null && v !== undefined && v !== "") list.append(make("dt", k), make("dd", String(v))); };
  add("stage", result.stage); add("correct", result.correct); add("reward", result.reward); add("fault", result.fault);
  add("our side failed", result.infrastructure);
  for (const v of result.violations || []) add("violation: " + v.kind, v.detail);
  for (const [n, v] of Object.entries(result.confidence || {})) add("speed-up over " + n + ", 95 % interval", v.map((x) => x.toFixed(3) + "x").join(" to "));
  add("max abs error", result.max_abs_error); add("track", result.track + ", " + result.precision); add("device", result.device);
  add("versions", Object.entries(result.versions || {}).map((p) => p.join(" ")).join(", "));
  for (const n of result.notes || []) add("note", n);
  part.append(list);
  if (result.detail) part.append(make("pre", result.detail, "wrap"));
  return part;
}

function turnPart(turn, index) {
  const first = turn.calls.map((c) => c.name).join(", ") || "words only";
  const tokens = turn.tokens ? ", " + turn.tokens[0] + " + " + turn.tokens[1] + " tokens" : "";
  const inside = [];
  if (turn.text) inside.push(make("pre", turn.text, "wrap"));
  for (const call of turn.calls)
    for (const [name, value] of Object.entries(call.arguments)) inside.push(make("h3", call.name + ": " + name), make("pre", value, "wrap"));
  for (const text of turn.malformed) inside.push(make("h3", "malformed"), make("pre", text, "wrap"));
  for (const o of turn.observations) inside.push(make("h3", (o.error ? "error, " : "answer, ") + o.seconds.toFixed(1) + " s"), make("pre", o.text, "wrap"));
  const node = folded("turn " + (index + 1) + ": " + first + " (" + turn.seconds.toFixed(1) + " s" + tokens + ")", ...inside);
  node.classList.add("turn");
  return node;
}

function fill(body, data) {
  const parts = data.uncounted ? [make("p", "Not counted: " + data.uncounted, "note")] : [];
  parts.push(verdictPart("Best of the trajectory", data.best), make("h3", "Times of one call"), timesTable(data, data.best));
  const same = data.best && data.last && data.best.candidate_hash === data.last.candidate_hash;
  if (same) parts.push(make("p", "The trajectory ended with this version.", "note"));
  else parts.push(verdictPart("Last of the trajectory", data.last));
  const flags = Object.entries(data.degenerate).map(([k, v]) => k + ": " + (v === null ? "not tried" : v ? "passes" : "refused"));
  if (flags.length) parts.push(make("h3", "Trivial answers"), make("p", flags.join(", ")));
  parts.push(make("h3", "Sources"));
  if (data.reference) parts.push(folded("reference: model.py", make("pre", data.reference)));
  for (const [name, text] of Object.entries(data.files)) parts.push(folded("candidate: " + name, make("pre", text)));
  if (!data.reference && !Object.keys(data.files).length) parts.push(make("p", "none kept", "note"));
  parts.push(make("h3", "Trajectory, ended: " + (data.ending || "unknown") + (data.ending_detail ? " (" + data.ending_detail + ")" : "")));
  if (data.prompt) parts.push(folded("system and prompt", make("pre", data.system, "wrap"), make("pre", data.prompt, "wrap")));
  if (data.turns === null) parts.push(make("p", "no trajectory kept", "note"));
  (data.turns || []).forEach((turn, i) => parts.push(turnPart(turn, i)));
  body.replaceChildren(...parts);
}

async function show(row) {
  const dialog = $("#detail"), body = $(".body", dialog);
  $("h2", dialog).textContent = row.dataset.title;
  body.replaceChildren(make("p", "unpacking", "note"));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  try {
    fill(body, await unpack($("#" + row.dataset.detail).textContent));
  } catch (error) {
    body.replaceChildren(make("p", "This browser cannot unpack the details: " + error.message, "note"));
  }
}

$("#tasks").addEventListener("click", (event) => { const row = event.target.closest("tbody tr"); if (row) show(row); });
$("#close").addEventListener("click", () => $("#detail").close());
filterTasks();
