// Exchanges as elements of the page. Texts of people and models become text nodes, never markup.

import { SOURCES, partAt } from "./answer.js";
import { Markdown } from "./markdown.js";
import { drawRounds, drawSpeed, emptyPlot } from "./plot.js";

const ENDS = { length: "The answer was cut: it has as many tokens as it may." };
const SILENT =
  "Nothing has come from the server for a while. Stop ends the answer and keeps what is there.";

/** An element with a class, text and children. */
export function make(name, { className = "", text = null, ...attributes } = {}, ...children) {
  const one = document.createElement(name);
  if (className) one.className = className;
  if (text !== null) one.textContent = text;
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  one.append(...children);
  return one;
}

/** A question with its answers, as an item of the list. */
export class ExchangeView {
  /**
   * @param {{question: string, pictures: string[], answers: object[]}} exchange
   * @param {{onResend: (question: string) => void}} actions
   */
  constructor(exchange, actions) {
    this.exchange = exchange;
    this.actions = actions;
    this.answerViews = [];
    // What the upper edges of the plots stand for, in all answers of the question.
    this.scale = { rounds: 2, speed: 1 };
    this.answers = make("div", { className: "answers" });
    this.comparison = make("p", { className: "comparison", hidden: "" });
    this.question = make("article", { className: "question", "aria-label": "You" });
    this.element = make("li", { className: "exchange" }, this.question, this.answers,
      this.comparison);
    this.#showQuestion();
    for (const answer of exchange.answers) this.addAnswer(answer);
    this.compare();
  }

  addAnswer(answer) {
    const view = new AnswerView(answer, this.scale);
    this.answerViews.push(view);
    this.answers.append(view.element);
    this.answers.classList.toggle("beside", this.answerViews.length > 1);
    return view;
  }

  /** Says whether two complete answers have the same text, and marks where they part. */
  compare() {
    const [one, other] = this.exchange.answers;
    for (const view of this.answerViews) view.update();
    this.comparison.hidden = !(one?.content && other?.content && one.isDone && other.isDone);
    if (this.comparison.hidden) return;
    const at = partAt(one.content, other.content);
    const isCut = one.isStopped || other.isStopped || one.error !== null || other.error !== null;
    const shorter = Math.min(one.content.length, other.content.length);
    const isSame = at === null || (isCut && at === shorter);
    this.comparison.classList.toggle("same", isSame);
    if (at === null) {
      this.comparison.textContent = `✓ Both texts are the same: ${count(shorter, "character")}.`;
    } else if (isSame) {
      this.comparison.textContent =
        `✓ Both texts are the same for ${count(shorter, "character")}: one of them was cut there.`;
    } else {
      this.comparison.textContent = `✗ The texts part after ${count(at, "character")}: ` +
        `“${excerpt(one.content, at)}” and “${excerpt(other.content, at)}”.`;
    }
  }

  lock(isLocked) {
    for (const button of this.question.querySelectorAll("button")) button.disabled = isLocked;
  }

  #showQuestion() {
    const edit = make("button", { type: "button", text: "Edit" });
    const again = make("button", { type: "button", text: "Ask again" });
    edit.addEventListener("click", () => this.#editQuestion());
    again.addEventListener("click", () => this.actions.onResend(this.exchange.question));
    const pictures = this.exchange.pictures.map((src) => make("img", { src, alt: "A picture" }));
    this.question.replaceChildren(
      make("h2", { text: "You" }),
      make("div", { className: "pictures" }, ...pictures),
      make("p", { className: "text", dir: "auto", text: this.exchange.question }),
      make("div", { className: "actions" }, edit, again),
    );
    this.editButton = edit;
  }

