// The page: its controls, and one run of requests at a time.

import { Answer, SOURCES } from "./answer.js";
import { RequestError, serverModels, streamChat } from "./client.js";
import { Conversation, DEFAULTS } from "./conversation.js";
import { picturesOf, urlOf } from "./pictures.js";
import { ExchangeView, inFigures, make, sendByEnter } from "./view.js";

// Kept as long as the tab, over a reload; never on disk, and no other tab sees it.
const CONVERSATION = "pyllama_spec.conversation";
const KEY = "pyllama_spec.key";
const SAVE_EVERY_MS = 1000;
const UPDATE_EVERY_MS = 30;
const SHARE_LEFT = 3;
// Three of the server's pings: longer than that, and the connection may be lost without a word.
const SILENT_AFTER_MS = 45_000;

const at = (id) => document.getElementById(id);
const controls = {
  system: at("system"),
  model: at("model"),
  temperature: at("temperature"),
  maxTokens: at("max-tokens"),
  seed: at("seed"),
  beside: at("beside"),
};

let conversation = Conversation.fromText(sessionStorage.getItem(CONVERSATION) ?? "");
let views = [];
/** @type {{name: string, draft: string|null, isLoaded: boolean, sees: boolean}[]} the server's. */
let models = [];
/** @type {AbortController|null} the run that goes on. */
let running = null;
let lastSaved = 0;
/** @type {string[]} of the next message, as data: URLs. */
let pictures = [];

function showLegend() {
  const seen = new Set(["target", "model", "copy", "grammar"]);
  for (const { answers } of conversation.exchanges) {
    for (const answer of answers) for (const key of Object.keys(answer.counts())) seen.add(key);
  }
  const shown = Object.entries(SOURCES).filter(([key]) => seen.has(key));
  at("legend").replaceChildren(...shown.map(([key, name]) =>
    make("li", {}, make("span", { className: `token by-${key}`, text: name }))));
}

function showConversation() {
  views = conversation.exchanges.map((exchange) => viewOf(exchange));
  at("exchanges").replaceChildren(...views.map((view) => view.element));
  at("welcome").hidden = views.length > 0;
}

function viewOf(exchange) {
  const view = new ExchangeView(exchange, {
    onResend: (question) =>
      run(question, conversation.exchanges.indexOf(exchange), exchange.pictures),
  });
  view.lock(running !== null);
  return view;
}

/** Asks a question, alone or with and without a draft, and shows what comes. */
async function run(question, index = conversation.exchanges.length, shown = []) {
  if (running || !question.trim() || !settingsAreGood()) return false;
  running = new AbortController();
  const { signal } = running;
  const exchange = conversation.ask(question, index, shown);
  const view = viewOf(exchange);
  views.splice(index, Infinity, view);
  at("exchanges").replaceChildren(...views.map((one) => one.element));
  at("welcome").hidden = true;
  showRunning();
  at("message").focus();
  // One after the other: side by side each would have half of the processor.
  const sides = conversation.settings.beside ? [true, false] : [true];
  const seed = sides.length > 1 && conversation.settings.seed === "" ? drawnSeed() : null;
  for (const withDraft of sides) {
    if (signal.aborted) break;
    await answerOne(exchange, view, conversation.request(exchange, withDraft, seed), signal);
  }
  running = null;
  view.compare();
  showLegend();
  showRunning();
  say(outcome(exchange, view));
  save();
  // It was not there when the page was opened, or was loaded since.
  if (!chosenModel()?.isLoaded) showServer();
  return true;
}

async function answerOne(exchange, view, body, signal) {
  const answer = new Answer(body.speculation.draft !== false);
  exchange.answers.push(answer);
  const shown = view.addAnswer(answer);
  scrollToEnd(true);
  say(answer.withDraft ? "The answer begins." : "The answer without a draft begins.");
  save();
  const begin = performance.now();
  let timer = 0;
  let pause = 0;
  const update = () => {
    timer = 0;
    const from = performance.now();
    const isAtEnd = endIsSeen();
    shown.update();
    scrollToEnd(isAtEnd);
    // A long text takes a while to lay out: most of the time is left to the reader.
    pause = (performance.now() - from) * SHARE_LEFT;
  };
  let heard = begin;
  const watch = setInterval(() => {
    const isSilent = performance.now() - heard > SILENT_AFTER_MS;
    if (isSilent === answer.isSilent) return;
    answer.isSilent = isSilent;
    update();
    if (isSilent) say(shown.notice.textContent);
  }, 1000);
  try {
    await streamChat(body, at("key").value.trim(), signal, (chunk) => {
      answer.add(chunk, Math.round(performance.now() - begin));
      timer ||= setTimeout(update, Math.max(UPDATE_EVERY_MS, pause));
      if (performance.now() - lastSaved > SAVE_EVERY_MS) save();
    }, () => {
      heard = performance.now();
    });
  } catch (error) {
    if (signal.aborted) answer.isStopped = true;
    else if (error instanceof RequestError) answer.error ??= error.message;
    else throw error;
  } finally {
    clearTimeout(timer);
    clearInterval(watch);
    answer.isSilent = false;
    answer.isDone = true;
    update();
  }
}

