// The page as a whole: one view, shown by the address, changed by the reader.

let view = viewOfAddress();
let found = find(view);
/** Whether the open evidence was opened here, so that going back closes it. */
let openedHere = false;

const dialog = /** @type {HTMLDialogElement} */ (byId("evidence"));
const words = /** @type {HTMLInputElement} */ (byId("words"));
/** @type {Map<string, {box: HTMLInputElement, count: HTMLElement, label: HTMLElement}>} */
const boxes = new Map();

/** @param {Partial<View>} change @param {"push" | "replace"} manner */
function go(change, manner) {
  const filtered = "chosen" in change || "words" in change;
  view = { ...view, ...change, missing: [] };
  show(filtered);
  const address = addressOf(view);
  try {
    if (manner === "push") history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  } catch {
    location.hash = address; // where a page may not write its history, or writes it too often
  }
}

/** @param {boolean} filtered */
function show(filtered) {
  if (filtered) {
    found = find(view);
    paint(found);
    tellFilters();
  }
  showEvidence();
}

function tellFilters() {
  const all = size.toLocaleString("en");
  const sentence = `${found.found === size ? `All ${all}` : `${found.found.toLocaleString("en")} of ${all}`} cells are shown.`;
  byId("count").textContent = size ? sentence : "No case was observed.";
  byId("keys").hidden = !size;
  const chosen = facets.filter((one) => view.chosen[one.name].size);
  const parts = chosen.map((one) => `${one.title.toLowerCase()} ${[...view.chosen[one.name]].join(" or ")}`);
  if (view.words) parts.push(quoted(view.words));
  byId("chosen").textContent = parts.length ? `Filtered by ${parts.join("; ")}.` : "";
  byId("missing").textContent = view.missing.length ? `This report has no ${view.missing.join(", no ")}.` : "";
  byId("clear").hidden = !parts.length;
  if (words.value !== view.words) words.value = view.words;
  for (const facet of facets) {
    facet.options.forEach((option, place) => {
      const control = boxes.get(boxName(facet.name, option.value));
      if (!control) return;
      control.box.checked = view.chosen[facet.name].has(option.value);
      control.count.textContent = found.counts[facet.name][place].toLocaleString("en");
      control.label.classList.toggle("none", !found.counts[facet.name][place]);
    });
  }
}

/** @param {string} facet @param {string} value */
function boxName(facet, value) {
  return `${facet} ${value}`;
}

function fillFacets() {
  for (const facet of facets) {
    const options = facet.options.filter((option) => option.value);
    if (facet.name === "baseline" && !report.verdict.compared) continue;
    if (!options.length) continue;
    byId("facets").append(
      make("fieldset", {}, make("legend", {}, facet.title), ...options.map((option) => choice(facet, option))),
    );
  }
}

/** @param {Facet} facet @param {{value: string, shown: string}} option */
function choice(facet, option) {
  const box = make("input", { type: "checkbox", name: facet.name, value: option.value });
  const count = make("span", { class: "count" });
  const label = make("label", { class: "choice" }, box, make("span", { class: "name" }, option.shown), " ", count);
  if (facet.name === "standing") label.dataset.tone = tone(option.value);
  box.addEventListener("change", () => {
    const wanted = new Set(view.chosen[facet.name]);
    if (box.checked) wanted.add(option.value);
    else wanted.delete(option.value);
    go({ chosen: { ...view.chosen, [facet.name]: wanted } }, "push");
  });
  boxes.set(boxName(facet.name, option.value), { box, count, label });
  return label;
}

/** @param {string} [standing] */
function clearFilters(standing) {
  const chosen = /** @type {Record<FacetName, Set<string>>} */ ({});
  for (const name of FACETS) chosen[name] = new Set(name === "standing" && standing ? [standing] : []);
  go({ chosen, words: "" }, "push");
}

/** @param {Entry} entry */
function open(entry) {
  // From one cell to the next is no step of its own on the way back.
  const stepping = dialog.open;
  openedHere = openedHere || !stepping;
  go({ open: entry }, stepping ? "replace" : "push");
}

/** @type {Entry | null} */
let shownEntry = null;

function showEvidence() {
  if (!view.open) {
    shownEntry = null;
    if (dialog.open) dialog.close();
    return;
  }
  if (view.open === shownEntry && dialog.open) return;
  shownEntry = view.open;
  dialog.replaceChildren(...evidenceOf(view.open, found, open));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  byId("evidence-title").focus();
}

