// What the page asks of its server.

import { EventParser } from "./events.js";

/** What went wrong with a request, in words for the reader. */
export class RequestError extends Error {
  /** @param {number} status of HTTP; 0 where there was no answer. */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/**
 * One answer as a stream.
 *
 * @param {object} body of POST /v1/chat/completions.
 * @param {string} key the API key, or "".
 * @param {AbortSignal} signal ends it.
 * @param {(chunk: object) => void} onChunk is called with each chunk as it comes.
 * @param {() => void} onSign is called with each sign of life, pings too.
 * @throws {RequestError} where the server refuses, or the connection ends before the answer does.
 */
export async function streamChat(body, key, signal, onChunk, onSign) {
  const response = await send("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.getReader();
  try {
    await readEvents(reader, signal, onChunk, onSign);
  } finally {
    // Also where a chunk was none: the server has nobody to write for.
    reader.cancel().catch(() => {});
  }
}

async function readEvents(reader, signal, onChunk, onSign) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new RequestError("The connection broke before the answer was complete.");
    }
    if (part.done) {
      throw new RequestError("The connection ended before the answer was complete.");
    }
    onSign();
    for (const data of parser.feed(decoder.decode(part.value, { stream: true }))) {
      if (data === "[DONE]") return;
      onChunk(parsed(data));
    }
  }
}

/**
 * What the server has.
 *
 * @returns {Promise<{name: string, draft: string|null, isLoaded: boolean, sees: boolean}[]>} its
 *   models, each with its draft, whether it answers at once or is loaded first, and whether it may
 *   read pictures.
 */
export async function serverModels(key) {
  const listed = await (await send("v1/models", key, {})).json();
  return (listed.data ?? []).map((one) => ({
    name: String(one.id),
    draft: typeof one.meta?.draft === "string" ? one.meta.draft : null,
    isLoaded: (one.state ?? "loaded") === "loaded",
    sees: one.meta?.modalities?.vision !== false,
  }));
}

async function send(path, key, options) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    if (error instanceof TypeError && /header|ByteString|ISO-8859-1/i.test(error.message)) {
      throw new RequestError("The API key has signs that no key can have: type it again.");
    }
    throw new RequestError("The server cannot be reached. Is it running?");
  }
  if (response.ok) return response;
  throw new RequestError(await refusal(response), response.status);
}

async function refusal(response) {
  if (response.status === 401) {
    return "The server asks for an API key, or for another one: give it under Settings.";
  }
  if (response.status === 429) {
    const wait = Number(response.headers.get("Retry-After"));
    const when = wait ? `Try again in ${wait} s.` : "Try again later.";
    return `The server has too much to do at the moment. ${when}`;
  }
  try {
    const { error } = await response.json();
    return String(error.message ?? error);
  } catch {
    return `The server answered with the status ${response.status}.`;
  }
}

function parsed(data) {
  try {
    const chunk = JSON.parse(data);
    if (typeof chunk === "object" && chunk !== null) return chunk;
  } catch {
    // Said below.
  }
  throw new RequestError("The server sent something that is no part of an answer.");
}
