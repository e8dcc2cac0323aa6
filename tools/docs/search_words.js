// Put before the theme's search worker, which passes every word on as the beginning of a word: "a"
// then finds "apps". Small words are left out. A question of site_hooks.py finds the
// headings with the words that stand beside it. A pasted flag of llama-server, such as -ctk q8_0, is no query of
// lunr, where a dash excludes a word: it finds the page of these flags, which has the tag "flags".
((given) => {
  const flags = new Set(given.flags);
  const questions = given.questions.map(([asked, headings]) => [new RegExp(asked, "i"), headings]);
  const small = new Set(given.small);
  const ours = new Set(["api-key", "chat-template", "json-schema", "logit-bias", "min-p", "top-k", "top-p"]);
  const asked = (query) => {
    const found = [];
    const words = query.trim().split(/\s+/).map((word) => {
      const [, dashes, name] = word.match(/^(-*)([a-z][\w-]*)/i) || [null, "", word];
      const flag = name.replaceAll("_", "-");
      const isLong = !dashes && name.includes("-") && !ours.has(name); // cache-type-k
      const isFlag = flags.has((dashes || (isLong ? "--" : "")) + flag);
      // A short word, such as "c", begins many others.
      if (isFlag) found.push(...flag.split("-").filter((part) => part.length > 2), "");
      return dashes ? name : word;
    });
    if (found.length) return `flags ${found.join(" ")}`;
    const question = questions.find(([pattern]) => pattern.test(words.join(" ")));
    const rest = words.filter((word) => !small.has(word.toLowerCase()));
    const titles = question ? question[1].split(" ").map((word) => `title:${word}^10000`) : [];
    return [...titles, ...(rest.length ? rest : words)].join(" ");
  };
  const listen = self.addEventListener;
  self.addEventListener = (type, heed) =>
    listen.call(self, type, type !== "message" ? heed : ({ data }) =>
      heed({ data: data.type === 2 ? { ...data, data: asked(data.data) } : data }));
})(GIVEN);
