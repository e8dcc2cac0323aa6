// Put before the theme's search worker. A pasted flag, such as -ctk q8_0, is no query of lunr: it
// excludes words by a dash. The page of llama-server's flags has the tag "flags".
(() => {
  const flags = new Set(FLAGS);
  const asked = (query) => {
    const found = [];
    const words = query.split(/\s+/).map((word) => {
      const [, dashes, name] = word.match(/^(-*)([a-z][\w-]*)/i) || [null, "", word];
      const flag = name.replaceAll("_", "-");
      const isLong = !dashes && flag.split("-").length > 2; // cache-type-k, and not json-schema
      const isFlag = flags.has((dashes || (isLong ? "--" : "")) + flag);
      // A short word, such as "c", begins many others.
      if (isFlag) found.push(...flag.split("-").filter((part) => part.length > 2), "");
      return dashes ? name : word;
    });
    return found.length ? `flags ${found.join(" ")}` : words.join(" ");
  };
  const listen = self.addEventListener;
  self.addEventListener = (type, heed) =>
    listen.call(self, type, type !== "message" ? heed : ({ data }) =>
      heed({ data: data.type === 2 ? { ...data, data: asked(data.data) } : data }));
})();
