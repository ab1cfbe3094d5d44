// Figures over time, and figures beside each other.
import { h, replace, svg } from './dom.js';
import { decimals } from './parts.js';

const [HEIGHT, LEFT, BOTTOM, TOP] = [150, 68, 18, 8];

/** A rounded number just above the largest value. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((limit) => limit >= value) ?? 10 * power;
}

const clock = (at) => new Date(at).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });

/**
 * `<line-chart>`: `show(series, { from, until })`, each of the series `{ label, points: [[ms, value]] }`, four at most. `say(value)` writes a
 * value. The arrow keys and the pointer walk along its moments.
 */
export class LineChart extends HTMLElement {
  #series = [];
  #span = [0, 1];
  #cursor;
  #heading;
  #say;
  #fixed;
  #sized;

  constructor(heading, say = decimals, { max } = {}) {
    super();
    this.#heading = heading;
    this.#say = say;
    this.#fixed = max;
    this.drawing = svg('svg', { role: 'img', tabindex: '0' });
    this.legend = h('ul', { class: 'legend' });
    this.said = h('p', { class: 'only-read', role: 'status' });
    this.drawing.addEventListener('pointermove', (event) => {
      const box = this.drawing.getBoundingClientRect();
      const part = (event.clientX - box.left - LEFT) / Math.max(1, box.width - LEFT);
      this.#point(this.#span[0] + part * (this.#span[1] - this.#span[0]));
    });
    this.drawing.addEventListener('pointerleave', () => this.#point(undefined));
    this.drawing.addEventListener('blur', () => this.#point(undefined));
    this.drawing.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const moments = [...new Set(this.#series.flatMap(({ points }) => points.map(([at]) => at)))].sort((a, b) => a - b);
      if (!step || moments.length === 0) return;
      event.preventDefault();
      const now = this.#cursor === undefined ? moments.length : moments.findIndex((at) => at >= this.#cursor);
      this.#point(moments[Math.min(moments.length - 1, Math.max(0, now + step))]);
      this.said.textContent = `${clock(this.#cursor)}: ${this.#values().map(([label, text]) => `${label} ${text}`).join(', ')}`;
    });
  }

  connectedCallback() {
    if (!this.firstChild) replace(this, h('figure', { class: 'panel' }, h('figcaption', {}, h('h3', {}, this.#heading)), this.drawing, this.legend, this.said));
    this.#sized = new ResizeObserver(() => this.#draw());
    this.#sized.observe(this.drawing);
  }

  disconnectedCallback() {
    this.#sized.disconnect();
  }

  show(series, { from, until } = {}) {
    this.#series = series.slice(0, 4);
    const moments = series.flatMap(({ points }) => points.map(([at]) => at));
    this.#span = [from ?? Math.min(...moments, Date.now()), until ?? Math.max(...moments, Date.now())];
    if (this.#span[1] <= this.#span[0]) this.#span[1] = this.#span[0] + 1000;
    this.#draw();
    return this;
  }

  #point(at) {
    this.#cursor = at;
    this.#draw();
  }

  /** The values at the cursor, or the newest. */
  #values() {
    return this.#series.map(({ label, points }) => {
      let found;
      for (const point of points) if (this.#cursor === undefined || point[0] <= this.#cursor + 1) found = point;
      return [label, found && Number.isFinite(found[1]) ? this.#say(found[1]) : '–'];
    });
  }

  #draw() {
    const width = this.drawing.clientWidth || 560;
    this.drawing.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    const [from, until] = this.#span;
    const top = this.#fixed ?? ceiling(Math.max(0, ...this.#series.flatMap(({ points }) => points.map(([, value]) => (Number.isFinite(value) ? value : 0)))));
    const x = (at) => LEFT + ((at - from) / (until - from)) * (width - LEFT - 2);
    const y = (value) => HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - BOTTOM - TOP);
    const paths = this.#series.map(({ points }, at) => {
      let way = '';
      let isBroken = true;
      for (const [moment, value] of points) {
        if (!Number.isFinite(value)) isBroken = true;
        else if (moment >= from) {
          way += `${isBroken ? 'M' : 'L'}${x(moment).toFixed(1)} ${y(value).toFixed(1)}`;
          isBroken = false;
        }
      }
      const last = points.at(-1);
      return [
        svg('path', { class: `series s${at + 1}`, d: way || 'M0 0' }),
        last && Number.isFinite(last[1]) && svg('circle', { class: `f${at + 1}`, cx: x(last[0]), cy: y(last[1]), r: 2.6 }),
      ];
    });
    const minutes = Math.round((until - from) / 60_000);
    replace(this.drawing,
      [0, 0.5, 1].map((part) => [
        svg('line', { class: 'grid', x1: LEFT, x2: width, y1: y(part * top), y2: y(part * top) }),
        // A half that is written as the whole says nothing.
        (part !== 0.5 || ![0, top].some((end) => this.#say(end) === this.#say(top / 2)))
          && svg('text', { class: 'soft', x: LEFT - 6, y: y(part * top) + 4, 'text-anchor': 'end' }, this.#say(part * top)),
      ]),
      svg('text', { class: 'soft', x: LEFT, y: HEIGHT - 3 }, minutes > 0 ? `${minutes} min ago` : `${Math.round((until - from) / 1000)} s ago`),
      svg('text', { class: 'soft', x: width - 2, y: HEIGHT - 3, 'text-anchor': 'end' }, this.#cursor === undefined ? 'now' : clock(this.#cursor)),
      this.#cursor !== undefined && svg('line', { class: 'cursor', x1: x(this.#cursor), x2: x(this.#cursor), y1: TOP, y2: HEIGHT - BOTTOM }),
      paths);
    const values = this.#values();
    this.drawing.setAttribute('aria-label', `${this.#heading}. ${values.map(([label, text]) => `${label}: ${text}`).join('; ')}. Arrow keys read out moments.`);
    replace(this.legend, values.map(([label, text], at) => h('li', {},
      svg('svg', { viewBox: '0 0 26 8', 'aria-hidden': 'true' }, svg('line', { class: `series s${at + 1}`, x1: 0, x2: 26, y1: 4, y2: 4 })), label, ' ', h('b', {}, text))));
  }
}
customElements.define('line-chart', LineChart);

/** `<bar-chart>`: `show([[label, value, onclick?]])`, the largest first. */
export class BarChart extends HTMLElement {
  constructor(heading) {
    super();
    this.heading = heading;
    this.list = h('ol', {});
  }

  connectedCallback() {
    if (!this.firstChild) replace(this, h('figure', { class: 'panel' }, h('figcaption', {}, h('h3', {}, this.heading)), this.list));
  }

  show(rows) {
    const top = Math.max(1, ...rows.map(([, value]) => value));
    replace(this.list, rows.length ? rows.map(([label, value]) => h('li', {}, h('span', {}, label),
      svg('svg', { viewBox: '0 0 100 14', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, svg('rect', { class: 'bar', width: Math.max(0.6, (value / top) * 100), height: 14, rx: 1 })),
      h('b', {}, value.toLocaleString('en')))) : h('li', { class: 'quiet' }, 'Nothing'));
    return this;
  }
}
customElements.define('bar-chart', BarChart);