dialog.addEventListener("close", () => {
  const left = view.open;
  if (!left) return;
  view = { ...view, open: null };
  shownEntry = null;
  buttonOf(left)?.focus();
  if (openedHere) history.back();
  else go({}, "replace");
  openedHere = false;
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // beside the panel
});

/** Shows what the address asks for; what it asks for in vain is told, and taken out of it. */
function showAddress() {
  view = viewOfAddress();
  show(true);
  if (!view.missing.length) return;
  try {
    history.replaceState(null, "", addressOf(view));
  } catch {
    // Where a page may not write its history the address stays as it was asked for.
  }
}

addEventListener("popstate", showAddress);

// Links within the page lead somewhere without taking the place of the view in the address.
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest('a[href^="#"]') : null;
  const aim = link && document.getElementById(/** @type {string} */ (link.getAttribute("href")).slice(1));
  if (!aim) return;
  event.preventDefault();
  goTo(aim);
});

/** @param {HTMLElement} part */
function goTo(part) {
  part.scrollIntoView();
  part.querySelector("h2")?.focus({ preventScroll: true });
}

function fillContents() {
  const parts = [...document.querySelectorAll("main > section:not([hidden])")];
  const links = parts.map((part) => make("a", { href: `#${part.id}` }, part.querySelector("h2")?.textContent ?? ""));
  byId("contents").replaceChildren(...links.map((link) => make("li", {}, link)));
}

const tables = byId("tables");
for (const grids of [tables, byId("telling")]) {
  grids.addEventListener("keydown", moveByKey);
  grids.addEventListener("focusin", stopHere);
}
tables.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button.entry") : null;
  if (!(button instanceof HTMLElement)) return;
  const entry = entryAt(Number(button.dataset.row), Number(button.dataset.column));
  if (entry) open(entry);
});
words.addEventListener("input", () => go({ words: words.value }, "replace"));
byId("clear").addEventListener("click", () => {
  clearFilters();
  words.focus();
});

// On paper: what the filters leave, whole, and the evidence of what fails in it.

const PRINTED = 300;
const PRINTED_LINES = 12;

addEventListener("beforeprint", () => {
  paint(found, true);
  const failing = [...entries.values()].filter((entry) =>
    entry.cells.some((cell) => found.matching[cell] && outcomes[cells.outcome[cell]].failure),
  );
  const left = failing.length - PRINTED;
  byId("evidence-printed").replaceChildren(
    ...failing.slice(0, PRINTED).map(printedEvidence),
    left > 0 ? `${left} more squares of the matrix fail; a filter prints the evidence of those that it leaves.` : "",
  );
  byId("printed").hidden = !failing.length;
});
addEventListener("afterprint", () => {
  byId("printed").hidden = true;
  byId("evidence-printed").replaceChildren();
});

/** The worst of the cells behind a square, whole; the others by name. @param {Entry} entry */
function printedEvidence(entry) {
  const column = columns[entry.column];
  const failing = entry.cells.filter((cell) => found.matching[cell] && outcomes[cells.outcome[cell]].failure);
  const [worst, ...others] = failing.sort((one, other) => weight(one) - weight(other));
  const line = (/** @type {number} */ cell) => `${texts[cells.shown[cell]]} ${texts[cells.where[cell]]}`;
  const body = bodyOf(worst);
  for (const lines of body) {
    if (lines instanceof HTMLPreElement) lines.textContent = firstLines(lines.textContent ?? "");
  }
  return make(
    "article",
    {},
    make("h3", {}, `${nameOf(column)}, torch ${rows[entry.row].label}, ${column.shown}`),
    make("p", {}, `${line(worst)}, ${standings[cells.standing[worst]].name}`),
    ...body,
    ...(others.length ? [make("p", {}, `Also: ${others.map(line).join("; ")}`)] : []),
  );
}

/** @param {string} text */
function firstLines(text) {
  const lines = text.trimEnd().split("\n");
  return lines.length > PRINTED_LINES ? [...lines.slice(0, PRINTED_LINES), "…"].join("\n") : text;
}

const wide = matchMedia("(min-width: 64rem)");
const filters = /** @type {HTMLDetailsElement} */ (byId("filters"));
const fold = () => {
  filters.open = wide.matches;
};
wide.addEventListener("change", fold);
fold();

fillFacets();
fillParts(open, (standing) => {
  clearFilters(standing);
  goTo(byId("matrix"));
});
fillContents();
showAddress();
