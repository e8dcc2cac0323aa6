// Asks the search of the built site, as a reader's browser does: `make docs-build` first.
//
//     node tools/docs/site_search.cjs "custom drafter" history
//     node tools/docs/site_search.cjs
//
// Without words it asks each line of searches.txt beside it, which has the pages that answer it, and
// prints those of which none comes first.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const SITE = path.join(__dirname, "../../build/site");
const SCRIPTS = path.join(SITE, "assets/javascripts");

// The theme's search is a worker: what it gets from a page and from its own folder, it gets here.
const answers = [];
let ask = null;
const runs = (file) => vm.runInThisContext(fs.readFileSync(file, "utf8"));
globalThis.self = globalThis;
globalThis.location = { href: "" };
globalThis.addEventListener = (_event, listener) => { ask = (data) => listener({ data }); };
globalThis.postMessage = (answer) => answers.push(answer);
globalThis.importScripts = (...files) =>
  files.forEach((file) => runs(path.join(SCRIPTS, file.slice(file.indexOf("/lunr/")))));
const worker = fs.readdirSync(path.join(SCRIPTS, "workers")).find((name) => /^search.*\.js$/.test(name));
runs(path.join(SCRIPTS, "workers", worker));

const told = async (type, data) => {
  const before = answers.length;
  ask({ type, data });
  while (answers.length === before) await new Promise((resolve) => setTimeout(resolve, 0));
  return answers[answers.length - 1].data;
};
const found = async (words) => (await told(2, words)).items;

(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(path.join(SITE, "search/search_index.json"), "utf8"));
  await told(0, { config, docs, options: { suggest: false } });
  for (const words of process.argv.slice(2)) {
    const items = await found(words);
    console.log(`${words}: ${items.length}`);
    items.slice(0, 5).forEach(([page]) => console.log(`  ${page.location}`));
  }
  if (process.argv.length > 2) return;
  const lines = fs.readFileSync(path.join(__dirname, "searches.txt"), "utf8").trim().split("\n");
  let nFirst = 0, nThree = 0;
  for (const [words, pages] of lines.map((line) => line.split(": "))) {
    const items = await found(words);
    const answer = (item) => item.some((one) => pages.split(" ").some((page) => one.location.startsWith(page)));
    const at = items.findIndex(answer);
    nFirst += at === 0;
    nThree += at >= 0 && at < 3;
    if (at !== 0) console.log(`${at < 0 ? "no" : at + 1}  ${words}: ${items.slice(0, 3).map(([one]) => one.location).join(" ")}`);
  }
  console.log(`${lines.length} searches: ${nFirst} first, ${nThree} among the first three`);
})();
