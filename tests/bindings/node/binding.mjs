// The Node binding (npm: foundationdb) on the database of the cluster file in FLATBED_TEST_CLUSTER_FILE. Run by
// ../run.py, which sees to it that the binding's compiled part finds libfdb_c.so.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, test } from 'node:test'

import fdb from 'foundationdb'

// The newest that this release of the binding knows.
fdb.setAPIVersion(720)
const db = fdb.open(process.env.FLATBED_TEST_CLUSTER_FILE)
const space = db.at(`test-bindings-${randomUUID()}/`)
const texts = space.withValueEncoding(fdb.encoders.string).withKeyEncoding(fdb.encoders.string)

const empty = () => space.clearRangeStartsWith('')
before(empty)
after(async () => {
  await empty()
  db.close()
  fdb.stopNetworkSync()
})

test('values are set, read and cleared', async () => {
  await texts.set('a', 'one')
  await texts.set('empty', '')
  assert.equal(await texts.get('a'), 'one')
  assert.equal(await texts.get('empty'), '')
  assert.equal(await texts.get('none'), undefined)
  await texts.clear('a')
  assert.equal(await texts.get('a'), undefined)
})

test('a transaction reads its own writes, and one that throws leaves nothing', async () => {
  const seen = await texts.doTn(async tn => {
    tn.set('own', '1')
    return await tn.get('own')
  })
  assert.equal(seen, '1')
  await assert.rejects(
    texts.doTn(async tn => {
      tn.set('own', '2')
      throw new Error('no')
    }),
    /no/,
  )
  assert.equal(await texts.get('own'), '1')
})

test('ranges come in pages, both ways, with limits', async () => {
  const numbers = space.at('range/').withKeyEncoding(fdb.encoders.int32BE).withValueEncoding(fdb.encoders.string)
  await numbers.doTn(async tn => {
    for (let number = 0; number < 1000; number++) tn.set(number, 'v'.repeat(200))
  })
  const all = await numbers.getRangeAll(0, 1000)
  assert.deepEqual(
    all.map(([key]) => key),
    Array.from({ length: 1000 }, (_, number) => number),
  )
  const last = await numbers.getRangeAll(0, 1000, { reverse: true, limit: 3 })
  assert.deepEqual(
    last.map(([key]) => key),
    [999, 998, 997],
  )
  let batches = 0
  let count = 0
  await numbers.doTn(async tn => {
    for await (const batch of tn.getRangeBatch(0, 1000)) {
      batches += 1
      count += batch.length
    }
  })
  assert.equal(count, 1000)
  assert.ok(batches > 1)
  assert.equal(await numbers.getKey(fdb.keySelector.firstGreaterThan(7)), 8)
  const size = await numbers.getEstimatedRangeSizeBytes(0, 1000)
  assert.ok(size >= 0)
})

test('transactions that conflict are tried again', async () => {
  const counter = space.withValueEncoding(fdb.encoders.int32BE)
  let tries = 0
  const increment = () =>
    counter.doTn(async tn => {
      tries += 1
      const count = (await tn.get('counter')) ?? 0
      // So that others read before this one writes.
      await new Promise(resolve => setTimeout(resolve, 1))
      tn.set('counter', count + 1)
    })
  await Promise.all(Array.from({ length: 20 }, increment))
  assert.equal(await counter.get('counter'), 20)
  assert.ok(tries > 20)
})

test('an error says its code', async () => {
  const tn = db.rawCreateTransaction()
  tn.set('k'.repeat(10_001), '')
  await assert.rejects(tn.rawCommit(), error => error instanceof fdb.FDBError && error.code === 2102)
  await assert.rejects(tn.rawOnError(2102), error => error.code === 2102)
})

test('atomic operations', async () => {
  const one = Buffer.from([1, 0, 0, 0])
  await Promise.all(Array.from({ length: 50 }, () => space.add('sum', one)))
  assert.equal((await space.get('sum')).readUInt32LE(), 50)
  await space.max('sum', Buffer.from([60, 0, 0, 0]))
  assert.equal((await space.get('sum')).readUInt32LE(), 60)
})

test('a watch fires once its key changes', async () => {
  const watch = await texts.getAndWatch('watched')
  assert.equal(watch.value, undefined)
  await texts.set('watched', 'now')
  assert.equal(await watch.promise, true)
  const cancelled = await texts.setAndWatch('watched', 'again')
  cancelled.cancel()
  assert.equal(await cancelled.promise, false)
})

test('versionstamps are the commit order', async () => {
  const log = space.at('log/').withKeyEncoding(fdb.tuple).withValueEncoding(fdb.encoders.string)
  const stamps = []
  for (const text of ['first', 'second', 'third']) {
    const stamp = await log.doTn(async tn => {
      tn.setVersionstampedKey([fdb.tuple.unboundVersionstamp()], text)
      return tn.getVersionstamp()
    })
    stamps.push(await stamp.promise)
  }
  assert.ok(stamps.every(stamp => stamp.length === 10))
  const found = await log.getRangeAllStartsWith([])
  assert.deepEqual(
    found.map(([, text]) => text),
    ['first', 'second', 'third'],
  )
  assert.deepEqual(
    found.map(([[stamp]]) => stamp.value.subarray(0, 10)),
    stamps,
  )
})

test('tuples come back, in order', async () => {
  const tuples = space.at('tuple/').withKeyEncoding(fdb.tuple).withValueEncoding(fdb.tuple)
  const keys = [[null], [Buffer.from('b')], ['a'], ['a', 1], [-300], [-1], [0], [1.5], [false], [true], [['in', [null]]]]
  await tuples.doTn(async tn => {
    for (const key of keys) tn.set(key, key)
  })
  const found = await tuples.getRangeAllStartsWith([])
  const packed = list => list.map(key => fdb.tuple.pack(key).toString('hex'))
  assert.deepEqual(packed(found.map(([key]) => key)), packed(keys).sort())
  assert.deepEqual(packed(found.map(([, value]) => value)), packed(keys).sort())
})

test('directories are created, opened, moved and removed', async () => {
  const layer = new fdb.DirectoryLayer({ nodeSubspace: space.at('nodes/').getSubspace(), contentSubspace: space.at('content/').getSubspace() })
  const made = await layer.create(db, ['a', 'b'])
  const inside = db.at(made).withValueEncoding(fdb.encoders.string)
  await inside.set('key', 'kept')
  const opened = await layer.open(db, ['a', 'b'])
  assert.deepEqual(opened.content.prefix, made.content.prefix)
  await assert.rejects(layer.create(db, ['a', 'b']), fdb.DirectoryError)
  await layer.createOrOpen(db, 'other')
  assert.deepEqual((await layer.listAll(db)).map(String).sort(), ['a', 'other'])
  const moved = await layer.move(db, ['a', 'b'], ['c'])
  assert.equal(await db.at(moved).withValueEncoding(fdb.encoders.string).get('key'), 'kept')
  assert.ok(await layer.exists(db, ['c']))
  await layer.remove(db, ['c'])
  assert.ok(!(await layer.exists(db, ['c'])))
  assert.equal(await inside.get('key'), undefined)
})

test('many transactions at once', async () => {
  const many = space.at('many/').withKeyEncoding(fdb.encoders.int32BE).withValueEncoding(fdb.encoders.string)
  await Promise.all(Array.from({ length: 500 }, (_, number) => many.set(number, String(number))))
  const all = await many.getRangeAll(0, 500)
  assert.deepEqual(
    all.map(([, value]) => value),
    Array.from({ length: 500 }, (_, number) => String(number)),
  )
})
