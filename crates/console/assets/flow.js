// A job of the worker as what flows through it: source, mapping, target, and the queue beside.
import { h, plain, replace, svg } from './dom.js';
import { count, many } from './parts.js';

const [WIDTH, BOX, HIGH] = [760, 200, 66];

/** `<job-flow>`: `show(job)`, as `/_worker/_api/jobs` has it, with `mapping`, what its document says of that. */
export class JobFlow extends HTMLElement {
  show(job, mapping = 'mapping') {
    const isRunning = job.state === 'running';
    const look = { running: 'ok', failing: 'warn', halted: 'bad', broken: 'bad' }[job.state] ?? '';
    const box = (x, y, title, text, kind = '') => svg('g', {},
      svg('rect', { class: `box ${kind}`, x, y, width: BOX, height: HIGH, rx: 9 }),
      svg('text', { x: x + 14, y: y + 27, 'font-weight': '600' }, title),
      svg('text', { class: 'soft', x: x + 14, y: y + 48 }, plain(text, 26)));
    const wire = (d, kind = '') => svg('path', { class: `wire ${kind}`, d, 'marker-end': 'url(#tip)' });
    const words = `${plain(job.source ?? 'its source', 60)} to ${plain(job.target ?? 'its target', 60)}: ${job.state}. ${count(job.lag?.rows ?? NaN)} rows behind, ${count(job.delivered ?? 0)} delivered, ${count(job.queued ?? 0)} to the queue.`;
    const dashed = isRunning ? '' : 'dashed';
    replace(this, h('div', { class: 'drawing', tabindex: '0', role: 'region', 'aria-label': 'Flow of the job' },
      svg('svg', { width: WIDTH, height: 190, viewBox: `0 0 ${WIDTH} 190`, role: 'img', 'aria-label': words },
        svg('defs', {}, svg('marker', { id: 'tip', viewBox: '0 0 8 8', refX: '7', refY: '4', markerWidth: '7', markerHeight: '7', orient: 'auto' },
          svg('path', { class: 'wire', d: 'M1 1L7 4L1 7' }))),
        box(2, 18, 'Source', job.source ?? '–', look), box(280, 18, 'Mapping', mapping), box(558, 18, 'Target', job.target ?? '–', look),
        box(558, 118, 'Dead letters', `${many(job.queued ?? 0, 'entry', 'entries')} since the start`, job.queued ? 'warn' : ''),
        wire(`M${BOX + 4} 51H276`, dashed), wire(`M${280 + BOX + 2} 51H554`, dashed), wire('M380 86V151H554', 'dashed'),
        svg('text', { class: 'soft', x: 241, y: 42, 'text-anchor': 'middle' }, `${count(job.lag?.rows ?? NaN)} behind`),
        svg('text', { class: 'soft', x: 519, y: 42, 'text-anchor': 'middle' }, `${count(Math.round(job.throughput ?? 0))}/s`),
        svg('text', { class: 'soft', x: 519, y: 70, 'text-anchor': 'middle' }, `${count(job.delivered ?? 0)} in all`),
        svg('text', { class: 'soft', x: 466, y: 143, 'text-anchor': 'middle' }, 'what the target refuses'))));
    return this;
  }
}
customElements.define('job-flow', JobFlow);
