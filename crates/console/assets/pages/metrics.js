// What the server did during the last hour.
import { ApiError } from '../api.js';
import { LineChart } from '../chart.js';
import { begin, EVERY_MS, levels, listen, quantiles, rates, samples, state, sum } from '../samples.js';
import { bytes, count, decimals, duration, facts, h, head, message, more, plain, replace, section, words } from '../parts.js';

const HOUR_MS = 3_600_000;

const status = (first) => (values) => [...values].reduce((all, [key, value]) => (key.startsWith('flatbed_requests_total{') && key.includes(`status="${first}`) ? all + value : all), 0);
const of = (name, ...labels) => (values) => sum(values, name, ...labels);
const rate = (label, name, ...labels) => ({ label, points: rates(of(name, ...labels)) });
const level = (label, name, ...labels) => ({ label, points: levels(of(name, ...labels)) });

/** Each chart: what it is called, how values are written, its lines. */
const CHARTS = [
  ['Requests per second', decimals, () => [{ label: 'answered', points: rates(status('2')) }, { label: 'refused (4xx)', points: rates(status('4')) }, { label: 'failed (5xx)', points: rates(status('5')) }]],
  ['Time to the answer', duration, () => [{ label: 'half within', points: quantiles('flatbed_request_duration_seconds', 0.5) }, { label: '99 % within', points: quantiles('flatbed_request_duration_seconds', 0.99) }]],
  ['Documents per second', decimals, () => [rate('written', 'flatbed_documents_written_total'), rate('read', 'flatbed_documents_read_total'), rate('refused (409)', 'flatbed_document_conflicts_total')]],
  ['Transactions per second', decimals, () => [rate('committed', 'flatbed_commits_total'), rate('in conflict', 'flatbed_conflicts_total'), rate('retried', 'flatbed_retries_total')]],
  ['Commit', duration, () => [{ label: 'half within', points: quantiles('flatbed_commit_duration_seconds', 0.5) }, { label: '99 % within', points: quantiles('flatbed_commit_duration_seconds', 0.99) }]],
  ['Followers of changes', (value) => count(Math.round(value)), () => [level('followers', 'flatbed_followers'), level('behind', 'flatbed_tail_followers_behind')]],
  ['Network', (value) => `${bytes(value)}/s`, () => [rate('sent', 'flatbed_sent_bytes_total'), rate('received', 'flatbed_received_bytes_total')]],
  ['Connections', (value) => count(Math.round(value)), () => [level('open', 'flatbed_connections'), level('requests under way', 'flatbed_requests_in_flight')]],
  ['Memory', bytes, () => [level('resident', 'process_resident_memory_bytes'), level('answers', 'flatbed_memory_used_bytes', 'part="answer'), level('requests', 'flatbed_memory_used_bytes', 'part="request')]],
  ['Processor', (value) => `${Math.round(value * 100)} %`, () => [rate('of one core', 'process_cpu_seconds_total')]],
  ['Views and indexes', duration, () => [level('views behind', 'flatbed_views_lag_seconds')]],
  ['Worker', (value) => count(Math.round(value)), () => [level('rows behind', 'flatbed_worker_lag_rows'), rate('delivered per second', 'flatbed_worker_delivered_total'), rate('to the queue per second', 'flatbed_worker_queued_total')]],
  ['Data of the embedded engine', bytes, () => [level('data', 'flatbed_engine_data_bytes')]],
];

export default async function metrics({ signal }) {
  begin();
  if (samples.length === 0) {
    await new Promise((resolve) => {
      listen(resolve, signal);
      setTimeout(resolve, 5000);
    });
  }
  if (samples.length === 0 && state.error instanceof ApiError) throw state.error;
  const charts = CHARTS.map(([heading, say, lines]) => ({ view: new LineChart(heading, say), lines }));
  const trouble = h('div', {});
  const now = h('div', { class: 'panel' });
  const all = h('pre', { class: 'text', tabindex: '0', role: 'region', 'aria-label': 'All figures' });
  const raw = more('All figures', all);
  const write = () => { if (raw.open) all.textContent = [...(samples.at(-1)?.values ?? [])].map(([name, value]) => `${plain(name)} ${value}`).join('\n'); };
  raw.addEventListener('toggle', write);
  const draw = () => {
    replace(trouble, state.error && message('bad', words(state.error)));
    const last = samples.at(-1);
    if (!last) return;
    const value = (name, ...labels) => sum(last.values, name, ...labels) ?? NaN;
    replace(now, facts([['Up', duration(last.at / 1000 - value('process_start_time_seconds'))], ['Connections', count(value('flatbed_connections'))], ['Followers', count(value('flatbed_followers'))],
      ['Databases in memory', count(value('flatbed_databases_cached'))], ['Replications', count(value('flatbed_replications', 'running'))], ['Jobs', count(value('flatbed_worker_jobs', 'running'))],
      ['Memory', bytes(value('process_resident_memory_bytes'))], ['Descriptors', count(value('process_open_fds'))]]));
    const from = Math.max(last.at - HOUR_MS, samples[0].at);
    for (const { view, lines } of charts) view.show(lines().filter(({ points }, at) => points.length > 0 || at === 0), { from, until: last.at });
    write();
  };
  listen(draw, signal);
  draw();
  return [head([], 'Metrics'), h('p', { class: 'quiet' }, `Of this process, every ${EVERY_MS / 1000} s since you signed in, for an hour at most; kept by this page alone.`), trouble, section('Now', now),
    section('During the last hour', h('div', { class: 'charts' }, charts.map(({ view }) => view))), raw];
}
