// Which cells are looked at.

/**
 * @typedef {{name: FacetName, title: string, options: {value: string, shown: string}[], of: Int32Array}} Facet
 *   `of` says for each cell which option it has.
 * @typedef {{scoped: Uint8Array, matching: Uint8Array, found: number, counts: Record<FacetName, Int32Array>}} Found
 *   `scoped` cells are those of the chosen suites, lanes and topologies; `matching` fit in every respect. `counts` are
 *   the cells that each option would find, with everything else as it is chosen.
 */

const SCOPE = new Set(["suite", "lane", "topology"]);
const CHANGED = "changed";

/** @type {Facet[]} */
const facets = [
  facet("suite", "Suite", (cell) => columns[cells.column[cell]].suite),
  facet("lane", "Lane", (cell) => columns[cells.column[cell]].lane, (cell) => columns[cells.column[cell]].shown),
  facet("topology", "Topology", (cell) => texts[cells.topology[cell]]),
  facet("outcome", "Outcome", (cell) => outcomes[cells.outcome[cell]].name, (cell) => {
    const { sign, word } = outcomes[cells.outcome[cell]];
    return `${sign} ${word}`;
  }),
  facet("standing", "Standing", (cell) => standings[cells.standing[cell]].name),
  facet(
    "baseline",
    "Baseline",
    (cell) => (cells.was[cell] >= 0 && cells.was[cell] !== cells.outcome[cell] ? CHANGED : ""),
    () => "another outcome than there",
  ),
];
inOrder("outcome", outcomes);
inOrder("standing", standings);

/**
 * @param {FacetName} name @param {string} title
 * @param {(cell: number) => string} valueOf @param {(cell: number) => string} shownOf
 * @returns {Facet}
 */
function facet(name, title, valueOf, shownOf = valueOf) {
  /** @type {Map<string, number>} */
  const place = new Map();
  const options = [];
  const of = new Int32Array(size);
  for (let cell = 0; cell < size; cell++) {
    const value = valueOf(cell);
    let option = place.get(value);
    if (option === undefined) {
      option = options.length;
      place.set(value, option);
      options.push({ value, shown: shownOf(cell) });
    }
    of[cell] = option;
  }
  return { name, title, options, of };
}

/** Options that have an order of their own, rather than that in which they are met. @param {FacetName} name @param {{name: string}[]} order */
function inOrder(name, order) {
  const found = facetNamed(name);
  const sorted = order.flatMap((one) => found.options.filter((option) => option.value === one.name));
  const moved = found.options.map((option) => sorted.indexOf(option));
  found.options = sorted;
  for (let cell = 0; cell < size; cell++) found.of[cell] = moved[found.of[cell]];
}

/** @param {FacetName} name @returns {Facet} */
function facetNamed(name) {
  return /** @type {Facet} */ (facets.find((one) => one.name === name));
}

/** @param {View} view @returns {Found} */
function find(view) {
  const active = facets.map((facet) => {
    const wanted = facet.options.map((option) => (view.chosen[facet.name].has(option.value) ? 1 : 0));
    return { facet, wanted, any: wanted.every((one) => one === 0), scope: SCOPE.has(facet.name) };
  });
  const says = searched(view.words);
  const scoped = new Uint8Array(size);
  const matching = new Uint8Array(size);
  const counts = /** @type {Record<FacetName, Int32Array>} */ ({});
  for (const { facet } of active) counts[facet.name] = new Int32Array(facet.options.length);
  let found = 0;
  for (let cell = 0; cell < size; cell++) {
    let misses = 0;
    let missed = /** @type {Facet | null} */ (null);
    let inScope = true;
    for (const { facet, wanted, any, scope } of active) {
      if (any || wanted[facet.of[cell]]) continue;
      misses++;
      missed = facet;
      if (scope) inScope = false;
    }
    if (inScope) scoped[cell] = 1;
    if (misses > 1 || !says(cell)) continue;
    if (missed) {
      counts[missed.name][missed.of[cell]]++;
      continue;
    }
    matching[cell] = 1;
    found++;
    for (const { facet } of active) counts[facet.name][facet.of[cell]]++;
  }
  return { scoped, matching, found, counts };
}

/** @type {string[] | null} Made at the first search. */
let lowered = null;

/** Whether a cell has all of the words, anywhere in what is told of it. @param {string} words @returns {(cell: number) => boolean} */
function searched(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return () => true;
  lowered ??= texts.map((text) => text.toLowerCase());
  const within = lowered;
  const tests = wanted.map((word) => {
    const has = (/** @type {string} */ text) => text.toLowerCase().includes(word);
    const text = within.map((one) => one.includes(word));
    const column = columns.map((one) => has(`${nameOf(one)} ${one.shown}`));
    const row = rows.map((one) => has(`torch ${one.label}`));
    const issue = report.issues.map((one) => has(`${one.id} ${one.title}`));
    const standing = standings.map((one) => has(one.name));
    return (/** @type {number} */ cell) =>
      column[cells.column[cell]] ||
      row[cells.row[cell]] ||
      text[cells.message[cell]] ||
      text[cells.where[cell]] ||
      text[cells.shown[cell]] ||
      standing[cells.standing[cell]] ||
      (cells.issue[cell] >= 0 && issue[cells.issue[cell]]);
  });
  return (cell) => tests.every((test) => test(cell));
}
