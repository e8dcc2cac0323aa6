// A conversation as data: its exchanges, what is asked of the server, and how both are kept.

import { Answer } from "./answer.js";

const VERSION = 1;

/** What is asked for with each message, when nobody has changed it; "" leaves it to the server. */
export const DEFAULTS = {
  system: "",
  model: "",
  temperature: "0",
  maxTokens: "512",
  seed: "",
  beside: false,
};

/** Questions with their answers: one, or two where the same was asked without a draft. */
export class Conversation {
  constructor() {
    /** @type {{question: string, pictures: string[], answers: Answer[]}[]} */
    this.exchanges = [];
    this.settings = { ...DEFAULTS };
  }

  /**
   * Puts a question at a place, and forgets what came behind that place.
   *
   * @param {string} question
   * @param {number} at the exchange that it takes the place of; by default a new one.
   * @param {string[]} pictures data: URLs.
   */
  ask(question, at = this.exchanges.length, pictures = []) {
    const exchange = { question, pictures, answers: [] };
    this.exchanges.splice(at, Infinity, exchange);
    return exchange;
  }

  /** The messages that lead up to an exchange, with its question as the last one. */
  messages(exchange) {
    const { system } = this.settings;
    const messages = system.trim() ? [{ role: "system", content: system }] : [];
    for (const past of this.exchanges) {
      if (past === exchange) break;
      // One without an answer is left out: templates want question and answer in turn.
      const said = past.answers[0]?.content;
      if (!said) continue;
      messages.push({ role: "user", content: contentOf(past) });
      messages.push({ role: "assistant", content: said });
    }
    messages.push({ role: "user", content: contentOf(exchange) });
    return messages;
  }

  /**
   * The body of POST /v1/chat/completions.
   *
   * @param {object} exchange
   * @param {boolean} withDraft
   * @param {number|null} seed in place of the settings' own, so that two requests share one.
   */
  request(exchange, withDraft, seed = null) {
    const { model, temperature, maxTokens } = this.settings;
    const body = {
      messages: this.messages(exchange),
      stream: true,
      stream_options: { include_usage: true },
      speculation: { show_tokens: true },
    };
    if (!withDraft) body.speculation.draft = false;
    if (model) body.model = model;
    setNumber(body, "temperature", temperature);
    setNumber(body, "max_tokens", maxTokens);
    setNumber(body, "seed", seed ?? this.settings.seed);
    return body;
  }

  /** All of it as a text for the browser's storage. */
  toText() {
    const exchanges = this.exchanges.map(({ question, pictures, answers }) => ({
      question,
      pictures,
      answers: answers.map((answer) => answer.toStored()),
    }));
    return JSON.stringify({ version: VERSION, exchanges, settings: this.settings });
  }

  /** What toText() gave; an empty conversation where the text is something else. */
  static fromText(stored) {
    const conversation = new Conversation();
    let data;
    try {
      data = JSON.parse(stored);
    } catch {
      return conversation;
    }
    if (data?.version !== VERSION || !Array.isArray(data.exchanges)) return conversation;
    for (const one of data.exchanges) {
      if (typeof one?.question !== "string" || !Array.isArray(one.answers)) continue;
      const answers = one.answers.map(Answer.fromStored).filter((answer) => answer !== null);
      const given = Array.isArray(one.pictures) ? one.pictures : [];
      const pictures = given.filter((url) => /^data:image\//.test(url));
      conversation.exchanges.push({ question: one.question, pictures, answers });
    }
    for (const name of Object.keys(DEFAULTS)) {
      const value = data.settings?.[name];
      if (typeof value === typeof DEFAULTS[name]) conversation.settings[name] = value;
    }
    return conversation;
  }
}

function contentOf({ question, pictures }) {
  if (!pictures.length) return question;
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return [...parts, { type: "text", text: question }];
}

function setNumber(body, name, value) {
  if (value !== "" && value !== null && Number.isFinite(Number(value))) body[name] = Number(value);
}
