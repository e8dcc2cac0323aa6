// Markdown as elements, for a text that grows: lines that are complete are built once, and each
// change builds the last line and the paragraph it stands in again. Texts become text nodes alone.

// Deeper lists and quotes, and deeper emphasis, are shown as the text that they are.
const MAX_DEPTH = 12;
// A longer line or paragraph is built in parts, so that no change costs more than one part.
const MAX_PART = 4096;

const ITEM = /^[ \t]*([-*+]|\d{1,9}[.)])(?=[ \t]|$)/;
const QUOTE = /^[ \t]*> ?/;
const FENCE = /^[ \t]*(`{3,}|~{3,})(.*)$/s;
const HEADING = /^[ \t]*(#{1,6})(?=[ \t]|$)[ \t]*/;
const RULE = /^[ \t]*([-*_])(?:[ \t]*\1){2,}\s*$/;
const SPECIAL = new RegExp(
  [
    /\\[\\`*_{}#+\-.!|~<>]/, /`+/, /\*+/, /_+/, /~~/, /!?\[/, /\]/, /<https?:\/\/[^\s<>]+>/,
    /https?:\/\/[^\s<>[\]`*"]+/,
  ].map((one) => one.source).join("|"), "gi");
// What follows the ] of a link. Other schemes than these two are no links.
const TARGET = /\(<?(https?:\/\/[^\s<>()]+(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:[ \t]+"[^"]{0,200}")?\)/iy;
const TAGS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" };

/** The elements of one text. */
export class Markdown {
  #text = "";
  // Where the lines begin that are not built for good, and whether a part of that line is.
  #at = 0;
  #isWithin = false;
  // Quotes and list items around the current line, the outermost first, and the block within them.
  #open = [];
  #leaf = null;
  #kept = null;

  /**
   * @param {Element} root takes the blocks.
   * @param {(place: Element, from: number, to: number) => void} write appends this part of the
   *   text to an element.
   */
  constructor(root, write) {
    this.root = root;
    this.write = write;
  }

  /** @param {string} text begins with the one that was shown before. */
  show(text) {
    this.#goBack();
    this.#text = text;
    for (let part = this.#nextPart(); part !== null; part = this.#nextPart()) {
      this.#take(part);
      this.#at = part.next;
      this.#isWithin = !part.isEnd;
    }
    this.#keep();
    if (this.#at < text.length) {
      this.#take({ from: this.#at, to: text.length, next: text.length, isEnd: false });
    }
    if (this.#leaf?.kind === "paragraph") this.#writeParagraph();
  }

  #nextPart() {
    const from = this.#at;
    const end = this.#text.indexOf("\n", from);
    const to = end < 0 ? this.#text.length : end;
    if (to - from <= MAX_PART) return end < 0 ? null : { from, to, next: end + 1, isEnd: true };
    const blank = this.#text.lastIndexOf(" ", from + MAX_PART);
    let cut = blank > from ? blank + 1 : from + MAX_PART;
    if (/[\ud800-\udbff]/.test(this.#text[cut - 1])) cut--;
    return { from, to: cut, next: cut, isEnd: false };
  }

  #take(part) {
    if (this.#isWithin && this.#leaf?.kind !== "table") this.#addText(part);
    else this.#takeLine(part);
  }

  #takeLine(part) {
    const line = this.#text.slice(part.from, part.to);
    let { depth, at } = this.#goOn(line);
    let rest = line.slice(at);
    const isInside = depth === this.#open.length;
    if (isInside && this.#leaf?.kind === "code") {
      const fence = FENCE.exec(rest);
      const { sign } = this.#leaf;
      if (fence?.[1].startsWith(sign) && !fence[2].trim()) this.#leaf = null;
      else this.#addCode(part, part.from + at + Math.min(blanks(rest), this.#leaf.indent));
      return;
    }
    if (isInside && this.#leaf?.kind === "table" && rest.includes("|")) {
      this.#addRow("td", rest, part.from + at);
      return;
    }
    const isParagraph = this.#leaf?.kind === "paragraph";
    if (isInside && isParagraph && this.#beginTable(rest)) return;
    let hasItem = false;
    for (let isFirst = true; ; isFirst = false) {
      const isAfterText = isFirst && isParagraph && this.#open[depth]?.kind !== "item";
      // Of "1. 1. 1." the second is text: a line begins one item.
      const begins = startOf(rest, isAfterText, hasItem ? MAX_DEPTH : depth);
      if (begins === null) {
        // Text after a paragraph belongs to it, also where a mark of its quote or item is missing.
        if (isFirst && isParagraph && rest.trim()) break;
        this.#closeTo(depth);
        break;
      }
      const former = this.#open[depth];
      this.#closeTo(depth);
      if (begins.kind !== "item" && begins.kind !== "quote") {
        this.#beginLeaf(begins, rest, part.from + at, part.to);
        return;
      }
      this.#beginContainer(begins, former);
      hasItem = begins.kind === "item";
      depth++;
      at += begins.length;
      rest = line.slice(at);
    }
    if (rest.trim()) this.#addText({ ...part, from: part.from + at });
  }

  /** How many of the open quotes and items a line continues, and where its own text begins. */
  #goOn(line) {
    let at = 0;
    let depth = 0;
    for (; depth < this.#open.length; depth++) {
      const { kind, indent } = this.#open[depth];
      const rest = line.slice(at);
      if (kind === "quote") {
        const quote = QUOTE.exec(rest);
        if (!quote) break;
        at += quote[0].length;
      } else if (rest.trim()) {
        if (blanks(rest) < indent && !rest.startsWith("\t")) break;
        at += rest.startsWith("\t") ? 1 : indent;
      }
    }
    return { depth, at };
  }

  #place() {
    return this.#open.at(-1)?.element ?? this.root;
  }

  #closeTo(depth) {
    if (this.#leaf?.kind === "paragraph") this.#writeParagraph();
    this.#leaf = null;
    this.#open.length = depth;
  }

  #beginContainer({ kind, indent, list, start }, former) {
    if (kind === "quote") {
      const element = document.createElement("blockquote");
      this.#place().append(element);
      this.#open.push({ kind, element });
      return;
    }
    let { parent } = former?.kind === "item" && former.list === list ? former : {};
    if (!parent) {
      parent = document.createElement(list === "." || list === ")" ? "ol" : "ul");
      if (start !== undefined && start !== 1) parent.setAttribute("start", String(start));
      this.#place().append(parent);
    }
    const element = document.createElement("li");
    parent.append(element);
    this.#open.push({ kind, element, indent, list, parent });
  }

  #beginLeaf({ kind, length, level, sign, name }, rest, from, to) {
    if (kind === "rule") this.#place().append(document.createElement("hr"));
    if (kind === "heading") {
      // The page has two levels of its own.
      const heading = textBlock(`h${Math.min(6, level + 2)}`);
      this.#place().append(heading);
      const end = rest.trimEnd().replace(/(^|[ \t])#+$/, "").length;
      this.#writeInline(heading, [[from + length, Math.min(to, from + Math.max(length, end))]]);
    }
    if (kind === "code") {
      const box = document.createElement("div");
      box.className = "code";
      const label = document.createElement("span");
      label.textContent = name;
      const copy = document.createElement("button");
      copy.setAttribute("type", "button");
      copy.className = "copy";
      copy.textContent = "Copy";
      const code = document.createElement("code");
      const block = document.createElement("pre");
      block.append(code);
      box.append(label, copy, block);
      this.#place().append(box);
      this.#leaf = { kind, element: code, sign, indent: blanks(rest) };
    }
  }

  #addCode(part, from) {
    const end = part.isEnd ? part.next : part.to;
    if (from < end) this.write(this.#leaf.element, from, end);
  }

  #addText(part) {
    if (this.#leaf?.kind === "code") {
      this.#addCode(part, part.from);
      return;
    }
    this.#leaf ??= { kind: "paragraph", element: null, parts: [], length: 0 };
    const { parts } = this.#leaf;
    const last = parts.at(-1);
    if (last && part.from === last[1]) last[1] = part.to;
    // With the end of the line between them.
    else if (last && part.from === last[1] + 1) last[1] = part.to;
    else {
      if (last) last[1]++;
      parts.push([part.from, part.to]);
    }
    this.#leaf.length += part.to - part.from;
    if (this.#leaf.length < MAX_PART) return;
    this.#writeParagraph();
    this.#leaf = { ...this.#leaf, parts: [[part.to, part.to]], length: 0 };
  }

  #writeParagraph() {
    if (this.#leaf.element === null) {
      this.#leaf.element = textBlock("p");
      this.#place().append(this.#leaf.element);
    }
    this.#writeInline(this.#leaf.element, this.#leaf.parts);
  }

  #beginTable(rest) {
    const { parts, element } = this.#leaf;
    if (!rest.includes("|") || !rest.includes("-") || !/^[\s|:-]+$/.test(rest)) return false;
    const header = this.#text.slice(...parts[0]);
    if (element !== null || parts.length > 1 || header.includes("\n")) return false;
    const rule = cells(rest);
    if (!rule.every(([a, b]) => /^:?-+:?$/.test(rest.slice(a, b)))) return false;
    if (!header.includes("|") || cells(header).length !== rule.length) return false;
    const box = document.createElement("div");
    box.className = "table";
    const table = document.createElement("table");
    box.append(table);
    this.#place().append(box);
    this.#leaf = { kind: "table", element: table };
    this.#addRow("th", header, parts[0][0]);
    return true;
  }

  #addRow(tag, line, from) {
    const row = document.createElement("tr");
    for (const [a, b] of cells(line)) {
      const cell = textBlock(tag);
      this.#writeInline(cell, [[from + a, from + b]]);
      row.append(cell);
    }
    this.#leaf.element.append(row);
  }

  /** Parts of the text, one after the other, with their emphasis, code and links. */
  #writeInline(place, parts) {
    const whole = parts.map(([from, to]) => this.#text.slice(from, to)).join("");
    let which = 0;
    let before = 0;
    buildInline(place, whole, (element, from, to) => {
      while (from < to) {
        const [start, end] = parts[which];
        if (from >= before + end - start) {
          before += end - start;
          which++;
          continue;
        }
        const n = Math.min(to, before + end - start) - from;
        this.write(element, start + from - before, start + from - before + n);
        from += n;
      }
    });
  }

  // What an incomplete line has built is taken away again: elements lose what was appended since.
  #keep() {
    const elements = [this.root, this.#leaf?.element];
    for (const { element, parent } of this.#open) elements.push(element, parent);
    const leaf = this.#leaf && { ...this.#leaf };
    if (leaf?.parts) leaf.parts = leaf.parts.map((part) => [...part]);
    this.#kept = {
      open: [...this.#open],
      leaf,
      lengths: elements.filter(Boolean).map((one) => [one, one.childNodes.length]),
    };
  }

  #goBack() {
    if (this.#kept === null) return;
    this.#open = this.#kept.open;
    this.#leaf = this.#kept.leaf;
    for (const [element, n] of this.#kept.lengths) {
      while (element.childNodes.length > n) element.lastChild.remove();
    }
  }
}

/** The block that a line begins, or null; `isAfterText` says that a paragraph would go on. */
function startOf(rest, isAfterText, depth) {
  const fence = FENCE.exec(rest);
  if (fence && !(fence[1][0] === "`" && fence[2].includes("`"))) {
    return { kind: "code", sign: fence[1], name: fence[2].trim().slice(0, 40) };
  }
  const heading = HEADING.exec(rest);
  if (heading) return { kind: "heading", length: heading[0].length, level: heading[1].length };
  if (RULE.test(rest)) return { kind: "rule" };
  if (depth >= MAX_DEPTH) return null;
  const quote = QUOTE.exec(rest);
  if (quote) return { kind: "quote", length: quote[0].length };
  return itemOf(rest, isAfterText);
}

function itemOf(rest, isAfterText) {
  const item = ITEM.exec(rest);
  if (!item) return null;
  const after = blanks(rest.slice(item[0].length));
  const isEmpty = !rest.slice(item[0].length).trim();
  const number = Number.parseInt(item[1], 10);
  const isNumber = !Number.isNaN(number);
  // A number at the start of a line of text is seldom a list.
  if (isAfterText && (isEmpty || (isNumber && number !== 1))) return null;
  const length = item[0].length + (isEmpty || after > 4 ? Math.min(after, 1) : after);
  const start = isNumber ? number : undefined;
  return { kind: "item", length, indent: length, list: item[1].at(-1), start };
}

function textBlock(tag) {
  const one = document.createElement(tag);
  one.setAttribute("dir", "auto");
  return one;
}

function blanks(line) {
  return line.length - line.replace(/^ +/, "").length;
}

/** Where the cells of a row of a table begin and end. */
function cells(line) {
  const borders = [];
  for (const one of line.matchAll(/\\.|\|/gs)) if (one[0] === "|") borders.push(one.index);
  const begins = line.trimStart().startsWith("|") ? borders : [-1, ...borders];
  const ends = [...begins.slice(1), line.length];
  const found = begins.map((begin, i) => {
    const text = line.slice(begin + 1, ends[i]);
    const from = begin + 1 + text.length - text.trimStart().length;
    return [from, Math.max(from, begin + 1 + text.trimEnd().length)];
  });
  const [from, to] = found.at(-1);
  return from === to && found.length > 1 ? found.slice(0, -1) : found;
}

/** Appends a text with its emphasis, code and links to an element, in time linear in its length. */
function buildInline(place, text, write) {
  const events = new Inline(text).events();
  const around = [];
  for (const { tag, href, from, to, isEnd } of events) {
    if (isEnd) place = around.pop();
    else if (tag) {
      const element = document.createElement(tag);
      if (href) {
        element.setAttribute("href", href);
        element.setAttribute("target", "_blank");
        element.setAttribute("rel", "noopener noreferrer");
      }
      place.append(element);
      around.push(place);
      place = element;
    } else if (from < to) write(place, from, to);
  }
}

class Inline {
  #events = [];
  #at = 0;
  // Which events may become the beginning of an emphasis or a link, the last few of each.
  #marks = [];
  #brackets = [];

  constructor(text) {
    this.text = text;
  }

  /** Texts, and beginnings and ends of elements, in their order. */
  events() {
    const { text } = this;
    const special = new RegExp(SPECIAL);
    this.ticks = ticksOf(text);
    for (let found = special.exec(text); found; found = special.exec(text)) {
      const [sign] = found;
      this.#addText(found.index);
      const next = this.#takeSign(sign, found.index);
      this.#addText(next);
      special.lastIndex = next;
    }
    this.#addText(text.length);
    return this.#events;
  }

  #addText(to) {
    if (to > this.#at) this.#events.push({ from: this.#at, to });
    this.#at = Math.max(to, this.#at);
  }

  /** Returns where the text after it begins; what lies between there and #at is shown as text. */
  #takeSign(sign, at) {
    const end = at + sign.length;
    if (sign[0] === "\\") this.#at = at + 1;
    else if (sign[0] === "`") return this.#takeCode(sign.length, at);
    else if (sign === "[" || sign === "![") this.#openBracket(at, end);
    else if (sign === "]") return this.#closeBracket(at);
    else if (/^[*_~]/.test(sign)) this.#takeEmphasis(sign, at);
    else return this.#takeAddress(sign, at);
    return end;
  }

  #takeCode(n, at) {
    const places = this.ticks.get(n) ?? [];
    while (places.length && places.at(-1) <= at) places.pop();
    const end = places.at(-1);
    if (end === undefined) return at + n;
    const inner = this.text.slice(at + n, end);
    // One blank on each side keeps a backtick of the code apart from its marks.
    const pad = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() ? 1 : 0;
    this.#events.push({ tag: "code" }, { from: at + n + pad, to: end - pad }, { isEnd: true });
    this.#at = end + n;
    return end + n;
  }

  #takeAddress(sign, at) {
    const isBare = sign[0] !== "<";
    let href = isBare ? sign.replace(/[.,:;!?']+$/, "") : sign.slice(1, -1);
    if (isBare && !href.includes("(")) href = href.replace(/[).,:;!?']+$/, "");
    const from = isBare ? at : at + 1;
    if (!/^https?:\/\/./i.test(href)) return at + sign.length;
    this.#events.push({ tag: "a", href }, { from, to: from + href.length }, { isEnd: true });
    this.#at = isBare ? at + href.length : at + sign.length;
    return this.#at;
  }

  #openBracket(at, end) {
    this.#addText(end);
    // An image is a link: the page loads nothing from elsewhere.
    this.#brackets = [...this.#brackets.slice(1 - MAX_DEPTH), this.#events.length - 1];
  }

  #closeBracket(at) {
    const bracket = this.#brackets.pop();
    TARGET.lastIndex = at + 1;
    const target = bracket === undefined ? null : TARGET.exec(this.text);
    if (!target) return at + 1;
    this.#marks = this.#marks.filter(({ event }) => event < bracket);
    // No link is within a link.
    this.#brackets = [];
    for (let i = bracket + 1; i < this.#events.length; i++) {
      if (this.#events[i].tag !== "a") continue;
      this.#events[i] = this.#events[i + 2] = {};
    }
    this.#events[bracket] = { tag: "a", href: target[1] };
    this.#events.push({ isEnd: true });
    this.#at = TARGET.lastIndex;
    return this.#at;
  }

  #takeEmphasis(sign, at) {
    const before = this.text[at - 1] ?? " ";
    const after = this.text[at + sign.length] ?? " ";
    const isWord = (one) => /[\p{L}\p{N}]/u.test(one);
    const isInner = sign[0] === "_" && isWord(before) && isWord(after);
    if (sign.length > 3 || isInner) return;
    let rest = sign;
    if (/\S/.test(before) && !(sign[0] === "_" && isWord(after))) {
      rest = this.#closeEmphasis(rest);
    }
    const canOpen = /\S/.test(after) && !(sign[0] === "_" && isWord(before));
    if (!canOpen) return;
    for (const one of rest.length === 3 ? [rest.slice(1), rest[0]] : rest ? [rest] : []) {
      this.#addText(this.#at + one.length);
      const mark = { sign: one, event: this.#events.length - 1 };
      this.#marks = [...this.#marks.slice(1 - MAX_DEPTH), mark];
    }
  }

  // Ends what these signs can end, the innermost first; returns the signs that are left.
  #closeEmphasis(rest) {
    while (rest) {
      const mark = this.#marks.findLast(({ sign }) => rest === sign) ??
        this.#marks.findLast(({ sign }) => rest.startsWith(sign));
      // Nothing between two marks is no emphasis.
      if (!mark || mark.event === this.#events.length - 1) break;
      this.#events[mark.event] = { tag: TAGS[mark.sign] };
      this.#events.push({ isEnd: true });
      this.#marks = this.#marks.slice(0, this.#marks.indexOf(mark));
      // A link that began before the mark could only end across it.
      this.#brackets = this.#brackets.filter((event) => event < mark.event);
      this.#at += mark.sign.length;
      rest = rest.slice(mark.sign.length);
    }
    return rest;
  }
}

/** Where the runs of backticks of each length begin, the first one last. */
function ticksOf(text) {
  const places = new Map();
  for (const { 0: run, index } of [...text.matchAll(/`+/g)].reverse()) {
    if (!places.has(run.length)) places.set(run.length, []);
    places.get(run.length).push(index);
  }
  return places;
}
