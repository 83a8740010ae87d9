// The report's data, as `matrix/page_data.py` made them.

/**
 * @typedef {{label: string, torch: string, deepspeed: string, python: string, right: string, unfinished: string,
 *   known: string, waits: string[]}} Row
 * @typedef {{suite: string, case: string, lane: string, shown: string, skips: boolean}} Column
 * @typedef {{name: string, sign: string, word: string, meaning: string, failure: boolean}} Outcome
 * @typedef {{name: string, note: string | null, meaning: string}} Standing
 * @typedef {{id: string, title: string, reader: string, source: string, isAddress: boolean, byDesign: boolean,
 *   count: number}} Issue
 * @typedef {{shown: string, was: string, name: string, lane: string, releases: string, topologies: string,
 *   count: number, message: string, row: number, column: number}} Alike
 * @typedef {{title: string, standing: string, legs: {id: string, status: string, detail: string}[],
 *   cells: Alike[]}} News
 * @typedef {Alike & {emulated: string, emulatedLane: string}} Difference
 * @typedef {{id: string, status: string, standing: string, completed: boolean, detail: string,
 *   facts: [string, string][], log: string, logIsFile: boolean}} Leg
 * @typedef {{right: string, requirement: string, sayable: boolean, wrong: string, unknown: string, lane: string,
 *   cases: string[]}} Floor
 * @typedef {"row" | "column" | "leg" | "topology" | "where" | "outcome" | "shown" | "standing" | "was" | "factor" |
 *   "issue" | "firstRank" | "message" | "facts" | "ranks" | "commandHead" | "commandTail"} CellColumn
 */

/**
 * @type {{verdict: {sentence: string, holds: boolean, basis: string, compared: boolean}, outcomes: Outcome[],
 *   skipped: {sign: string, word: string, meaning: string}, noResult: string, standings: Standing[], rows: Row[], columns: Column[],
 *   cells: Record<CellColumn, number[]>, telling: {columns: number[], rows: string[][]}, news: News[],
 *   changes: News | null, emulation: {sentence: string, differences: Difference[]} | null,
 *   recommended: {install: string, told: string} | null, floors: Floor[], declared: string[],
 *   legs: Leg[], issues: Issue[], gone: Issue[], provenance: [string, string][],
 *   explanations: Record<string, [string, string][]>,
 *   lists: {texts: string[], factors: string[], facts: [number, number][][], reports: number[][],
 *   ranks: number[][]}}}
 */
const report = JSON.parse(byId("data").textContent ?? "");
const { cells, rows, columns, outcomes, standings } = report;
const { texts } = report.lists;
const size = cells.row.length;

/**
 * A square of the matrix: what one case did on one release in one lane.
 * @typedef {{row: number, column: number, cells: number[]}} Entry
 */

/** @type {Map<number, Entry>} By `row * columns.length + column`. */
const entries = new Map();
for (let cell = 0; cell < size; cell++) {
  const key = cells.row[cell] * columns.length + cells.column[cell];
  const entry = entries.get(key);
  if (entry) entry.cells.push(cell);
  else entries.set(key, { row: cells.row[cell], column: cells.column[cell], cells: [cell] });
}

/** @param {number} row @param {number} column */
function entryAt(row, column) {
  return entries.get(row * columns.length + column);
}

/** @param {Column} column */
function nameOf(column) {
  return `${column.suite}/${column.case}`;
}

/** @param {string} id @returns {HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element ${id}`);
  return found;
}
