// Entry of a worker thread that reads and encodes parts of files.
import { workerData } from 'node:worker_threads';

import { answerQuestions } from '../runtime/thread-pool.js';
import type { EncodeSetup } from './encode-pool.js';
import { type EncodedPart, encodePart } from './encoded-part.js';
import type { FilePart } from './row-files.js';
import { Tokenizer } from './tokenizer.js';

const { folder, ownTemplate, settings } = workerData as EncodeSetup;
let tokenizer: Tokenizer | null = null;

function encode(part: FilePart): Promise<EncodedPart> | EncodedPart {
  tokenizer ??= openTokenizer();
  return encodePart(part, tokenizer, settings);
}

const openTokenizer = (): Tokenizer =>
  Tokenizer.fromPretrained(folder, ownTemplate === null ? {} : { chatTemplate: ownTemplate });

const listBuffers = ({ ids, labels, lengths }: EncodedPart): ArrayBuffer[] =>
  [ids, labels, lengths].map(({ buffer }) => buffer as ArrayBuffer);

answerQuestions(encode, listBuffers, ({ path }) => ({
  code: 'DS_DATA',
  op: path,
  expected: 'rows that can be encoded',
}));
