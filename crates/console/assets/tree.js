// A document's revisions as a tree, drawn from left to right: runs without a branch are drawn as one piece.
import { h, plain, replace, svg } from './dom.js';

const [STEP, LANE, RADIUS, EDGE] = [120, 46, 9, 28];

/**
 * Nodes worth drawing, of leaves `{ rev, path, isDeleted, isWinner }`, whose paths lead from the leaf to its oldest known ancestor:
 * `{ rev, lane, column, parent, hidden, leaf }`, where `hidden` revisions lie between a node and its parent.
 */
export function layout(leaves) {
  const children = new Map();
  const parents = new Map();
  for (const { path } of leaves) {
    path.forEach((rev, at) => {
      const parent = path[at + 1];
      if (!children.has(rev)) children.set(rev, new Set());
      if (parent === undefined) return;
      parents.set(rev, parent);
      if (!children.has(parent)) children.set(parent, new Set());
      children.get(parent).add(rev);
    });
  }
  const leafOf = new Map(leaves.map((leaf) => [leaf.rev, leaf]));
  // Leaves, branches and roots; and of what is drawn as a run its newest two, which one is most likely to look for.
  const isDrawn = (rev) => leafOf.has(rev) || !parents.has(rev) || children.get(rev).size > 1 || leafOf.has([...children.get(rev)][0]);
  const nodes = new Map();
  let lanes = 0;
  for (const leaf of leaves) {
    let hidden = 0;
    let below;
    for (const rev of leaf.path) {
      if (!isDrawn(rev)) {
        hidden += 1;
        continue;
      }
      if (below) Object.assign(below, { parent: rev, hidden });
      hidden = 0;
      if (nodes.has(rev)) break;
      below = { rev, lane: lanes, leaf: leafOf.get(rev), hidden: 0 };
      nodes.set(rev, below);
    }
    lanes += 1;
  }
  const column = (node) => {
    // A loop and not a recursion: a path may have a thousand nodes.
    const way = [];
    let at = node;
    while (at && at.column === undefined) {
      way.push(at);
      at = nodes.get(at.parent);
    }
    let number = at ? at.column + 1 : 0;
    for (const one of way.reverse()) {
      one.column = number;
      number += 1;
    }
  };
  for (const node of nodes.values()) column(node);
  return [...nodes.values()];
}

/** `<revision-tree>`: `show(leaves, onpick)`. The list beside it says the same to who does not see it. */
export class RevisionTree extends HTMLElement {
  show(leaves) {
    const nodes = layout(leaves);
    const byRev = new Map(nodes.map((node) => [node.rev, node]));
    const width = EDGE * 2 + STEP * Math.max(0, ...nodes.map(({ column }) => column)) + 70;
    const height = EDGE * 2 + LANE * Math.max(0, ...nodes.map(({ lane }) => lane)) + 8;
    const x = ({ column }) => EDGE + column * STEP;
    const y = ({ lane }) => EDGE + lane * LANE;
    const wires = nodes.filter(({ parent }) => byRev.has(parent)).map((node) => {
      const parent = byRev.get(node.parent);
      const [x1, y1, x2, y2] = [x(parent), y(parent), x(node), y(node)];
      const middle = x1 + 34;
      return [
        svg('path', { class: node.hidden ? 'wire dashed' : 'wire', d: y1 === y2 ? `M${x1} ${y1}H${x2}` : `M${x1} ${y1}C${middle} ${y1} ${middle - 10} ${y2} ${middle + 16} ${y2}H${x2}` }),
        node.hidden > 0 && svg('text', { class: 'soft', x: (Math.max(x1, middle - 18) + x2) / 2, y: y2 - 7, 'text-anchor': 'middle' }, `${node.hidden} more`),
      ];
    });
    const dots = nodes.map((node) => {
      const { leaf } = node;
      const look = leaf?.isWinner ? 'winner' : leaf?.isDeleted ? 'deleted' : leaf ? 'conflict' : '';
      const [generation, hash] = node.rev.split('-');
      return svg('g', {}, svg('circle', { class: `node ${look}`, cx: x(node), cy: y(node), r: leaf ? RADIUS : 6 }),
        svg('text', { x: x(node), y: y(node) + 24, 'text-anchor': 'middle' }, plain(`${generation}-${(hash ?? '').slice(0, 5)}`)),
        svg('title', {}, plain(node.rev)));
    });
    const leafWords = (leaf) => `${plain(leaf.rev.slice(0, 12))} ${leaf.isWinner ? 'wins' : leaf.isDeleted ? 'is deleted' : 'is in conflict'}`;
    replace(this, h('div', { class: 'drawing', tabindex: '0', role: 'region', 'aria-label': 'Revision tree' },
      svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${leaves.length} ends: ${leaves.slice(0, 10).map(leafWords).join(', ')}` }, wires, dots)),
    h('ul', { class: 'legend' }, [['winner', 'wins'], ['conflict', 'in conflict'], ['deleted', 'deleted'], ['', 'older']].map(([look, label]) => h('li', {},
      svg('svg', { viewBox: '0 0 26 8', 'aria-hidden': 'true' }, svg('circle', { class: `node ${look}`, cx: 13, cy: 4, r: 3.4 })), label))));
    return this;
  }
}
customElements.define('revision-tree', RevisionTree);
