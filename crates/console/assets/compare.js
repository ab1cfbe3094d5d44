// Two texts side by side, line by line.
import { h } from './dom.js';

/** Beyond so many lines differences are not looked for: it takes room and time by the product of both. */
const LINES_MAX = 1500;
const SHOWN_MAX = 3000;

/** Pairs of lines, `undefined` where one side has none: `[left, right, isSame]`. */
export function align(left, right) {
  let from = 0;
  while (from < left.length && from < right.length && left[from] === right[from]) from += 1;
  let [endLeft, endRight] = [left.length, right.length];
  while (endLeft > from && endRight > from && left[endLeft - 1] === right[endRight - 1]) [endLeft, endRight] = [endLeft - 1, endRight - 1];
  const pairs = left.slice(0, from).map((line) => [line, line, true]);
  const [a, b] = [left.slice(from, endLeft), right.slice(from, endRight)];
  if (a.length > LINES_MAX || b.length > LINES_MAX) {
    for (let at = 0; at < Math.max(a.length, b.length); at += 1) pairs.push([a[at], b[at], a[at] === b[at]]);
  } else {
    // The longest lines in common, from the end.
    const width = b.length + 1;
    const common = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
      }
    }
    let [i, j] = [0, 0];
    let [gone, come] = [[], []];
    const flush = () => {
      for (let at = 0; at < Math.max(gone.length, come.length); at += 1) pairs.push([gone[at], come[at], false]);
      [gone, come] = [[], []];
    };
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) {
        flush();
        pairs.push([a[i], b[j], true]);
        [i, j] = [i + 1, j + 1];
      } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
        gone.push(a[i]);
        i += 1;
      } else {
        come.push(b[j]);
        j += 1;
      }
    }
    flush();
  }
  for (let at = endLeft; at < left.length; at += 1) pairs.push([left[at], left[at], true]);
  return pairs;
}

/** Both as columns of lines with what differs marked; and how many lines do. */
export function compare(leftText, rightText) {
  const pairs = align(leftText.split('\n'), rightText.split('\n'));
  const column = (side) => h('div', { class: 'lines' }, pairs.slice(0, SHOWN_MAX).map((pair) => {
    const line = pair[side];
    const look = line === undefined ? 'void' : pair[2] ? undefined : 'here';
    return h('div', { class: look }, line === undefined ? '' : line.slice(0, 5000), look === 'here' && h('span', { class: 'only-read' }, ' (differs)'));
  }), pairs.length > SHOWN_MAX && h('div', {}, '…'));
  return { left: column(0), right: column(1), differing: pairs.filter(([, , isSame]) => !isSame).length };
}
