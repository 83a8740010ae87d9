// What is looked at, as the part of the address after `#`: a view can be sent on, and goes back and forward.

/**
 * @typedef {"suite" | "lane" | "topology" | "outcome" | "standing" | "baseline"} FacetName
 * @typedef {{chosen: Record<FacetName, Set<string>>, words: string, open: Entry | null, missing: string[]}} View
 *   `missing` is what the address asks for and this report does not have.
 */

/** @type {FacetName[]} */
const FACETS = ["suite", "lane", "topology", "outcome", "standing", "baseline"];

/** @returns {View} */
function viewOfAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const chosen = /** @type {Record<FacetName, Set<string>>} */ ({});
  const missing = [];
  for (const name of FACETS) {
    const { title, options } = facetNamed(name);
    const there = new Set(options.map((option) => option.value).filter(Boolean));
    const [kept, gone] = [true, false].map((one) => asked.getAll(name).filter((value) => there.has(value) === one));
    chosen[name] = new Set(kept);
    missing.push(...gone.map((value) => `${title.toLowerCase()} ${quoted(value)}`));
  }
  const open = entryNamed(asked);
  if (!open && asked.has("cell")) missing.push(`cell ${["cell", "in", "on"].map((name) => quoted(asked.get(name) ?? "")).join(", ")}`);
  return { chosen, words: asked.get("search") ?? "", open, missing };
}

/** @param {View} view */
function addressOf(view) {
  /** @type {[string, string][]} */
  const parts = FACETS.flatMap((name) => [...view.chosen[name]].map((value) => part(name, value)));
  if (view.words) parts.push(["search", view.words]);
  if (view.open) {
    const column = columns[view.open.column];
    parts.push(["cell", nameOf(column)], ["in", column.lane], ["on", rows[view.open.row].label]);
  }
  // The few characters that are common here and need no escape are left readable.
  return `#${new URLSearchParams(parts).toString().replaceAll("%2F", "/").replaceAll("%2C", ",")}`;
}

/** @param {string} name @param {string} value @returns {[string, string]} */
function part(name, value) {
  return [name, value];
}

/** @param {URLSearchParams} asked @returns {Entry | null} */
function entryNamed(asked) {
  const name = asked.get("cell");
  if (name === null) return null;
  const column = columns.findIndex((one) => nameOf(one) === name && one.lane === asked.get("in"));
  const row = rows.findIndex((one) => one.label === asked.get("on"));
  return entryAt(row, column) ?? null;
}