  #editQuestion() {
    const field = make("textarea", { rows: "3", "aria-label": "Your message", dir: "auto" });
    field.value = this.exchange.question;
    const resend = make("button", { type: "submit", text: "Send again", className: "primary" });
    const cancel = make("button", { type: "button", text: "Leave it" });
    const leave = () => {
      this.#showQuestion();
      this.editButton.focus();
    };
    const form = make("form", { className: "edit" }, field,
      make("p", { className: "hint", text: "What comes after this message will be gone." }),
      make("div", { className: "actions" }, resend, cancel));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.actions.onResend(field.value);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.stopPropagation();
      leave();
    });
    sendByEnter(field, form);
    cancel.addEventListener("click", leave);
    this.question.replaceChildren(make("h2", { text: "You" }), form);
    field.focus();
  }
}

/** One answer: its text in the colours of its drafters, its plots and its figures. */
export class AnswerView {
  /**
   * @param {object} answer
   * @param {{rounds: number, speed: number}} scale is shared by answers that stand side by side.
   */
  constructor(answer, scale) {
    this.answer = answer;
    this.scale = scale;
    // What is shown as Markdown: of each token where it ends in the text, and what is said of it.
    this.said = "";
    this.tokens = [];
    this.nInRound = 0;
    this.nRound = 0;
    const title = answer.withDraft ? "Answer" : "Answer without a draft";
    this.thought = make("p", { className: "text", dir: "auto" });
    this.thoughtBox = make("details", { className: "thought", hidden: "" },
      make("summary", { text: "Thoughts" }), this.thought);
    this.text = make("div", { className: "text" });
    this.markdown = this.#newMarkdown();
    this.copy = make("button", { type: "button", text: "Copy the answer", className: "copy" });
    this.notice = make("p", { className: "notice", hidden: "" });
    this.figures = make("p", { className: "figures" });
    this.rounds = emptyPlot("rounds");
    this.speed = emptyPlot("speed");
    this.roundsLabel = make("figcaption");
    this.speedLabel = make("figcaption");
    this.plots = make("div", { className: "plots", hidden: "" },
      make("figure", {}, this.roundsLabel, this.rounds),
      make("figure", {}, this.speedLabel, this.speed));
    this.element = make("article", { className: "answer", "aria-label": title },
      make("h2", { text: title }), this.thoughtBox, this.text, this.notice, this.plots,
      this.figures, make("div", { className: "actions" }, this.copy));
    this.text.addEventListener("click", ({ target }) => {
      if (target.matches("button.copy")) copyText(target.nextSibling.textContent, target);
    });
    this.copy.addEventListener("click", () => copyText(this.said, this.copy));
    this.update();
  }

  /** Shows what has come since the last time. */
  update() {
    const { answer } = this;
    this.element.setAttribute("aria-busy", String(!answer.isDone));
    this.#showText();
    // With tokens the thought is among them.
    this.thoughtBox.hidden = !answer.thought || answer.tokens.length > 0;
    if (this.thought.textContent !== answer.thought) this.thought.textContent = answer.thought;
    this.#showPlots();
    this.figures.textContent = inFigures(answer);
    const notice = noticeOf(answer);
    this.notice.hidden = !notice;
    this.notice.classList.toggle("error", answer.error !== null);
    if (this.notice.textContent !== notice) this.notice.textContent = notice;
  }

