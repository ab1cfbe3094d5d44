// Waiting in tests. No test depends on how fast the machine is: a test waits for an event, with one limit that only a hang reaches.
import assert from 'node:assert/strict';

/** The limit of every wait. */
export const PATIENCE_MS = 180_000;

/** Waits. Only for the rhythm of a test, or for what must not happen: a test that needs the pause in order to succeed is wrong. */
export const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

/** Waits until `look` gives something true, and returns it. `state` says for a failure what is there instead. */
export async function until(look, state = () => look) {
  for (const end = Date.now() + PATIENCE_MS; ;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) assert.fail(`not within ${PATIENCE_MS / 1_000} s: ${await state()}`);
    await pause(20);
  }
}
