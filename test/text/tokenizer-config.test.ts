// Settings of tokenizer_config.json and special_tokens_map.json: sides, bounds, roles and added
// tokens.
import { join } from 'node:path';

import { type Tensor, text } from '../../lib/index.js';
import { type Edit, expectError, folderOf, folderWith, removeFolders } from './folders.js';

const GOLDEN = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');

afterAll(removeFolders);

/** The rows of a tensor [B, T]. */
function rowsOf(tensor: Tensor): number[][] {
  const [rows, length] = tensor.shape as [number, number];
  const flat = Array.from(tensor.toArray(), Number);
  return Array.from({ length: rows }, (_, r) => flat.slice(r * length, (r + 1) * length));
}

test('padding_side and truncation_side of the files are the defaults', () => {
  const makeTokenizer = (config: object, edit?: Edit): text.Tokenizer => {
    const settings = { pad_token: '<|eot_id|>', ...config };
    return text.Tokenizer.fromPretrained(
      folderWith(join(GOLDEN, 'llama3'), { config: settings, edit }).path,
    );
  };
  const inside: Edit = (t) =>
    Object.assign(t, {
      padding: { strategy: 'BatchLongest', direction: 'Left', pad_token: '<|end_of_text|>' },
      truncation: { max_length: 2, direction: 'Left', strategy: 'LongestFirst', stride: 0 },
    });
  const cases: [text.Tokenizer, string, string][] = [
    [makeTokenizer({}), 'right', 'right'],
    [makeTokenizer({ padding_side: 'left' }), 'left', 'right'],
    [makeTokenizer({ truncation_side: 'left' }), 'right', 'left'],
    [makeTokenizer({}, inside), 'left', 'left'],
    [makeTokenizer({ padding_side: 'right', truncation_side: 'right' }, inside), 'right', 'right'],
  ];
  for (const [of, padding, truncation] of cases) {
    expect([of.paddingSide, of.truncationSide]).toEqual([padding, truncation]);
    const all = [...of.encode('one two three')];
    const cut = truncation === 'left' ? [all[0], ...all.slice(-2)] : all.slice(0, 3);
    expect([...of.encode('one two three', { maxLength: 3 })]).toEqual(cut);
    const other = truncation === 'left' ? 'right' : 'left';
    expect([...of.encode('one two three', { maxLength: 3, truncationSide: other })]).not.toEqual(
      cut,
    );
    const batch = of.encodeBatch(['one', 'one two']);
    const [mask] = rowsOf(batch.mask);
    expect(mask).toEqual(padding === 'left' ? [0, 1, 1] : [1, 1, 0]);
    for (const tensor of Object.values(batch)) tensor.dispose();
  }
  const bare = makeTokenizer({ pad_token: undefined }, inside);
  expect(bare.padId).toBe(bare.tokenToId('<|end_of_text|>'));
  for (const key of ['padding_side', 'truncation_side']) {
    for (const wrong of ['up', 1, {}]) {
      expectError(
        () => makeTokenizer({ [key]: wrong }),
        'DS_DATA',
        new RegExp(`${key}: expected "left"`),
      );
    }
  }
});

test('add_bos_token and add_eos_token set the tokens around a text', () => {
  const config = { bos_token: '<s>', eos_token: '</s>', add_bos_token: false, add_eos_token: true };
  const folder = folderWith(join(GOLDEN, 'llama2'), { config });
  const of = text.Tokenizer.fromPretrained(folder.path);
  const bare = [...of.encode('a', { addSpecialTokens: false })];
  expect([...of.encode('a')]).toEqual([...bare, of.eosId]);
});

describe('tokens that files beside tokenizer.json name', () => {
  const END = '<|im_end|>';
  const flags = { special: true, normalized: false, rstrip: false, single_word: false };
  const bytes = { type: 'ByteLevel', add_prefix_space: false };
  const of = (config: object, added: object[] = [], map: object = {}): text.Tokenizer => {
    const letters = Object.fromEntries(Array.from(`${END}aĠ`, (letter, id) => [letter, id]));
    const model = { type: 'BPE', vocab: { ...letters, [END]: 30 }, merges: [] };
    const json = { model, added_tokens: added, pre_tokenizer: bytes, decoder: bytes };
    const empty = { normalizer: null, post_processor: null };
    const folder = folderWith(folderOf({ ...json, ...empty }), { config });
    folder.write('special_tokens_map.json', JSON.stringify(map));
    return text.Tokenizer.fromPretrained(folder.path);
  };
  const input = `a ${END}`;

  test.each<[string, object, object[]?, object?]>([
    ['by a role', { eos_token: END }],
    ['by a role elsewhere', { eos_token: null }, [], { eos_token: { content: END } }],
    ['further ones', { additional_special_tokens: [END] }],
    ['further ones with names', { extra_special_tokens: { end: END } }],
    ['by id', { added_tokens_decoder: { 30: { ...flags, content: END } } }],
    ['plain otherwise', { eos_token: END }, [{ id: 30, content: END, special: false }]],
  ])('%s: one token, and special', (_, config, added = [], map = {}) => {
    const tokenizer = of(config, added, map);
    expect([...tokenizer.encode(input)].at(-1)).toBe(30);
    expect(tokenizer.decode(tokenizer.encode(input), { skipSpecialTokens: true })).toBe('a ');
  });

  test('tokens that absorb the space before them, and new tokens', () => {
    const ids = { 30: { ...flags, content: END, lstrip: true }, 31: { ...flags, content: '<b>' } };
    const tokenizer = of({ added_tokens_decoder: ids }, [{ id: 30, content: END, special: true }]);
    expect([...tokenizer.encode(`${input}<b>`)].slice(1)).toEqual([30, 31]);
    expect(tokenizer.vocabSize).toBe(32);
  });

  test('tokens outside the vocabulary stay text, and remove_space has no effect', () => {
    const tokenizer = of({ pad_token: '<aa>', remove_space: true });
    expect(tokenizer.padId).toBeNull();
    expect(tokenizer.decode(tokenizer.encode('  <aa>'))).toBe('  <aa>');
  });

  test('damage is named', () => {
    const readBroken = () => of({ added_tokens_decoder: { 30: { id: 3 } } });
    expectError(readBroken, 'DS_DATA', /tokenizer_config\.json added_tokens_decoder: .*30: /);
    const huge = { ...flags, content: 'new' };
    expectError(
      () => of({ added_tokens_decoder: { 4000000000: huge } }),
      'DS_DATA',
      /expected ids/,
    );
  });

  test('a token of single words stays text inside a word', () => {
    const single = { ...flags, content: 'aa', single_word: true };
    const tokenizer = of({ added_tokens_decoder: { 30: single } });
    expect([...tokenizer.encode('aa')]).toContain(30);
    expect([...tokenizer.encode('aaa')]).not.toContain(30);
  });
});
