// The matrix: for each suite and lane a table, cases down, releases across.

/**
 * @typedef {{row: HTMLTableRowElement, cells: {td: HTMLTableCellElement, button: HTMLButtonElement | null,
 *   painted: string}[]}} Line
 * @typedef {{suite: string, lane: string, shown: string, columns: number[], rows: number[], element: HTMLElement | null,
 *   heads: HTMLTableCellElement[], body: HTMLTableSectionElement | null, lines: Line[], more: HTMLButtonElement | null,
 *   whole: boolean}} Section
 *   `whole`: whether more lines are shown than come at once.
 */

/** The milliseconds after which painting lets the browser show what is there, and goes on: shorter slices would make
 * it lay out the same table several times. */
const SLICE = 32;
/** Squares that a table shows at once: more of them would be slow to lay out, and nobody reads on without a filter. */
const AT_ONCE = 500;
const LINES_AT_ONCE = 100;

const sections = sectionsOf();

/** @returns {Section[]} */
function sectionsOf() {
  /** @type {Map<string, Section>} */
  const found = new Map();
  columns.forEach((column, place) => {
    const key = JSON.stringify([column.suite, column.lane]);
    const { suite, lane, shown } = column;
    if (!found.has(key)) {
      const built = { element: null, heads: [], body: null, lines: [], more: null, whole: false };
      found.set(key, { suite, lane, shown, columns: [], rows: [], ...built });
    }
    found.get(key)?.columns.push(place);
  });
  for (const section of found.values()) {
    section.rows = rows.flatMap((row, place) => {
      const measured = section.columns.some((column) => entryAt(place, column));
      return measured || row.waits.includes(section.lane) ? [place] : [];
    });
  }
  // Where nothing ran is looked at last.
  const anything = (/** @type {Section} */ section) =>
    section.columns.some((column) => section.rows.some((row) => entryAt(row, column)?.cells.some(ran)));
  return [...found.values()].sort((one, other) => Number(anything(other)) - Number(anything(one)));
}

/** What is painted at present; a newer wish takes its place. */
let painting = 0;

/** Shows what was found: at once what is on the screen, the rest in slices. @param {Found} found @param {boolean} whole */
function paint(found, whole = false) {
  const mine = ++painting;
  const work = painted(found, whole);
  const tables = byId("tables");
  const slice = () => {
    if (mine !== painting) return;
    const end = performance.now() + SLICE;
    for (;;) {
      if (work.next().done) {
        tables.removeAttribute("aria-busy");
        return;
      }
      if (!whole && performance.now() > end) break;
    }
    tables.setAttribute("aria-busy", "true");
    setTimeout(slice);
  };
  slice();
}

/** @param {Found} found @param {boolean} whole @returns {Generator<undefined, void, undefined>} */
function* painted(found, whole) {
  for (const section of sections) {
    // What a square says is worked out for those that are shown; of the others, whether they are there.
    const looked = section.columns.map((column) => section.rows.map((row) => isLookedAt(entryAt(row, column), found)));
    const down = looked.map((line) => line.includes(true));
    const any = down.includes(true);
    const across = section.rows.map(
      (row, place) => looked.some((line) => line[place]) || (rows[row].waits.includes(section.lane) && any),
    );
    if (!section.element && !any) continue;
    const body = section.body ?? built(section);
    if (section.element) toggle(section.element, !any);
    if (!any) continue;
    section.heads.forEach((head, place) => toggle(head, !across[place]));
    const room = whole || section.whole ? Infinity : Math.min(LINES_AT_ONCE, Math.ceil(AT_ONCE / section.rows.length));
    let count = 0;
    for (const [place, column] of section.columns.entries()) {
      const shown = down[place] && ++count <= room;
      if (!shown) {
        if (section.lines[place]) toggle(section.lines[place].row, true);
        continue;
      }
      section.lines[place] ??= madeLine(section, place, body);
      const entries = section.rows.map((row) => entryAt(row, column));
      paintLine(section.lines[place], entries.map((entry) => (entry ? wordsOf(entry, found) : null)), across);
      yield;
    }
    tellMore(section, Math.max(count - room, 0), found);
    keepOneStop(body);
  }
}

