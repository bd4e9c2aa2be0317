// Reads configurations with one long text in each place, and prints the errors that are no DsError.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { checkConfig } from '../../lib/config/index.js';
import { MAX_BYTES } from '../../lib/config/parse.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-long-'));
const file = join(folder, 'ds_config.json');

/** Characters that a pattern of the readers may repeat. */
const FILLS = ['a', ' ', '1', '\\', '=', '0.0', '"', '/*'];

/** A document of less than MAX_BYTES with `text` in each place. */
const documents = (text: string): unknown[] => [
  text,
  `{ "train_batch_size": ${text} }`,
  `{ "train_batch_size": "${text}" }`,
  `{ ${text}: 1 }`,
  `{ train_batch_size: ${text}\n}`,
];

/** Objects in memory, whose texts may be longer. */
const objects = (text: string): unknown[] => [
  { train_batch_size: text },
  { [text]: 1 },
  { optimizer: { type: text, params: { lr: text } } },
];

const failures: string[] = [];
let count = 0;
function check(fill: string, source: unknown): void {
  count++;
  try {
    checkConfig(source as string, { worldSize: 1 });
  } catch (error) {
    failures.push(`${fill}: ${error}`);
  }
}

for (const fill of FILLS) {
  const text = fill.repeat((MAX_BYTES - 100) / fill.length);
  for (const document of documents(text)) {
    writeFileSync(file, document as string);
    check(fill, file);
  }
  for (const long of [text, fill.repeat(2 ** 24)])
    for (const one of objects(long)) check(fill, one);
  check(fill, fill.repeat(2 ** 24));
}
rmSync(folder, { recursive: true });
console.log(JSON.stringify({ failures, count }));
