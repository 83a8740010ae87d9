// What a square rests on: every cell behind it, with what each rank reported and the command that shows it again.

/** @param {Entry} entry @param {Found} found @param {(entry: Entry) => void} open */
function evidenceOf(entry, found, open) {
  const column = columns[entry.column];
  const row = rows[entry.row];
  const sorted = [...entry.cells].sort((one, other) => weight(one) - weight(other));
  const looked = sorted.filter((cell) => found.matching[cell]);
  const others = sorted.filter((cell) => !found.matching[cell]);
  const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "✕");
  close.addEventListener("click", () => close.closest("dialog")?.close());
  return [
    make(
      "header",
      {},
      make("div", {}, make("h2", { id: "evidence-title", tabindex: "-1" }, nameOf(column)), close),
      make("p", {}, `torch ${row.label}, ${column.shown}`),
      make("p", { class: "sum" }, sumOf(entry, found)),
      neighbours(entry, open),
      make("p", { class: "said", role: "status" }),
    ),
    make(
      "div",
      { class: "body" },
      ...explained(nameOf(column)),
      ...issuesOf(entry),
      ...listed(looked.length ? looked : sorted, `${told(looked.length || sorted.length)}`),
      ...(looked.length && others.length ? listed(others, `${told(others.length)} that the filters leave out`, false) : []),
    ),
  ];
}

/** @param {number} count */
function told(count) {
  return `${count} cell${count === 1 ? "" : "s"}`;
}

/** @param {Entry} entry @param {Found} found */
function sumOf(entry, found) {
  const words = wordsOf(entry, found);
  if (!words) return "None of its cells is among what is filtered.";
  return words.notes ? `${words.said} (${words.notes})` : words.said;
}

/** The same case on the release before and after. @param {Entry} entry @param {(entry: Entry) => void} open */
function neighbours(entry, open) {
  const measured = rows.flatMap((_, row) => entryAt(row, entry.column) ?? []);
  const place = measured.indexOf(entry);
  const button = (/** @type {Entry | undefined} */ other, /** @type {string} */ before, /** @type {string} */ after) => {
    if (!other) return "";
    const made = make("button", { type: "button" }, `${before}torch ${rows[other.row].label}${after}`);
    made.addEventListener("click", () => open(other));
    return made;
  };
  return make(
    "div",
    { class: "neighbours", role: "group", "aria-label": "The same case on other releases" },
    button(measured[place - 1], "← ", ""),
    button(measured[place + 1], "", " →"),
  );
}

/** @param {string} name */
function explained(name) {
  const facts = report.explanations[name];
  if (!facts) return [];
  const list = fillFacts(make("dl", { class: "facts" }), facts);
  return [make("details", { class: "explained" }, make("summary", {}, "What it computes"), list)];
}

/** @param {Entry} entry */
function issuesOf(entry) {
  const places = [...new Set(entry.cells.map((cell) => cells.issue[cell]))].filter((place) => place >= 0);
  return places.map((place) => issueCard(report.issues[place], "h3"));
}

/** @param {Issue} issue @param {"h3" | "h4"} level */
function issueCard(issue, level) {
  const source = issue.isAddress ? outside(issue.source, issue.source) : issue.source;
  return make(
    "article",
    { class: "issue", "data-tone": issue.byDesign ? "by-design" : "known-failure" },
    make(level, {}, issue.title),
    make("p", {}, issue.reader),
    make("p", { class: "source" }, issue.byDesign ? "By design" : "Known upstream", ": ", source, " ", make("code", {}, issue.id)),
  );
}

/** Cells of a square that are listed when it is opened, and with each further step. */
const CELLS_AT_ONCE = 50;
const CELLS_MORE = 500;

/** @param {number[]} some @param {string} title @param {boolean} open */
function listed(some, title, open = true) {
  const elements = (/** @type {number[]} */ part) => part.map((cell) => cellOf(cell, open && cell === some[0]));
  return [make("h3", {}, title), ...elements(some.slice(0, CELLS_AT_ONCE)), ...remainder(some.slice(CELLS_AT_ONCE), elements)];
}

