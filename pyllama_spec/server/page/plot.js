// The two small plots of an answer: their shapes as numbers, and these as SVG.

import { SOURCES, sum } from "./answer.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 48;
const MAX_BARS = 75;

/**
 * Bars of tokens per round, the target's token below and the drafted ones on it. More rounds than
 * there is room for share a bar, which shows their mean.
 *
 * @param {object[]} rounds as Answer.rounds() gives them.
 * @param {number} least what the upper edge stands for at least, so that two plots can share it.
 * @returns {{bars: {x: number, y: number, width: number, height: number, source: string}[],
 *     top: number}} in a box of `width` x `height`, and the tokens that its upper edge stands for.
 */
export function roundBars(rounds, least = 2, width = WIDTH, height = HEIGHT) {
  const share = Math.max(1, Math.ceil(rounds.length / MAX_BARS));
  const columns = [];
  for (let at = 0; at < rounds.length; at += share) {
    columns.push(meanOf(rounds.slice(at, at + share)));
  }
  const top = Math.max(least, ...columns.map((one) => sum(Object.values(one))));
  const step = width / Math.max(20, columns.length);
  const bars = [];
  columns.forEach((column, i) => {
    let y = height;
    for (const source of Object.keys(SOURCES)) {
      const tall = ((column[source] ?? 0) / top) * height;
      if (!tall) continue;
      y -= tall;
      bars.push({ x: i * step, y, width: step * 0.8, height: tall, source });
    }
  });
  return { bars, top };
}

/**
 * The line of tokens per second.
 *
 * @param {[number, number][]} speeds as Answer.speeds() gives them.
 * @param {number} least as in roundBars().
 * @returns {{points: [number, number][], top: number}}
 */
export function speedLine(speeds, least = 1, width = WIDTH, height = HEIGHT) {
  const top = Math.max(least, ...speeds.map(([, perSecond]) => perSecond));
  const begin = speeds[0]?.[0] ?? 0;
  const span = Math.max(1, (speeds.at(-1)?.[0] ?? 0) - begin);
  const points = speeds.map(([ms, perSecond]) => [
    ((ms - begin) / span) * width,
    height - (perSecond / top) * height,
  ]);
  return { points, top };
}

/** An empty SVG, which says in words what it shows; the words come with each drawing. */
export function emptyPlot(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("class", `plot ${name}`);
  return svg;
}

/** Draws bars of rounds; returns what the upper edge stands for. */
export function drawRounds(svg, rounds, least) {
  const { bars, top } = roundBars(rounds, least);
  svg.replaceChildren(
    ...bars.map(({ source, ...box }) => element("rect", { ...box, class: `by-${source}` })),
  );
  return top;
}

/** Draws the line of the speed; returns what the upper edge stands for. */
export function drawSpeed(svg, speeds, least) {
  const line = speedLine(speeds, least);
  const points = line.points.map((point) => point.map((one) => one.toFixed(1)).join(",")).join(" ");
  svg.replaceChildren(element("polyline", { points }));
  return line.top;
}

function element(name, attributes) {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, String(value));
  return one;
}

function meanOf(rounds) {
  const mean = {};
  for (const round of rounds) {
    for (const [source, n] of Object.entries(round)) {
      mean[source] = (mean[source] ?? 0) + n / rounds.length;
    }
  }
  return mean;
}
