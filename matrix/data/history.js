
"use strict";

// Every text comes from outside: it is set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const AT_ONCE = { rows: 400, changes: 12, spans: 160 };
const ENVIRONMENT = "environment";
const GAP = { outcome: "", standing: "no result", text: "not measured" };
const nights = data.runs.length;

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, action] of Object.entries(value)) element.addEventListener(event, action);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const suiteOf = (row) => (row.case === ENVIRONMENT ? ENVIRONMENT : row.case.split("/")[0]);
const day = (run) => data.runs[run].time.slice(0, 10);
const sign = (state) => (state.outcome === "" ? "" : data.outcomes[state.outcome].sign);
const tone = (standing) => standing.replaceAll(" ", "-");
const stateOf = (span) => data.states[span[2]];
const identity = (row) => [row.case, row.lane, data.lines[row.line]].join("|");
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

data.rows.forEach((row) => { row.changes = []; });
data.changes.forEach((change) => data.rows[change.row].changes.push(change));

// The state is in the address: a view can be sent to somebody.

const KEYS = ["suite", "lane", "line", "outcome", "with", "case", "changed", "open"];
let state = read();

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(KEYS.map((key) => [key, given.get(key) ?? ""]));
}

function write() {
  const kept = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""));
  history.replaceState(null, "", `#${kept}`);
}

const shown = (row) =>
  (state.suite === "" || suiteOf(row) === state.suite) &&
  (state.lane === "" || row.lane === state.lane) &&
  (state.line === "" || data.lines[row.line] === state.line) &&
  (state.outcome === "" || row.spans.some((span) => stateOf(span).outcome === state.outcome)) &&
  (state.case === "" || row.case.toLowerCase().includes(state.case.toLowerCase())) &&
  (state.changed === "" || row.changes.length > 0) &&
  (state.with === "" || row.changes.some(shownChange));

// A change with which nothing else changed is told apart: it says nothing of a release.
const NOTHING = "nothing";
const shownChange = (change) =>
  state.with === "" || (state.with === NOTHING ? change.kinds.length === 0 : change.kinds.includes(state.with));

// Strips

// Of a history that changes more often than a strip has room, each part shows the worst that was in it.
function drawn(spans) {
  const filled = [];
  let next = 0;
  for (const span of spans) {
    if (span[0] > next) filled.push([next, span[0] - 1, GAP]);
    filled.push([span[0], span[1], stateOf(span)]);
    next = span[1] + 1;
  }
  if (next < nights) filled.push([next, nights - 1, GAP]);
  if (filled.length <= AT_ONCE.spans) return filled;
  const parts = [];
  for (let part = 0; part < AT_ONCE.spans; part += 1) {
    const first = Math.floor((part * nights) / AT_ONCE.spans);
    const last = Math.floor(((part + 1) * nights) / AT_ONCE.spans) - 1;
    const inside = filled.filter((one) => one[0] <= last && one[1] >= first).map((one) => one[2]);
    if (last >= first) parts.push([first, last, inside.reduce((worst, one) => (severity(one) < severity(worst) ? one : worst))]);
  }
  return parts;
}

const order = Object.keys(data.outcomes);
const severity = (state) => (state.outcome === "" ? order.length : order.indexOf(state.outcome));

function part(state, text) {
  return make("span", { class: "part", "data-tone": tone(state.standing), "data-outcome": state.outcome, text });
}

function strip(row) {
  const line = make("div", { class: "strip", role: "img", "aria-label": inWords(row) });
  for (const [first, last, state] of drawn(row.spans)) {
    const piece = part(state, sign(state));
    piece.title = `${state.text}, ${first === last ? day(first) : `${day(first)} to ${day(last)}`}`;
    piece.style.flexGrow = String(last - first + 1);
    line.append(piece);
  }
  return line;
}

function inWords(row) {
  const told = row.spans.slice(-6).map((span) => `${stateOf(span).text} ${day(span[0])} to ${day(span[1])}`);
  const before = row.spans.length > 6 ? `${row.spans.length - 6} earlier spans; ` : "";
  return `Over time: ${before}${told.join("; ")}`;
}

// Changes