/** A button that gives its place to what was too much at once. @param {number[]} rest @param {(part: number[]) => HTMLElement[]} elements */
function remainder(rest, elements) {
  if (!rest.length) return [];
  const more = make("button", { type: "button", class: "more-cells" });
  const tell = () => {
    more.textContent = `Show ${Math.min(rest.length, CELLS_MORE).toLocaleString("en")} more`;
  };
  more.addEventListener("click", () => {
    const added = elements(rest.splice(0, CELLS_MORE));
    more.before(...added);
    added[0].querySelector("summary")?.focus();
    if (rest.length) tell();
    else more.remove();
  });
  tell();
  return [more];
}

/** One cell; what is in it is made when it is opened. @param {number} cell @param {boolean} open */
function cellOf(cell, open) {
  const standing = standings[cells.standing[cell]].name;
  const summary = make(
    "summary",
    {},
    make("b", {}, texts[cells.shown[cell]]),
    " ",
    badge(standing),
    make("span", { class: "where" }, ` ${texts[cells.where[cell]]}`),
  );
  const details = make("details", { class: "cell", "data-tone": tone(standing) }, summary);
  const fill = () => {
    if (details.open && details.childElementCount === 1) details.append(...bodyOf(cell));
  };
  details.addEventListener("toggle", fill);
  details.open = open;
  fill();
  return details;
}

/** @param {number} cell @returns {Node[]} */
function bodyOf(cell) {
  const message = texts[cells.message[cell]];
  const rank = cells.firstRank[cell] >= 0 ? `First rank: ${cells.firstRank[cell]}` : "";
  const told = report.lists.facts[cells.facts[cell]].map(([name, value]) => pair(texts[name], texts[value]));
  const facts = [...told, pair("leg", report.legs[cells.leg[cell]].id)];
  return [
    ...(message ? [make("p", { class: "label" }, rank || "Message"), block(message, "Message")] : []),
    fillFacts(make("dl", { class: "facts" }), !message && rank ? [pair("first rank", `${cells.firstRank[cell]}`), ...facts] : facts),
    ...ranksOf(cell),
    make("p", { class: "label" }, "Shown again by"),
    copyable(commandOf(cell), "Command"),
  ];
}

/** @param {string} name @param {string} value @returns {[string, string]} */
function pair(name, value) {
  return [name, value];
}

/** @param {number} cell */
function commandOf(cell) {
  return texts[cells.commandHead[cell]] + texts[cells.commandTail[cell]];
}

/** @param {number} cell @returns {Node[]} */
function ranksOf(cell) {
  const reports = report.lists.ranks[cells.ranks[cell]].map((place) => report.lists.reports[place]);
  if (!reports.length) return [];
  const shown = reports.map(([rank, ...told]) => [`${rank}`, ...told.slice(0, 4).map((text) => texts[text])]);
  const heads = ["rank", "outcome", "factor", "relative error", "exception"];
  // A column in which no rank has anything says nothing.
  const kept = heads.map((_, place) => place).filter((place) => place < 2 || shown.some((line) => line[place]));
  return [
    scrolledTable("Ranks", kept.map((place) => heads[place]), shown.map((line) => kept.map((place) => line[place]))),
    ...linesOf(reports, 5, "Traceback"),
    ...linesOf(reports, 6, "Stack while it hung"),
  ];
}

/** Ranks that say the same say it once. @param {number[][]} reports @param {number} place @param {string} title */
function linesOf(reports, place, title) {
  /** @type {Map<number, number[]>} */
  const ranks = new Map();
  for (const one of reports) {
    if (one[place]) ranks.set(one[place], [...(ranks.get(one[place]) ?? []), one[0]]);
  }
  return [...ranks].flatMap(([text, some]) => {
    const label = `${title}, rank${some.length === 1 ? "" : "s"} ${some.join(", ")}`;
    return [make("p", { class: "label" }, label), block(texts[text], label)];
  });
}