function outcome(exchange, view) {
  const said = exchange.answers.map((answer) => {
    if (answer.error !== null) return `The answer ended with an error: ${answer.error}`;
    return `${answer.isStopped ? "Stopped" : "The answer is complete"}: ${inFigures(answer)}`;
  });
  if (!view.comparison.hidden) said.push(view.comparison.textContent);
  return said.join(" ");
}

function showRunning() {
  const isRunning = running !== null;
  const hadFocus = document.activeElement === at("stop");
  at("send").disabled = isRunning;
  at("stop").hidden = !isRunning;
  at("new").disabled = isRunning;
  for (const view of views) view.lock(isRunning);
  if (hadFocus && !isRunning) at("message").focus();
}

function settingsAreGood() {
  readSettings();
  for (const control of Object.values(controls)) {
    if (control.checkValidity()) continue;
    at("settings").open = true;
    control.reportValidity();
    return false;
  }
  return true;
}

function readSettings() {
  for (const [name, control] of Object.entries(controls)) {
    conversation.settings[name] = control.type === "checkbox" ? control.checked : control.value;
  }
}

function showSettings() {
  for (const [name, control] of Object.entries(controls)) {
    const value = conversation.settings[name];
    if (control.type === "checkbox") control.checked = value;
    else if (name !== "model") control.value = value;
  }
}

function save() {
  lastSaved = performance.now();
  try {
    sessionStorage.setItem(CONVERSATION, conversation.toText());
    at("unsaved").hidden = true;
  } catch {
    // Full, or forbidden by the browser.
    at("unsaved").hidden = false;
  }
}

async function showServer() {
  try {
    models = await serverModels(at("key").value.trim());
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    at("facts").textContent = error.message;
    if (error.status === 401) at("settings").open = true;
    return;
  }
  controls.model.replaceChildren(
    ...models.map(({ name }) => make("option", { value: name, text: name })),
  );
  const { model } = conversation.settings;
  if (models.some(({ name }) => name === model)) controls.model.value = model;
  at("model-row").hidden = models.length < 2;
  showFacts();
}

function chosenModel() {
  return models.find(({ name }) => name === controls.model.value);
}

function showFacts() {
  const chosen = chosenModel();
  const draft = chosen?.draft ? `draft: ${chosen.draft}` : "no draft";
  const wait = chosen?.isLoaded === false ? "; it is loaded for its first answer" : "";
  at("add-picture").hidden = !chosen?.sees;
  at("facts").textContent = chosen ? `${chosen.name}, ${draft}${wait}` : "The server has no model.";
}

async function addPictures(files) {
  if (files.length && !chosenModel()?.sees) {
    say("This model reads no pictures.");
    return;
  }
  for (const file of files) {
    try {
      pictures.push(await urlOf(file));
    } catch {
      say(`${file.name} cannot be read as a picture.`);
    }
  }
  showPictures();
}

function showPictures() {
  at("pictures").replaceChildren(...pictures.map((src, i) => {
    const remove = make("button", { type: "button", title: "Remove it" },
      make("img", { src, alt: `Remove picture ${i + 1}` }));
    remove.addEventListener("click", () => {
      pictures.splice(i, 1);
      showPictures();
      at("message").focus();
    });
    return make("li", {}, remove);
  }));
}

function say(text) {
  at("status").textContent = text;
}

function drawnSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

function endIsSeen() {
  const page = document.scrollingElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 80;
}

function scrollToEnd(isWanted) {
  if (isWanted) document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
}

function stop() {
  running?.abort();
}

showLegend();
at("composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = at("message");
  const question = field.value;
  if (running || !question.trim() || !settingsAreGood()) return;
  field.value = "";
  const shown = pictures;
  pictures = [];
  showPictures();
  await run(question, undefined, shown);
});
at("add-picture").addEventListener("click", () => at("picture-file").click());
at("picture-file").addEventListener("change", async ({ target }) => {
  await addPictures(picturesOf(target));
  target.value = "";
});
at("message").addEventListener("paste", (event) => {
  const files = picturesOf(event.clipboardData);
  if (files.length) event.preventDefault();
  addPictures(files);
});
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => {
    // A browser would leave the page for the file.
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    addPictures(picturesOf(event.dataTransfer));
  });
}
at("fields").addEventListener("submit", (event) => event.preventDefault());
sendByEnter(at("message"), at("composer"));
at("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) stop();
});
at("new").addEventListener("click", () => {
  conversation.exchanges = [];
  save();
  showConversation();
  say("A new conversation.");
  at("message").focus();
});
for (const control of Object.values(controls)) {
  control.addEventListener("change", () => {
    readSettings();
    save();
  });
}
controls.model.addEventListener("change", showFacts);
at("defaults").addEventListener("click", () => {
  conversation.settings = { ...DEFAULTS };
  showSettings();
  save();
});
at("key").value = sessionStorage.getItem(KEY) ?? "";
at("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, at("key").value.trim());
  showServer();
});
// Before the browser breaks the connection, which would look like the server's fault.
addEventListener("beforeunload", stop);
addEventListener("pagehide", save);

showSettings();
showConversation();
showServer();
scrollToEnd(true);
