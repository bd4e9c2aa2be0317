// Precompiled normalizers, compared with tables written here.
import { text } from '../../lib/index.js';
import { expectError, folderOf, removeFolders } from './folders.js';

afterAll(removeFolders);

interface Node {
  children: Map<number, Node>;
  value: number | null;
}

const nodeOf = (): Node => ({ children: new Map(), value: null });

/** A table of SentencePiece in base64: Darts' array of words, then the texts. */
function encodeTable(table: Readonly<Record<string, string>>): string {
  const root = nodeOf();
  const texts: Buffer[] = [];
  let place = 0;
  for (const [key, becomes] of Object.entries(table)) {
    let node = root;
    for (const byte of Buffer.from(key)) {
      const next = node.children.get(byte) ?? nodeOf();
      node.children.set(byte, next);
      node = next;
    }
    node.value = place;
    const localBytes = Buffer.from(`${becomes}\0`);
    texts.push(localBytes);
    place += localBytes.length;
  }
  const words = wordsOf(root);
  const head = Buffer.from(Uint32Array.from([4 * words.length, ...words]).buffer);
  return Buffer.concat([head, ...texts]).toString('base64');
}

function wordsOf(root: Node): number[] {
  const words: (number | undefined)[] = [0];
  const bases = new Set<number>();
  const place = (node: Node, at: number): void => {
    const labels = [...node.children.keys(), ...(node.value === null ? [] : [0])];
    let base = 1;
    const isFree = (label: number): boolean => words[base ^ label] === undefined;
    while (bases.has(base) || !labels.every(isFree)) base++;
    bases.add(base);
    const localValue = (words[at] as number) | ((at ^ base) << 10);
    words[at] = (node.value === null ? localValue : localValue | 0x100) >>> 0;
    if (node.value !== null) words[base] = (node.value | 0x8000_0000) >>> 0;
    for (const label of node.children.keys()) words[base ^ label] = label;
    for (const [label, child] of node.children) place(child, base ^ label);
  };
  place(root, 0);
  return Array.from(words, (word) => word ?? 0);
}

const TABLE = {
  '\t': ' ',
  '\r': ' ',
  '\u0007': '',
  Ａ: 'A',
  ﬁ: 'fi',
  '～': '~~',
  '\u200D': ' ',
  'e\u0301': 'é',
  ы: 'y',
  𝔾: 'G',
  k: 'K',
};

/** A text as a tokenizer of single characters with this normalizer spells it. */
function normalize(input: string, normalizer: object): string {
  const codes = Array.from({ length: 0x3100 }, (_, code) => String.fromCharCode(code));
  const vocab = Object.fromEntries([...codes, '～', '👩', '<unk>'].map((text, id) => [text, id]));
  const none = { pre_tokenizer: null, post_processor: null, decoder: null };
  const model = { type: 'BPE', vocab, merges: [], unk_token: '<unk>' };
  const tokenizer = text.Tokenizer.fromPretrained(
    folderOf({ added_tokens: [], normalizer, ...none, model }),
  );
  return [...tokenizer.encode(input)].map((id) => tokenizer.idToToken(id)).join('');
}

test.each([
  ['what it has no entry for stays', 'ab½ﷺ', 'ab½<unk>'],
  ['entries of several bytes, and of several characters', 'Ａﬁ𝔾ｂ', 'AfiG<unk>'],
  ['what goes away', 'a\u0007b', 'ab'],
  ['a cluster of two code points', 'cafe\u0301s', 'cafés'],
  ['a short cluster that begins with an entry becomes what that does', 'a\r\nk\u0301b', 'a Kb'],
  ['a long cluster, by its code points', 'k\u0301\u0301\u0301b', 'K\u0301\u0301\u0301b'],
  ['joined characters', '👩\u200D👩', '👩 👩'],
  ['a tilde that NFKC would keep', 'a～b', 'a~~b'],
  ['nothing', '', ''],
])('%s', (_, input, expected) => {
  const step = { type: 'Precompiled', precompiled_charsmap: encodeTable(TABLE) };
  expect(normalize(input, step)).toBe(expected);
  const sequence = { type: 'Sequence', normalizers: [step, { type: 'Lowercase' }] };
  expect(normalize(input, sequence)).toBe(expected.toLowerCase());
});

test.each([
  ['no table', null],
  ['an empty one', ''],
  ['one that is cut off', encodeTable(TABLE).slice(0, 80)],
])('%s is refused', (_, precompiled_charsmap) => {
  const step = { type: 'Precompiled', precompiled_charsmap };
  expectError(() => normalize('a', step), 'DS_DATA', /Precompiled normalizer .* damaged/);
});
