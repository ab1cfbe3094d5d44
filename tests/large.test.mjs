// Attachments far larger than what the server may hold of them, in every way in and out.
//   FLATBED_TEST_LARGE_MB  their size [190]; 1024 is the largest that is taken
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { newName, startServer } from './server.mjs';

const megabyte = 1 << 20;
const size = Number(process.env.FLATBED_TEST_LARGE_MB ?? 190) * megabyte;
// The server may grow by this much. It grows by some 75 MB whether 50 MB or 400 come, most of which the allocator keeps; a server
// that holds a whole attachment grows by 190 MB. Mapped pages of the store are not its own.
const growthMax = 140 * megabyte;

let server;
const db = newName('large');
before(async () => {
  server = await startServer();
  await call('PUT', `/${db}`);
});
after(() => server.stop());

/** Pieces of `size` bytes that do not compress and are no copies of one another. */
function* pieces() {
  const piece = Buffer.alloc(megabyte);
  for (let at = 0; at < piece.length; at += 32) createHash('sha256').update(String(at)).digest().copy(piece, at);
  for (let count = 0; count < size / megabyte; count += 1) {
    piece.writeUInt32BE(count, 0);
    yield Buffer.from(piece);
  }
}

const digest = createHash('md5');
for (const piece of pieces()) digest.update(piece);
const md5 = digest.digest('base64');

/** Sends what `body` yields, as fast as it is taken; counts the answer's bytes and keeps the beginning. */
function call(method, path, headers = {}, body = []) {
  const { hostname: host, port } = new URL(server.url);
  return new Promise((resolve, reject) => {
    const sent = { accept: 'application/json', ...headers };
    const request = http.request({ host, port, method, path, headers: sent, agent: false }, (response) => {
      const hash = createHash('md5');
      let text = '';
      let length = 0;
      response.on('data', (chunk) => {
        length += chunk.length;
        hash.update(chunk);
        if (text.length < 10_000) text += chunk.toString('latin1');
      });
      response.on('error', reject);
      response.on('end', () => resolve({ status: response.statusCode, text, length, md5: hash.digest('base64') }));
    });
    request.on('error', reject);
    (async () => {
      for (const piece of body) {
        if (!request.write(piece)) await new Promise((next) => { request.once('drain', next); });
      }
      request.end();
    })();
  });
}

/** Memory of the server's own, in bytes, and the most it has while something goes on. */
function anonymous() {
  const line = readFileSync(`/proc/${server.pid}/status`, 'utf8').match(/RssAnon:\s+(\d+) kB/);
  return Number(line[1]) * 1024;
}

async function withinBounds(action) {
  if (!server.pid || process.platform !== 'linux') return action();
  const begin = anonymous();
  let most = 0;
  const watch = setInterval(() => { most = Math.max(most, anonymous() - begin); }, 20);
  try {
    return await action();
  } finally {
    clearInterval(watch);
    if (process.env.FLATBED_TEST_LARGE_MB) console.error(`the server grew by ${Math.round(most / megabyte)} MB`);
    assert.ok(most < growthMax, `grew by ${Math.round(most / megabyte)} MB`);
  }
}

test('one attachment by itself', async () => {
  const headers = { 'content-type': 'application/octet-stream', 'content-length': size, 'content-md5': md5 };
  const put = await withinBounds(() => call('PUT', `/${db}/alone/a/b`, headers, pieces()));
  assert.equal(put.status, 201, put.text);
  const got = await withinBounds(() => call('GET', `/${db}/alone/a%2Fb`));
  assert.deepEqual([got.status, got.length, got.md5], [200, size, md5]);
  const range = await call('GET', `/${db}/alone/a/b`, { range: `bytes=${size - 10}-` });
  assert.deepEqual([range.status, range.length], [206, 10]);
});

test('in multipart, in and out', async () => {
  const attachment = { content_type: 'application/octet-stream', follows: true, length: size, digest: `md5-${md5}` };
  function* body() {
    yield `--x\r\ncontent-type: application/json\r\n\r\n${JSON.stringify({ _attachments: { 'a/b': attachment } })}\r\n--x\r\n\r\n`;
    yield* pieces();
    yield '\r\n--x--';
  }
  const headers = { 'content-type': 'multipart/related; boundary=x' };
  const put = await withinBounds(() => call('PUT', `/${db}/together`, headers, body()));
  assert.equal(put.status, 201, put.text);
  const related = { accept: 'multipart/related' };
  const got = await withinBounds(() => call('GET', `/${db}/together?attachments=true`, related));
  assert.ok(got.length > size && got.length < size + 2_000, `${got.length}`);
  assert.match(got.text, new RegExp(`content-length: ${size}`, 'i'));
  // The same data is stored once.
  const info = JSON.parse((await call('GET', `/${db}`)).text);
  assert.ok(info.sizes.active < 1.5 * size, JSON.stringify(info.sizes));
});
