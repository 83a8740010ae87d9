// The parts of the page that do not change with the filters.

/** @param {(entry: Entry) => void} open @param {(standing: string) => void} filterBy */
function fillParts(open, filterBy) {
  byId("basis").textContent = report.verdict.basis;
  fillProportions(filterBy);
  fillRecommended();
  fillTelling(open);
  fillNews(open);
  fillEmulation();
  fillFloors();
  fillIssues();
  byId("legs").replaceChildren(...report.legs.map(legCard));
  const signs = columns.some((column) => column.skips) ? [...outcomes, report.skipped] : outcomes;
  fillFacts(byId("outcomes"), signs.map((one) => pair(`${one.sign} ${one.word}`, one.meaning)));
  fillFacts(byId("standings"), standings.map((one) => pair(one.name, one.meaning)));
  fillFacts(byId("provenance"), report.provenance);
}

/** How many cells have which standing, as a bar and in words. @param {(standing: string) => void} filterBy */
function fillProportions(filterBy) {
  const counts = standings.map((_, place) => cells.standing.reduce((sum, one) => sum + Number(one === place), 0));
  const there = standings.map((_, place) => place).filter((place) => counts[place]);
  if (!there.length) return;
  const bar = make("div", { class: "bar", "aria-hidden": "true" });
  for (const place of there.filter((one) => standings[one].name !== "not a failure")) {
    const piece = make("i", { "data-tone": tone(standings[place].name) });
    piece.style.flexGrow = `${counts[place]}`;
    bar.append(piece);
  }
  const buttons = there.map((place) => {
    const { name } = standings[place];
    const label = [make("b", {}, counts[place].toLocaleString("en")), ` ${name}`];
    const button = make("button", { type: "button", "data-tone": tone(name) }, ...label);
    button.addEventListener("click", () => filterBy(name));
    return make("li", {}, button);
  });
  byId("proportions").replaceChildren(bar, make("ul", { "aria-label": "Cells by standing" }, ...buttons));
}

function fillRecommended() {
  const best = report.recommended;
  if (!best) return;
  byId("recommended").replaceChildren(
    make("p", {}, make("b", {}, "Recommended"), `, ${best.told}:`),
    copyable(best.install, "Recommended releases"),
  );
}

/** The comment's matrix. @param {(entry: Entry) => void} open */
function fillTelling(open) {
  const chosen = report.telling.columns;
  const heads = ["torch", "cells right", ...chosen.map((place) => headOfCase(columns[place]))];
  const body = rows.map((row, place) => [
    row.label,
    totalOf(row),
    ...report.telling.rows[place].map((brief, number) => opener(entryAt(place, chosen[number]), brief, open)),
  ]);
  if (!body.length) return;
  const shown = scrolledTable("Releases and the cases that tell them apart", heads, body);
  shown.querySelector("table")?.setAttribute("role", "grid");
  keepOneStop(/** @type {HTMLTableSectionElement} */ (shown.querySelector("tbody")));
  byId("telling").replaceChildren(shown);
}

/** @param {Column} column */
function headOfCase(column) {
  const name = make("span", { class: "case" }, `${column.suite}/`, make("wbr"), column.case);
  return make("span", {}, name, make("span", { class: "more" }, column.shown));
}

/** @param {Row} row */
function totalOf(row) {
  const known = row.known ? `known: ${row.known}` : "";
  return [row.right, [row.unfinished, known].filter(Boolean).join(", ")].filter(Boolean).join(" · ");
}

/** @param {Entry | undefined} entry @param {string} brief @param {(entry: Entry) => void} open */
function opener(entry, brief, open) {
  if (!entry) return make("span", { class: "nothing" }, brief);
  const worst = entry.cells.filter((cell) => cells.standing[cell] !== BY_DESIGN);
  const weights = (worst.length ? worst : entry.cells).map(weight);
  const standing = standings[Math.floor(Math.min(...weights) / outcomes.length)].name;
  const button = make("button", { type: "button", class: "entry", tabindex: "-1" }, brief);
  button.dataset.tone = tone(standing);
  button.addEventListener("click", () => open(entry));
  return button;
}

/** @param {(entry: Entry) => void} open */
function fillNews(open) {
  const told = [...report.news, ...(report.changes ? [report.changes] : [])];
  if (!told.length) {
    byId("changes").replaceChildren(make("p", {}, report.verdict.compared ? "Nothing differs from the baseline." : "Nothing unexpected."));
    return;
  }
  byId("changes").replaceChildren(
    ...told.map((part) =>
      make(
        "div",
        { class: "news", "data-tone": tone(part.standing) },
        make("h3", {}, part.title),
        shortened([...part.legs.map(legLine), ...part.cells.map((alike) => alikeLine(alike, open))]),
      ),
    ),
  );
}