// What happened to several lanes and releases in one night, and in one way, is told once.
function alike(changes) {
  const groups = new Map();
  for (const change of changes) {
    const { case: name } = data.rows[change.row];
    const key = JSON.stringify([change.run, name, change.was, change.now, change.standing, change.why]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(change);
  }
  return [...groups.values()];
}

const distinct = (values) => [...new Set(values)];

function changeItem(changes, withCase) {
  const [change] = changes;
  const row = data.rows[change.row];
  const lanes = row.case === ENVIRONMENT ? [] : distinct(changes.map((one) => data.lanes[data.rows[one.row].lane]));
  const where = [...(row.case === ENVIRONMENT ? [] : [row.case]), ...lanes, ...distinct(changes.map((one) => one.leg))];
  const cells = changes.reduce((sum, one) => sum + one.count, 0);
  const item = make("li", { "data-tone": tone(change.standing) });
  item.append(make("time", { text: day(change.run), datetime: day(change.run) }), " ");
  if (withCase) item.append(make("strong", { text: where.join(", ") }), ": ");
  item.append(`${change.was} → `, make("span", { class: "now", text: change.now }));
  item.append(`${cells ? ` in ${plural(cells, "cell")}` : ""} (${change.standing}), ${change.why}`);
  if (change.variants.length) {
    const more = cells > change.variants.length ? ` and ${cells - change.variants.length} more` : "";
    item.append(make("span", { class: "message", text: `${change.variants.join("; ")}${more}` }));
  }
  const message = changes.map((one) => one.message).find(Boolean);
  if (message) item.append(make("span", { class: "message", text: message }));
  return item;
}

function limited(container, items, limit, build) {
  let given = 0;
  const more = make("button", { type: "button", class: "more", on: { click: () => add(items.length) } });
  function add(count) {
    items.slice(given, given + count).forEach((item) => container.append(...build(item)));
    given = Math.min(given + count, items.length);
    more.hidden = given === items.length;
    more.textContent = `Show all ${items.length}`;
  }
  add(limit);
  return more;
}

// The matrix

function detail(row, id) {
  const cell = make("td", { colspan: 3 });
  const said = row.cells ? `${plural(row.cells, "cell")} of this case: its topologies and parameters. ` : "";
  cell.append(make("p", { text: `${said}${row.changes.length ? "" : "Nothing has changed in any of them."}` }));
  if (row.changes.length) {
    const list = make("ol", { class: "changes" });
    const more = limited(list, alike(row.changes), AT_ONCE.changes, (changes) => [changeItem(changes, false)]);
    cell.append(list, more);
  }
  return make("tr", { class: "detail", id }, cell);
}

let opened = 0;

function tableRow(row) {
  const id = `detail-${(opened += 1)}`;
  const now = row.spans[row.spans.length - 1];
  const current = now[1] === nights - 1 ? stateOf(now) : { ...GAP, text: `not measured since ${day(now[1])}` };
  const open = state.open === identity(row);
  const button = make("button", { type: "button", "aria-expanded": String(open), text: data.lines[row.line] });
  const element = make(
    "tr", {},
    make("th", { scope: "row", class: "line" }, button),
    make("td", {}, strip(row)),
    make("td", { "data-tone": tone(current.standing) }, make("span", { class: "now", text: current.text })),
  );
  if (row.changes.length) element.lastChild.append(make("span", { class: "quiet", text: ` since ${day(now[0])}` }));
  const parts = [element];
  if (open) { button.setAttribute("aria-controls", id); parts.push(detail(row, id)); }
  button.addEventListener("click", () => {
    const expanded = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!expanded));
    if (expanded) { element.nextElementSibling.remove(); button.removeAttribute("aria-controls"); }
    else { element.after(detail(row, id)); button.setAttribute("aria-controls", id); }
    state.open = expanded ? "" : identity(row);
    write();
  });
  return parts;
}