  #showText() {
    const { tokens, content } = this.answer;
    if (tokens.length && this.said && !this.tokens.length) {
      // The server says who drafted what only now.
      this.said = "";
      this.text.replaceChildren();
      this.markdown = this.#newMarkdown();
    }
    for (const [word, source] of tokens.slice(this.tokens.length)) {
      this.said += word;
      this.nInRound++;
      const place = this.nRound ? `round ${this.nRound}, token ${this.nInRound} of it`
        : "from the prompt";
      const title = `${SOURCES[source]}; ${place}`;
      this.tokens.push({ end: this.said.length, className: `token by-${source}`, title });
      if (source === "target" || !this.nRound) {
        this.nRound++;
        this.nInRound = 0;
      }
    }
    // A server that does not say who drafted what: the text alone.
    if (!tokens.length) this.said = content;
    this.markdown.show(this.said);
    this.copy.hidden = !this.said;
  }

  #newMarkdown() {
    return new Markdown(this.text, (place, from, to) => {
      if (!this.tokens.length) place.append(this.said.slice(from, to));
      for (let i = this.#tokenAt(from); i < this.tokens.length && from < to; i++) {
        const { end, ...looks } = this.tokens[i];
        const text = this.said.slice(from, Math.min(end, to));
        if (text) place.append(make("span", { ...looks, text }));
        from = end;
      }
    });
  }

  /** The first token that ends behind a place of the text. */
  #tokenAt(place) {
    let low = 0;
    let high = this.tokens.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tokens[middle].end > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  #showPlots() {
    const rounds = this.answer.rounds();
    const { nRounds, perRound } = this.answer.figures();
    const speeds = this.answer.speeds();
    this.plots.hidden = rounds.length < 2;
    if (this.plots.hidden) return;
    this.scale.rounds = drawRounds(this.rounds, rounds, this.scale.rounds);
    this.roundsLabel.textContent = `tokens/round, up to ${shown(this.scale.rounds)}`;
    this.rounds.setAttribute("aria-label",
      `Plot of ${count(nRounds, "round")}: ${perRound.toFixed(2)} tokens per round`);
    this.scale.speed = drawSpeed(this.speed, speeds, this.scale.speed);
    this.speedLabel.textContent = `tokens/s, up to ${shown(this.scale.speed)}`;
    const fastest = Math.max(0, ...speeds.map(([, perSecond]) => perSecond));
    this.speed.setAttribute("aria-label", `Plot of tokens per second: up to ${shown(fastest)}`);
  }
}

/** Puts a text on the clipboard, and says so on the button that asked for it. */
async function copyText(text, button) {
  button.dataset.name ??= button.textContent;
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers have no clipboard for pages of other machines without TLS.
    const field = make("textarea", { className: "unseen" });
    field.value = text;
    button.after(field);
    field.select();
    isCopied = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = isCopied ? "Copied" : "Not copied";
  setTimeout(() => {
    button.textContent = button.dataset.name;
  }, 1500);
}

/** Enter sends the form of a field, Shift+Enter is a new line. */
export function sendByEnter(field, form) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
}

/** An answer in figures: how many tokens, rounds, and who drafted them. */
export function inFigures(answer) {
  if (!answer.tokens.length) return "";
  const { nTokens, perRound, perSecond, saved, savedError } = answer.figures();
  const parts = [count(nTokens, "token")];
  if (perRound !== null) parts.push(`${perRound.toFixed(2)} per round`);
  if (perSecond !== null) parts.push(`${shown(perSecond)} per second`);
  if (saved !== null && answer.withDraft) {
    parts.push(`${saved.toFixed(2)} ± ${savedError.toFixed(2)} s saved`);
  }
  const counts = answer.counts();
  const drafters = Object.keys(SOURCES).filter((key) => key !== "target" && counts[key]);
  for (const key of drafters) parts.push(`${counts[key]} by ${SOURCES[key]}`);
  if (!drafters.length && answer.withDraft) parts.push("none of them drafted");
  return `${parts.join(" · ")}.`;
}

function noticeOf(answer) {
  if (answer.error !== null) return answer.error;
  if (answer.isStopped) return "The answer was stopped here.";
  if (answer.isSilent) return SILENT;
  if (!answer.isDone) return "";
  const parts = [];
  if (!answer.content && !answer.thought) parts.push("The answer is empty.");
  if (ENDS[answer.finish]) parts.push(ENDS[answer.finish]);
  const reason = answer.withDraft ? answer.speculation?.reason_off : null;
  if (reason) parts.push(`The draft was turned off: ${reason}`);
  return parts.join(" ");
}

function shown(number) {
  return number < 10 ? String(Math.round(number * 10) / 10) : String(Math.round(number));
}

function count(n, what) {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}

function excerpt(text, at) {
  const part = text.slice(at, at + 24);
  return part ? part + (at + 24 < text.length ? "…" : "") : "(its end)";
}
