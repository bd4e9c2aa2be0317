// Files of every family are those that llama.cpp has computed as this library does.
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as library from '../../lib/index.js';
import type { GgufType } from '../../lib/models/gguf/save.js';
import type { CausalLM } from '../../lib/models/index.js';

const { FAMILIES, modelOf, typesOf } = require('../../scripts/try-gguf/models.cjs') as {
  FAMILIES: Readonly<Record<string, object>>;
  modelOf(from: typeof library, name: string): CausalLM;
  typesOf(name: string): GgufType[];
};
const checked = JSON.parse(readFileSync(join('test', 'golden', 'gguf.json'), 'utf8')) as Readonly<
  Record<string, string>
>;
const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
afterAll(() => rmSync(folder, { recursive: true }));
const tokenizer = join('test', 'golden', 'transformers', 'tokenizers', 'llama3');

test('all families and types were compared with llama.cpp', () => {
  const names = Object.keys(FAMILIES).flatMap((name) =>
    typesOf(name).map((type) => `${name} ${type}`),
  );
  expect(Object.keys(checked)).toEqual(names);
});

test.each(Object.keys(FAMILIES))('%s has the bytes that llama.cpp read', async (name) => {
  const model = modelOf(library, name);
  // Packing is the same in all families.
  const types = typesOf(name).filter((type) => name === 'llama' || /^(F32|MXFP4)$/.test(type));
  for (const type of types) {
    const path = join(folder, 'case.gguf');
    await library.nn.saveGguf(model, path, { type, tokenizer });
    const sum = createHash('sha256').update(readFileSync(path)).digest('hex');
    expect(sum).toBe(checked[`${name} ${type}`]);
  }
});
