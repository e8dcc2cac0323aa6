// Server-sent events out of a stream of text: what lies between two empty lines is one event.

/** Takes text in pieces of any size, and gives the data of each event that is complete. */
export class EventParser {
  #rest = "";
  #data = [];

  /**
   * @param {string} text the next piece, which may end anywhere.
   * @returns {string[]} the data of the events that end in it; comments (pings) give none.
   */
  feed(text) {
    this.#rest += text;
    const events = [];
    let end;
    while ((end = this.#lineEnd()) !== null) {
      const line = this.#rest.slice(0, end.at);
      this.#rest = this.#rest.slice(end.next);
      if (line === "") {
        if (this.#data.length) events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        this.#data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return events;
  }

  // A line ends with \n, \r\n or \r. A \r that is the last sign so far may have its \n still to come.
  #lineEnd() {
    const at = this.#rest.search(/[\r\n]/);
    if (at < 0) return null;
    if (this.#rest[at] === "\n") return { at, next: at + 1 };
    if (at + 1 === this.#rest.length) return null;
    return { at, next: this.#rest[at + 1] === "\n" ? at + 2 : at + 1 };
  }
}
