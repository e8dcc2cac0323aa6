// One answer as it comes: its tokens, who drafted each, its rounds and its speed. It knows no page.

/** Who a token may come from: the name for people, in the order of the legend. */
export const SOURCES = {
  target: "the model itself",
  model: "the draft's head or model",
  copy: "a copy of the text before",
  memory: "a copy of an earlier text",
  grammar: "the grammar",
  other: "another drafter",
};

/** The key of SOURCES for what the server calls a source: one that is new here is "other". */
export function sourceKey(name) {
  return Object.hasOwn(SOURCES, name) ? name : "other";
}

/**
 * What came of one request.
 *
 * Each of `tokens` is [text, source, ms since the request]. It is a piece of the text, which is one
 * token but where a character needs several. The first comes from the prompt. A round of
 * speculative decoding then gives some drafted tokens that the target agreed with, and one of the
 * target's own: that one ends it.
 */
export class Answer {
  /** @param {boolean} withDraft whether the request asked for a draft. */
  constructor(withDraft) {
    this.withDraft = withDraft;
    this.tokens = [];
    this.content = "";
    this.thought = "";
    this.finish = null;
    this.usage = null;
    this.speculation = null;
    this.timing = null;
    this.error = null;
    this.isStopped = false;
    this.isSilent = false;
    this.isDone = false;
  }

  /**
   * @param {object} chunk of a stream of /v1/chat/completions.
   * @param {number} ms since the request.
   * @returns {boolean} whether the answer has more tokens than before.
   */
  add(chunk, ms) {
    if (chunk.error) {
      this.error = String(chunk.error.message ?? chunk.error);
      return false;
    }
    const choice = chunk.choices?.[0];
    const content = text(choice?.delta?.content);
    this.content += content;
    this.thought += text(choice?.delta?.reasoning_content);
    this.finish = choice?.finish_reason ?? this.finish;
    this.usage = chunk.usage ?? this.usage;
    this.speculation = chunk.speculation ?? this.speculation;
    this.timing = chunk.timing ?? this.timing;
    const before = this.tokens.length;
    for (const one of choice?.token_sources ?? []) {
      this.tokens.push([text(one.text), sourceKey(one.source), ms]);
    }
    return this.tokens.length > before;
  }

  /** Tokens of each round: how many of each source, the last round perhaps without its end. */
  rounds() {
    const rounds = [];
    let open = null;
    for (const [, source] of this.tokens.slice(1)) {
      if (open === null) rounds.push((open = {}));
      open[source] = (open[source] ?? 0) + 1;
      if (source === "target") open = null;
    }
    return rounds;
  }

  /**
   * Tokens, rounds, tokens per round and per second: the server's own once it has told them, until
   * then by what came. Null for what is not known yet.
   */
  figures() {
    const rounds = this.rounds();
    const drafted = sum(rounds.map((one) => sum(Object.values(one))));
    const nRounds = number(this.speculation?.rounds) ?? rounds.length;
    return {
      nTokens: number(this.usage?.completion_tokens) ?? this.tokens.length,
      nRounds,
      perRound: number(this.speculation?.tokens_per_round) || (nRounds ? drafted / nRounds : null),
      perSecond: number(this.timing?.decode_tps) || this.speed(),
      saved: number(this.speculation?.saved_s),
      savedError: number(this.speculation?.saved_error_s),
    };
  }

  /** How many tokens came from each source; only of those that gave any. */
  counts() {
    const counts = {};
    for (const [, source] of this.tokens) counts[source] = (counts[source] ?? 0) + 1;
    return counts;
  }

  /** Tokens per second from the first token to the last; null before there are two times. */
  speed() {
    return rate(this.tokens, 0, this.tokens.length - 1);
  }

  /**
   * Tokens per second over the `window` ms before each time at which tokens came.
   *
   * @returns {[number, number][]} pairs of ms since the request and tokens per second.
   */
  speeds(window = 1000) {
    const points = [];
    let from = 0;
    for (let i = 0; i < this.tokens.length; i++) {
      const now = this.tokens[i][2];
      if (i + 1 < this.tokens.length && this.tokens[i + 1][2] === now) continue;
      while (now - this.tokens[from][2] > window) from++;
      const perSecond = rate(this.tokens, from, i);
      if (perSecond !== null) points.push([now, perSecond]);
    }
    return points;
  }

  /** What is kept over a reload: plain data. */
  toStored() {
    const { tokens, withDraft, content, thought, finish, usage, speculation, timing, error } = this;
    const isCut = (this.isStopped || !this.isDone) && error === null;
    return { tokens, withDraft, content, thought, finish, usage, speculation, timing, error,
      isStopped: isCut };
  }

  /** An answer of what toStored() gave; null where it is none. */
  static fromStored(stored) {
    if (typeof stored !== "object" || stored === null || !Array.isArray(stored.tokens)) return null;
    const answer = new Answer(stored.withDraft !== false);
    answer.tokens = stored.tokens
      .filter(Array.isArray)
      .map(([word, source, ms]) => [text(word), sourceKey(source), Number(ms) || 0]);
    answer.content = text(stored.content);
    answer.thought = text(stored.thought);
    answer.finish = stored.finish ?? null;
    answer.usage = stored.usage ?? null;
    answer.speculation = stored.speculation ?? null;
    answer.timing = stored.timing ?? null;
    answer.error = stored.error === null ? null : text(stored.error);
    answer.isStopped = stored.isStopped === true;
    answer.isDone = true;
    return answer;
  }
}

/**
 * Where two texts part.
 *
 * @returns {number|null} the first character in which they differ, null where they are equal.
 */
export function partAt(one, other) {
  if (one === other) return null;
  const end = Math.min(one.length, other.length);
  for (let i = 0; i < end; i++) if (one[i] !== other[i]) return i;
  return end;
}

// Tokens (from, to] by the time between them: those that came with the first have no time of their own.
function rate(tokens, from, to) {
  if (to <= from) return null;
  const begin = tokens[from][2];
  const seconds = (tokens[to][2] - begin) / 1000;
  if (seconds <= 0) return null;
  let first = from;
  while (tokens[first + 1][2] === begin) first++;
  return (to - first) / seconds;
}

/** The sum of some numbers. */
export function sum(numbers) {
  return numbers.reduce((total, one) => total + one, 0);
}

function number(value) {
  return typeof value === "number" ? value : null;
}

function text(value) {
  return typeof value === "string" ? value : "";
}