/** Writes only what changes. @param {HTMLElement} element @param {boolean} hidden */
function toggle(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/** @param {Section} section @returns {HTMLTableSectionElement} */
function built(section) {
  const id = `table-${sections.indexOf(section)}`;
  section.heads = section.rows.map((place) => headOf(rows[place]));
  section.body = make("tbody");
  const table = make(
    "table",
    { role: "grid", "aria-labelledby": id, "aria-describedby": "keys", "aria-readonly": "true" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col", class: "corner" }, "case"), ...section.heads)),
    section.body,
  );
  table.style.setProperty("--releases", `${section.rows.length}`);
  section.element = make(
    "section",
    { class: "suite", "aria-labelledby": id },
    make("h3", { id }, section.suite, " ", make("span", { class: "lane" }, section.shown)),
    make("div", { class: "scroller" }, table),
  );
  const next = sections.slice(sections.indexOf(section) + 1).find((other) => other.element);
  byId("tables").insertBefore(section.element, next?.element ?? null);
  return section.body;
}

/** @param {Row} row */
function headOf(row) {
  const head = make("th", { scope: "col" }, make("span", { class: "torch" }, `torch ${row.torch}`));
  if (row.deepspeed !== "none") head.append(make("span", { class: "more" }, `DeepSpeed ${row.deepspeed}`));
  if (row.python) head.append(make("span", { class: "more" }, `Python ${row.python}`));
  if (row.unfinished) head.append(make("span", { class: "more unfinished" }, row.unfinished));
  return head;
}

/** @param {Section} section @param {number} place @param {HTMLTableSectionElement} body @returns {Line} */
function madeLine(section, place, body) {
  const row = make("tr", {}, make("th", { scope: "row" }, columns[section.columns[place]].case));
  const cells = section.rows.map((release) => {
    const entry = entryAt(release, section.columns[place]);
    const td = make("td");
    const button = entry ? make("button", { type: "button", class: "entry", tabindex: "-1" }) : null;
    if (button) {
      button.dataset.row = `${release}`;
      button.dataset.column = `${section.columns[place]}`;
      td.append(button);
    } else {
      td.append(make("span", { class: "nothing" }, report.noResult));
    }
    return { td, button, painted: "" };
  });
  row.append(...cells.map((cell) => cell.td));
  let after = place + 1;
  while (after < section.lines.length && !section.lines[after]) after++;
  body.insertBefore(row, section.lines[after]?.row ?? null);
  return { row, cells };
}

/** @param {Section} section @param {number} left @param {Found} found */
function tellMore(section, left, found) {
  if (!section.more) {
    if (!left) return;
    section.more = make("button", { type: "button", class: "more-cases" });
    section.element?.append(section.more);
  }
  section.more.hidden = !left;
  section.more.textContent = `Show ${left.toLocaleString("en")} more cases`;
  section.more.onclick = () => {
    section.whole = true;
    paint(found);
  };
}

/** @param {Line} line @param {(Words | null)[]} words @param {boolean[]} across */
function paintLine(line, words, across) {
  toggle(line.row, false);
  line.cells.forEach((cell, place) => {
    toggle(cell.td, !across[place]);
    if (!cell.button) return;
    const told = words[place];
    const key = told ? `${told.said} (${told.notes}) ${told.standing}` : "none";
    if (key === cell.painted) return;
    cell.painted = key;
    toggle(cell.button, !told);
    cell.td.classList.toggle("out", !told);
    if (!told) {
      cell.td.setAttribute("aria-label", "filtered out");
      return;
    }
    cell.td.removeAttribute("aria-label");
    cell.button.dataset.tone = tone(standings[told.standing].name);
    cell.button.replaceChildren(told.said, ...(told.notes ? [make("small", {}, ` (${told.notes})`)] : []));
  });
}

// Keyboard: a table is one stop of the Tab key, arrow keys move within it.

/** @param {HTMLTableSectionElement} body */
function keepOneStop(body) {
  const stop = body.querySelector('button[tabindex="0"]');
  if (stop && shownCell(stop)) return;
  stop?.setAttribute("tabindex", "-1");
  body.querySelector("tr:not([hidden]) td:not([hidden]) button:not([hidden])")?.setAttribute("tabindex", "0");
}

/** @param {KeyboardEvent} event */
function moveByKey(event) {
  const from = event.target instanceof Element ? event.target.closest("button.entry") : null;
  const to = from instanceof HTMLButtonElement && !event.altKey && !event.metaKey ? target(from, event) : null;
  if (!to) return;
  event.preventDefault();
  to.focus();
}

/** @param {HTMLButtonElement} from @param {KeyboardEvent} event @returns {HTMLButtonElement | null} */
function target(from, event) {
  const line = /** @type {HTMLTableRowElement} */ (from.closest("tr"));
  const column = /** @type {HTMLTableCellElement} */ (from.parentElement).cellIndex;
  const within = (/** @type {Element | null} */ row) => [...(row?.querySelectorAll("button.entry:not([hidden])") ?? [])].filter(shownCell);
  const beside = within(line);
  const place = beside.indexOf(from);
  switch (event.key) {
    case "ArrowRight":
      return asButton(beside[place + 1]);
    case "ArrowLeft":
      return asButton(beside[place - 1]);
    case "Home":
      return asButton(event.ctrlKey ? within(line.parentElement)[0] : beside[0]);
    case "End":
      return asButton(event.ctrlKey ? within(line.parentElement).at(-1) : beside.at(-1));
    case "ArrowDown":
      return below(line, column, "nextElementSibling");
    case "ArrowUp":
      return below(line, column, "previousElementSibling");
  }
  return null;
}

/** The next line that has something there. @param {HTMLTableRowElement} line @param {number} column @param {"nextElementSibling" | "previousElementSibling"} way */
function below(line, column, way) {
  for (let row = line[way]; row instanceof HTMLTableRowElement; row = row[way]) {
    const button = row.cells[column].querySelector("button.entry:not([hidden])");
    if (!row.hidden && button) return asButton(button);
  }
  return null;
}

/** @param {Element} button */
function shownCell(button) {
  return !button.parentElement?.hidden && !button.closest("tr")?.hidden;
}

/** @param {Element | undefined} element */
function asButton(element) {
  return element instanceof HTMLButtonElement ? element : null;
}

/** @param {FocusEvent} event */
function stopHere(event) {
  const button = event.target instanceof Element ? event.target.closest("button.entry") : null;
  if (!button) return;
  for (const other of button.closest("tbody")?.querySelectorAll('button[tabindex="0"]') ?? []) {
    other.setAttribute("tabindex", "-1");
  }
  button.setAttribute("tabindex", "0");
}

/** @param {Entry} entry @returns {HTMLElement | null} */
function buttonOf(entry) {
  return byId("tables").querySelector(`button[data-row="${entry.row}"][data-column="${entry.column}"]`);
}