const NEWS_LINES = 20;

/** @param {HTMLElement[]} lines */
function shortened(lines) {
  const list = make("ul", {}, ...lines.slice(0, NEWS_LINES));
  if (lines.length <= NEWS_LINES) return list;
  const rest = lines.slice(NEWS_LINES);
  const more = make("button", { type: "button" }, `Show ${rest.length} more`);
  more.addEventListener("click", () => {
    list.append(...rest);
    more.remove();
    rest[0].querySelector("button")?.focus();
  });
  return make("div", {}, list, more);
}

/** @param {{id: string, status: string, detail: string}} leg */
function legLine(leg) {
  return make("li", {}, "leg ", make("code", {}, leg.id), " is ", make("b", {}, leg.status), leg.detail ? `: ${leg.detail}` : "");
}

/** @param {Alike} alike @param {(entry: Entry) => void} open */
function alikeLine(alike, open) {
  const button = make("button", { type: "button", class: "link" }, alike.name);
  const entry = entryAt(alike.row, alike.column);
  if (entry) button.addEventListener("click", () => open(entry));
  const was = alike.was ? ` (was ${alike.was})` : "";
  const count = alike.count > 1 ? `, ${alike.count} cells` : "";
  return make(
    "li",
    {},
    make("b", {}, alike.shown),
    `${was} `,
    button,
    ` in ${alike.lane} on ${alike.releases}: ${alike.topologies}${count}`,
    ...(alike.message ? [make("code", { class: "message" }, alike.message)] : []),
  );
}

/** Whether the emulated lane shows what NCCL does. */
function fillEmulation() {
  if (!report.emulation) return;
  const { sentence, differences } = report.emulation;
  byId("emulation").replaceChildren(
    make("h3", {}, "Emulation and NCCL"),
    make("p", {}, `${sentence}${differences.length ? ":" : "."}`),
    ...(differences.length ? [shortened(differences.map(differenceLine))] : []),
  );
}

/** @param {Difference} one */
function differenceLine(one) {
  const count = one.count > 1 ? `, ${one.count} cells` : "";
  return make(
    "li",
    {},
    make("code", {}, one.name),
    " is ",
    make("b", {}, one.shown),
    ` in ${one.lane} and `,
    make("b", {}, one.emulated),
    ` in ${one.emulatedLane} on ${one.releases}: ${one.topologies}${count}`,
  );
}

function fillFloors() {
  byId("declared").replaceChildren(
    report.declared.length ? make("ul", {}, ...report.declared.map((sentence) => make("li", {}, sentence))) : "",
  );
  const heads = ["right on", "to require", "wrong on", "not measured", "lane", "cases"];
  const body = report.floors.map((floor) => [
    floor.right,
    floor.sayable ? make("code", {}, floor.requirement) : floor.requirement,
    floor.wrong,
    floor.unknown,
    floor.lane,
    make("span", { class: "case" }, floor.cases.join(", ")),
  ]);
  byId("ranges").replaceChildren(body.length ? scrolledTable("Ranges of releases", heads, body) : make("p", {}, "Nothing was measured."));
}

function fillIssues() {
  const counted = (/** @type {Issue} */ issue) => {
    const card = issueCard(issue, "h4");
    card.querySelector(".source")?.prepend(`${told(issue.count)}. `);
    return card;
  };
  const part = (/** @type {string} */ title, /** @type {HTMLElement[]} */ cards) =>
    cards.length ? [make("h3", {}, title), make("div", { class: "cards" }, ...cards)] : [];
  byId("known").replaceChildren(
    ...part("Known upstream", report.issues.filter((one) => !one.byDesign).map(counted)),
    ...part("By design", report.issues.filter((one) => one.byDesign).map(counted)),
    ...part("No longer seen in what was measured", report.gone.map((one) => issueCard(one, "h4"))),
  );
  byId("issues").hidden = !report.issues.length && !report.gone.length;
}

/** @param {Leg} leg */
function legCard(leg) {
  const log = leg.logIsFile ? outside(leg.log, leg.log) : leg.log;
  const facts = [...leg.facts, ...(leg.log ? [/** @type {[string, string | Node]} */ (["log", log])] : [])];
  return make(
    "article",
    { class: "leg", "data-tone": tone(leg.standing) },
    make("h3", {}, leg.id),
    make("p", { class: "status" }, make("b", {}, leg.status), " ", leg.standing === "completed" ? "" : badge(leg.standing)),
    ...(leg.detail ? [make("p", {}, leg.detail)] : []),
    fillFacts(make("dl", { class: "facts" }), facts),
  );
}