function byCase(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = row.case === ENVIRONMENT ? "environments" : `${row.case}, ${data.lanes[row.lane]}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  const last = groups.get("environments");
  groups.delete("environments");
  return [...groups.entries(), ...(last ? [["environments", last]] : [])];
}

const changesPlace = make("section", { "aria-labelledby": "changes-title" });
const matrixPlace = make("section", { "aria-labelledby": "matrix-title" });
const count = make("p", { role: "status", class: "quiet" });

function draw() {
  opened = 0;
  const rows = data.rows.filter(shown);
  const visible = new Set(rows);
  const changes = data.changes.filter((change) => visible.has(data.rows[change.row]) && shownChange(change));
  const cases = rows.filter((row) => row.case !== ENVIRONMENT).length;
  count.textContent = `${plural(cases, "row")} and ${plural(changes.length, "change")} of ${plural(nights, "run")}`;

  const list = make("ol", { class: "changes" });
  const more = limited(list, alike(changes), AT_ONCE.changes, (group) => [changeItem(group, true)]);
  const nothing = changes.length ? [] : [make("p", { text: "Nothing has changed." })];
  changesPlace.replaceChildren(make("h2", { id: "changes-title", text: "Changes, the newest first" }), ...nothing, list, more);

  const table = make("table");
  table.append(
    make("thead", {}, make(
      "tr", {},
      make("th", { scope: "col", class: "col-line", text: "Release" }),
      make("th", { scope: "col" }, make("div", { class: "axis" }, make("span", { text: day(0) }), make("span", { text: day(nights - 1) }))),
      make("th", { scope: "col", class: "col-now", text: "Now" }),
    )),
  );
  let body = null;
  const items = byCase(rows).flatMap(([title, group]) => [title, ...group]);
  const rest = limited(table, items, AT_ONCE.rows, (item) => {
    if (typeof item !== "string") { body.append(...tableRow(item)); return []; }
    body = make("tbody", {}, make("tr", {}, make("th", { scope: "rowgroup", colspan: 3, text: item })));
    return [body];
  });
  matrixPlace.replaceChildren(make("h2", { id: "matrix-title", text: "Every case" }), table, rest);
}

function choice(key, label, values) {
  const select = make("select", { id: `filter-${key}` }, make("option", { value: "", text: "all" }));
  for (const [value, text] of values) select.append(make("option", { value, text }));
  select.addEventListener("change", () => { state[key] = select.value; write(); draw(); });
  return make("label", {}, label, select);
}

const used = (pick) => [...new Set(data.rows.map(pick))].filter((value) => value !== "");
const seen = new Set(data.rows.flatMap((row) => row.spans.map((span) => stateOf(span).outcome)));
const WITH = [["torch", "torch"], ["torch-build", "a build of torch"], ["deepspeed", "DeepSpeed"], ["python", "Python"], ["commit", "a commit"], ["sp-compat", "sp-compat"], [NOTHING, "nothing that is recorded"]];
const kinds = new Set(data.changes.flatMap((change) => (change.kinds.length ? change.kinds : [NOTHING])));
const search = make("input", { id: "filter-case", type: "search", on: { input: () => { state.case = search.value; write(); draw(); } } });
const changed = make("input", { id: "filter-changed", type: "checkbox", on: { change: () => { state.changed = changed.checked ? "1" : ""; write(); draw(); } } });
const form = make(
  "form", { "aria-label": "What is shown", on: { submit: (event) => event.preventDefault() } },
  choice("suite", "Suite", used(suiteOf).map((value) => [value, value])),
  choice("lane", "Lane", used((row) => row.lane).map((value) => [value, data.lanes[value]])),
  choice("line", "Release", used((row) => data.lines[row.line]).map((value) => [value, value])),
  choice("outcome", "Has been", Object.keys(data.outcomes).filter((name) => seen.has(name)).map((name) => [name, `${data.outcomes[name].sign} ${data.outcomes[name].word}`])),
  choice("with", "Changed with", WITH.filter(([kind]) => kinds.has(kind))),
  make("label", {}, "Case", search),
  make("label", { class: "box" }, changed, "only what has changed"),
  make("button", { type: "button", text: "Show everything", on: { click: () => { state = Object.fromEntries(KEYS.map((key) => [key, ""])); write(); fill(); draw(); } } }),
);

function fill() {
  for (const key of ["suite", "lane", "line", "outcome", "with"]) form.querySelector(`#filter-${key}`).value = state[key];
  search.value = state.case;
  changed.checked = state.changed !== "";
}

function legend() {
  const list = make("ul", { class: "legend" });
  for (const outcome of order.filter((name) => seen.has(name))) {
    const right = outcome === "pass" || outcome === "completed";
    const standing = ["unsupported", "absent"].includes(outcome) ? "not a failure" : right ? "passed" : "new failure";
    const { sign, word, meaning } = data.outcomes[outcome];
    list.append(make("li", { title: meaning }, part({ outcome, standing }, sign), word));
  }
  list.append(make("li", {}, part({ outcome: "crash", standing: "known failure" }, ""), "known"));
  list.append(make("li", {}, part(GAP, ""), GAP.text));
  return list;
}

const commits = new Set(data.runs.map((run) => run.sha).filter(Boolean)).size;
const of = data.repository ? ` of ${data.repository}` : "";
document.getElementById("page").replaceChildren(
  make("header", {},
    make("p", { class: "brand", text: "sp-compat " }, make("span", { text: "releases on which the gradient is right" })),
    make("h1", { text: "The matrix over time" }),
    make("p", { class: "quiet", text: `${plural(nights, "run")}${of} from ${day(0)} to ${day(nights - 1)}${commits ? `, ${plural(commits, "commit")}` : ""}` }),
  ),
  make("main", {}, form, count, legend(), changesPlace, matrixPlace),
);
window.addEventListener("hashchange", () => { state = read(); fill(); draw(); });
fill();
draw();
document.getElementById("page").removeAttribute("aria-busy");
