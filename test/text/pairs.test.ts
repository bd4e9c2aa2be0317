// Pairs of texts as tokens of one row, as transformers makes them, and folders with vocab.txt
// alone.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from '../../lib/index.js';
import { TOKENIZERS } from '../models/head-rows.js';

interface Encoded {
  ids: number[];
  types: number[];
}

interface Golden {
  texts: ({ text: string } & Encoded)[];
  pairs: ({ pair: [string, string] } & Encoded)[];
  cut: ({ pair: [string, string] } & Encoded)[];
  maxLength: number;
}

describe.each(['wordpiece', 'roberta', 'xlm-roberta'])('%s', (kind) => {
  const folder = join(TOKENIZERS, kind);
  const golden = JSON.parse(readFileSync(join(folder, 'golden.json'), 'utf8')) as Golden;
  const tokenizer = text.Tokenizer.fromPretrained(folder);

  test('single texts', () => {
    for (const { text: one, ids } of golden.texts) {
      expect([one, ...tokenizer.encode(one)]).toEqual([one, ...ids]);
    }
  });

  test.each([
    ['whole', golden.pairs, undefined],
    ['cut', golden.cut, golden.maxLength],
  ] as const)('%s pairs, with the sentence of each token', (_, pairs, maxLength) => {
    for (const { pair, ids, types } of pairs) {
      const found = tokenizer.encodePair(...pair, { maxLength });
      expect([...found.ids]).toEqual(ids);
      expect([...found.types]).toEqual(types);
    }
  });
});

test('a folder with vocab.txt has the tokens of BERT', () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'wordpiece'));
  expect(tokenizer.padId).toBe(0);
  expect(tokenizer.decode(tokenizer.encode('unhappy acting'), { skipSpecialTokens: true })).toBe(
    'unhappy acting',
  );
});

test('the number of tokens of a pair is checked', () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'wordpiece'));
  expect(() => tokenizer.encodePair('the', 'cat', { maxLength: 2 })).toThrow(
    /Tokenizer\.encodePair maxLength: expected.*3.*got 2/,
  );
});
