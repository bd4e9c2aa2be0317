// The entry of a thread that reads and encodes parts of files.
import { parentPort, workerData } from 'node:worker_threads';

import { DsError, type DsErrorFields } from '../errors.js';
import type { EncodeReply, EncodeSetup } from './encode-pool.js';
import { encodePart } from './encoded-part.js';
import type { FilePart } from './row-files.js';
import { Tokenizer } from './tokenizer.js';

const { folder, settings } = workerData as EncodeSetup;
let tokenizer: Tokenizer | null = null;

async function answer(part: FilePart): Promise<void> {
  try {
    tokenizer ??= Tokenizer.fromPretrained(folder);
    const encoded = await encodePart(part, tokenizer, settings);
    const memory = [encoded.ids, encoded.labels, encoded.lengths].map(({ buffer }) => buffer);
    parentPort?.postMessage({ encoded } satisfies EncodeReply, memory as ArrayBuffer[]);
  } catch (thrown) {
    parentPort?.postMessage({ failure: fieldsOf(thrown, part) } satisfies EncodeReply);
  }
}

function fieldsOf(thrown: unknown, { path }: FilePart): DsErrorFields {
  if (thrown instanceof DsError) {
    const { code, op, expected, got, hint } = thrown;
    return { code, op, expected, got, hint };
  }
  const got = (thrown as Error)?.stack ?? String(thrown);
  return { code: 'DS_DATA', op: path, expected: 'rows that can be encoded', got };
}

parentPort?.on('message', answer);
