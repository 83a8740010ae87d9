// What the cells of one square say together: `Entry.text` of `matrix/table.py`, for the cells that are looked at.

const BY_DESIGN = standings.findIndex((one) => one.name === "by design");
const PASS = outcomes.findIndex((one) => one.name === "pass");
const NOT_RUN = new Set(outcomes.flatMap((one, place) => (["unsupported", "absent"].includes(one.name) ? [place] : [])));
const SCALED = outcomes.findIndex((one) => one.name === "scaled");

/**
 * @typedef {{said: string, notes: string, outcome: number, standing: number}} Words
 *   `said` is sign, word and factor, `notes` how many cells have it and whether somebody has to look at it.
 */

/**
 * Null where none of its cells is looked at. Of how many cells is said of all that are in scope: a filter by outcome
 * must not make `2 of 3` a `2 of 2`.
 * @param {Entry} entry @param {Found} found @returns {Words | null}
 */
function wordsOf(entry, found) {
  const looked = entry.cells.filter((cell) => found.matching[cell]);
  if (!looked.length) return null;
  const telling = looked.filter((cell) => cells.standing[cell] !== BY_DESIGN);
  const worst = (telling.length ? telling : looked).reduce((one, other) => (weight(other) < weight(one) ? other : one));
  const outcome = cells.outcome[worst];
  const standing = cells.standing[worst];
  const notes = [];
  const failing = standing !== BY_DESIGN && outcomes[outcome].failure;
  const counts = countsOf(telling);
  const measured = entry.cells.filter((cell) => found.scoped[cell] && cells.standing[cell] !== BY_DESIGN && ran(cell));
  if (failing && measured.length > 1) {
    const others = [...counts].filter(([other]) => other !== outcome && outcomes[other].failure);
    const told = others.map(([other, count]) => `${count} ${outcomes[other].name}`);
    notes.push([`${counts.get(outcome)} of ${measured.length}`, ...told].join(", "));
  }
  const designed = looked.length - telling.length;
  if (standing !== BY_DESIGN && designed) notes.push(`${designed} failing by design`);
  const note = standings[standing].note;
  if (note) notes.push(note);
  const { sign, word } = signOf(entry, outcome);
  return { said: `${sign} ${word}${factorOf(outcome, looked)}`, notes: notes.join(", "), outcome, standing };
}

/** A test that asked not to be run is skipped. @param {Entry} entry @param {number} outcome */
function signOf(entry, outcome) {
  const skipped = columns[entry.column].skips && outcomes[outcome].name === "unsupported";
  return skipped ? report.skipped : outcomes[outcome];
}

/** Smaller is worse: standings and outcomes are listed worst first. @param {number} cell */
function weight(cell) {
  return cells.standing[cell] * outcomes.length + cells.outcome[cell];
}

/** @param {number} cell */
function ran(cell) {
  return !NOT_RUN.has(cells.outcome[cell]);
}

/** In the order in which outcomes are met. @param {number[]} some */
function countsOf(some) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const cell of some) counts.set(cells.outcome[cell], (counts.get(cells.outcome[cell]) ?? 0) + 1);
  return counts;
}

/** Where all scaled cells agree on one. @param {number} outcome @param {number[]} looked */
function factorOf(outcome, looked) {
  if (outcome !== SCALED) return "";
  const scaled = looked.filter((cell) => cells.outcome[cell] === SCALED && cells.factor[cell] >= 0);
  const factors = new Set(scaled.map((cell) => cells.factor[cell]));
  return factors.size === 1 ? ` ×${report.lists.factors[[...factors][0]]}` : "";
}
