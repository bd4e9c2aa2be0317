// Defines a tokenizer and schemas for benchmarks of structured output.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Tokenizer } from '../lib/text/index.js';

/** The bytes of cl100k_base's tokens. */
export function vocabulary(): Uint8Array[] {
  const find = createRequire(__filename);
  const { default: ranks } = find('gpt-tokenizer/cjs/bpeRanks/cl100k_base') as {
    default: readonly (string | readonly number[])[];
  };
  return ranks.map((rank) =>
    typeof rank === 'string' ? new Uint8Array(Buffer.from(rank)) : Uint8Array.from(rank),
  );
}

/** The characters of bytes in byte-level vocabularies. Source: GPT-2. */
function byteCharacters(): string[] {
  const isShown = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(isShown(byte) ? byte : next++),
  );
}

/** A tokenizer of cl100k_base's tokens without merges, which decodes as the original. */
export function benchTokenizer(): Tokenizer {
  const characters = byteCharacters();
  const spellToken = (token: Uint8Array): string =>
    Array.from(token, (byte) => characters[byte]).join('');
  const tokens = vocabulary();
  const vocab = Object.fromEntries(tokens.map((token, id) => [spellToken(token), id]));
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false };
  const end = { id: tokens.length, content: '<|end|>', special: true, single_word: false };
  const json = {
    version: '1.0',
    added_tokens: [{ ...end, lstrip: false, rstrip: false, normalized: false }],
    normalizer: null,
    pre_tokenizer: level,
    post_processor: null,
    decoder: level,
    model: { type: 'BPE', vocab, merges: [] },
  };
  const dir = mkdtempSync(join(tmpdir(), 'ds-bench-tokenizer-'));
  try {
    writeFileSync(join(dir, 'tokenizer.json'), JSON.stringify(json));
    writeFileSync(join(dir, 'tokenizer_config.json'), '{ "eos_token": "<|end|>" }');
    return Tokenizer.fromPretrained(dir);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

/**
 * One of the schemas of a benchmark. Its texts are long for random tokens too: strings are short,
 * and all of its 80 fields are required. `kind` changes the names.
 */
export function longSchema(kind: number): Record<string, unknown> {
  const text = { type: 'string', maxLength: 12 };
  const field = {
    type: 'object',
    properties: {
      [`label_${kind}`]: text,
      state: { enum: ['open', 'tools/call', 'closed', `kind ${kind}`] },
      score: { type: 'integer', minimum: 0, maximum: 9999 },
      tags: { type: 'array', items: text, minItems: 1, maxItems: 3 },
      done: { type: 'boolean' },
    },
    required: [`label_${kind}`, 'state', 'score', 'tags', 'done'],
    additionalProperties: false,
  };
  const names = Array.from({ length: 80 }, (_, i) => `field_${kind}_${i}`);
  return {
    type: 'object',
    properties: Object.fromEntries(names.map((name) => [name, { $ref: '#/$defs/field' }])),
    required: names,
    additionalProperties: false,
    $defs: { field },
  };
}
