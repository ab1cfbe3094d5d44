// HTTP/2 over cleartext by prior knowledge (RFC 9113, 3.3), with many requests at once on one connection.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http2 from 'node:http2';
import { after, before, test } from 'node:test';
import { newName, startServer } from './server.mjs';

let server;
before(async () => { server = await startServer(); });
after(() => server.stop());

async function call(session, method, path, body) {
  const stream = session.request({ ':method': method, ':path': path, 'content-type': 'application/json' });
  if (body) stream.write(JSON.stringify(body));
  stream.end();
  const [headers] = await once(stream, 'response');
  let text = '';
  stream.setEncoding('utf8');
  for await (const part of stream) text += part;
  return { status: headers[':status'], body: JSON.parse(text) };
}

test('documents and a feed on one connection', async () => {
  const session = http2.connect(server.url);
  const name = newName('h2');
  assert.equal((await call(session, 'PUT', `/${name}`)).status, 201);

  const feed = session.request({ ':path': `/${name}/_changes?feed=continuous&since=0&heartbeat=10000` });
  feed.setEncoding('utf8');
  const rows = (async () => {
    const ids = new Set();
    let rest = '';
    for await (const part of feed) {
      const lines = (rest + part).split('\n');
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) ids.add(JSON.parse(line).id);
      if (ids.size === 50) return ids;
    }
    return ids;
  })();
  const answers = await Promise.all(
    Array.from({ length: 50 }, (_, n) => call(session, 'PUT', `/${name}/doc${n}`, { n })),
  );
  assert.ok(answers.every(({ status }) => status === 201));
  assert.equal((await rows).size, 50);
  feed.close();
  assert.equal((await call(session, 'GET', `/${name}/doc7`)).body.n, 7);
  assert.equal((await call(session, 'DELETE', `/${name}`)).status, 200);
  session.close();
});
