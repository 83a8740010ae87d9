// Elements. Text goes into a page as text only.

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Record<string, string>} attributes @param {(Node | string)[]} content
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

const QUOTED = 60;

/** What an address says, as a part of a sentence that it can neither steer nor fill. @param {string} text */
function quoted(text) {
  const plain = text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, "");
  return `“${plain.length > QUOTED ? `${plain.slice(0, QUOTED)}…` : plain}”`;
}

/** Names and values. @param {HTMLElement} list @param {[string, string | Node][]} facts */
function fillFacts(list, facts) {
  list.replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  return list;
}

/** A table that scrolls within itself. @param {string} title @param {(Node | string)[]} heads @param {(Node | string)[][]} body */
function scrolledTable(title, heads, body) {
  const table = make(
    "table",
    {},
    make("caption", { class: "unseen" }, title),
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make(
      "tbody",
      {},
      ...body.map(([first, ...rest]) =>
        make("tr", {}, make("th", { scope: "row" }, first), ...rest.map((cell) => make("td", {}, cell))),
      ),
    ),
  );
  return make("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": title }, table);
}

/** @param {string} text @param {string} title */
function block(text, title) {
  return make("pre", { tabindex: "0", role: "region", "aria-label": title }, text);
}

/** A command with a button that copies it. @param {string} command @param {string} title */
function copyable(command, title) {
  const button = make("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    say((await copy(command, code)) ? "Copied." : "It could not be copied; it is selected.");
  });
  const code = block(command, title);
  return make("div", { class: "command" }, code, button);
}

/** @param {string} text @param {HTMLElement} shown */
async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Where a page may not reach the clipboard, as in a frame: the old way, by what is selected.
    getSelection()?.selectAllChildren(shown);
    return document.execCommand("copy");
  }
}

/** For screen readers, and for eyes for a moment. @param {string} sentence */
function say(sentence) {
  const open = document.querySelector("dialog[open] .said") ?? byId("said");
  open.textContent = sentence;
  setTimeout(() => {
    if (open.textContent === sentence) open.textContent = "";
  }, 4000);
}

/** @param {string} address @param {string} label */
function outside(address, label) {
  return make("a", { href: address, rel: "noreferrer" }, label);
}

/** How a standing is called in a style. @param {string} standing */
function tone(standing) {
  return standing.replaceAll(" ", "-");
}

/** @param {string} standing */
function badge(standing) {
  return make("span", { class: "badge", "data-tone": tone(standing) }, standing);
}
