// The Hjson reader: every form DeepSpeed's parser takes, equality with JSON.parse on random JSON,
// and the place of each error.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type HjsonNode, parseHjson } from '../../lib/config/hjson.js';
import { checkConfig } from '../../lib/config/index.js';
import { random } from '../support/random.js';

function plain(node: HjsonNode | null): unknown {
  if (node === null) return undefined;
  if (node.kind === 'scalar') return node.value;
  if (node.kind === 'array') return node.items.map(plain);
  return Object.fromEntries(node.members.map(({ key, value }) => [key, plain(value)]));
}

test.each<[name: string, text: string, value: unknown]>([
  [
    'JSON',
    '{ "a": [1, -2.5e3, true, null, "x\\n\\u00e9\\"/"] }',
    { a: [1, -2500, true, null, 'x\né"/'] },
  ],
  ['# comments', '# top\n{ "a": 1 # end\n}', { a: 1 }],
  ['// comments', '{ // first\n"a": 1 // end\n}', { a: 1 }],
  ['/* */ comments', '{ /* "b": 2,\n */ "a": /* one */ 1 /**/ }', { a: 1 }],
  ['a trailing comma', '{ "a": [1, 2,], }', { a: [1, 2] }],
  [
    'omitted commas at line ends',
    '{\n"a": 1\n"b": [\n1\n2\n]\n"c": "x"\n}',
    { a: 1, b: [1, 2], c: 'x' },
  ],
  ['an omitted comma within a line', '{ "a": "x" "b": {} "c": [] }', { a: 'x', b: {}, c: [] }],
  ['keys without quotes', '{ a: 1, b_c-d: 2 }', { a: 1, 'b_c-d': 2 }],
  [
    'strings without quotes',
    '{\n device: cpu  \n path: /a/b # c, d\n}',
    { device: 'cpu', path: '/a/b # c, d' },
  ],
  [
    'words that begin like others',
    '{\n a: nullable\n b: 12 GiB\n c: -\n d: 01\n}',
    { a: 'nullable', b: '12 GiB', c: '-', d: '01' },
  ],
  [
    'numbers before a comment',
    '{ a: 5e8// x\n b: 1.5 # y\n c: true /* z */ }',
    { a: 5e8, b: 1.5, c: true },
  ],
  ['single quotes', "{ 'a': 'it\\'s \"x\"' }", { a: 'it\'s "x"' }],
  [
    'three quotes',
    "{\n  a:\n  '''\n    one\n  two\n  '''\n  b: '''x'''\n}",
    { a: '  one\ntwo', b: 'x' },
  ],
  ['no braces', 'a: 1\nb: { c: 2 }\n', { a: 1, b: { c: 2 } }],
  ['Windows line ends', '{\r\n a: cpu\r\n b: 2\r\n}\r\n', { a: 'cpu', b: 2 }],
  [
    'a key of the prototype',
    '{ "__proto__": 1, "constructor": 2 }',
    JSON.parse('{"__proto__":1,"constructor":2}'),
  ],
  ['an empty text', ' \n# nothing\n', undefined],
])('%s', (_, text, value) => {
  expect(plain(parseHjson(text))).toEqual(value);
});

test.each<[text: string, line: number, message: RegExp]>([
  ['{ "a": 1, }}', 11, /nothing after the end, got "}"/],
  ['{ "a" 1 }', 6, /":" after the key "a", got "1"/],
  ['{ "a": }', 7, /a value, got "}"/],
  ['{ "a": 1, , }', 10, /a key or "}", got ","/],
  ['{ "a": [1, 2', 12, /a value, got the end of the file/],
  ['{ "a": 1', 8, /a key or "}", got the end of the file/],
  ['{ "a": "x\n" }', 7, /a closing " on the same line, got the end of the line/],
  ['{ "a": "\\q" }', 9, /an escape such as \\n, got "q"/],
  ['{ "a": "x\\', 10, /an escape such as \\n, got the end of the file/],
  ['{ "a": "\\u12g4" }', 9, /four hexadecimal digits/],
  ['{ /* x', 2, /a closing \*\/, got the end of the file/],
  ["{ a: '''x", 5, /a closing '''/],
  ['{ : 1 }', 2, /a key or "}", got ":"/],
  [`${'['.repeat(101)}`, 100, /at most 100 levels/],
])('%j does not parse', (text, offset, message) => {
  const parse = () => parseHjson(text);
  expect(parse).toThrow(message);
  expect(parse).toThrow(expect.objectContaining({ offset }));
});

test.each<[text: string, offset: number, got: string, cure: string]>([
  ['{\n "a": { "b": None },\n "c": 1\n}\n', 15, '"None },"', 'write null'],
  ['{ "a": True }', 7, '"True }"', 'write true'],
  ['{ a: [\n1, False]\n}', 10, '"False]"', 'write false'],
  ['{ a: { b: cpu }\n url: http://x/{y}\n}', 10, '"cpu }"', 'quote it'],
  ['{ a: [{ b: None },\n{ b: 1 }]\n}', 11, '"None },"', 'write null'],
  ['{ a: { b: None of it }\n}', 10, '"None of it }"', 'quote it'],
])('%j: the string that took a bracket is named', (text, offset, got, cure) => {
  const hint = `Without quotes a string runs to the end of its line: ${cure}.`;
  expect(() => parseHjson(text)).toThrow(expect.objectContaining({ offset, got, hint }));
});

test('duplicates stay, with the place of each', () => {
  const node = parseHjson('{ a: 1, b: 2, a: 3 }');
  const members = node?.kind === 'object' ? node.members : [];
  expect(members.map(({ key, offset }) => [key, offset])).toEqual([
    ['a', 2],
    ['b', 8],
    ['a', 14],
  ]);
});

test('any JSON reads as JSON.parse reads it', () => {
  for (let round = 0; round < 500; ++round) {
    const text = JSON.stringify(randomValue(4), null, Math.floor(random() * 3));
    expect(plain(parseHjson(`{"x":${text}}`))).toEqual({ x: JSON.parse(text) });
  }
});

function randomValue(depth: number): unknown {
  const kind = Math.floor(random() * (depth > 0 ? 7 : 5));
  const size = Math.floor(random() * 4);
  if (kind === 0) return (random() - 0.5) * 10 ** Math.floor(random() * 40 - 20);
  if (kind === 1) return Math.floor(random() * 1e6) - 5e5;
  if (kind === 2) return [true, false, null][size % 3];
  if (kind < 5) return randomText();
  const items = Array.from({ length: size }, () => randomValue(depth - 1));
  if (kind === 5) return items;
  return Object.fromEntries(items.map((item, i) => [`${randomText()}${i}`, item]));
}

function randomText(): string {
  const letters = [
    'a',
    'B',
    ' ',
    '"',
    "'",
    '\\',
    '/',
    '\n',
    '\t',
    '#',
    '//',
    '{',
    '}',
    ',',
    ':',
    'é',
    '\u2028',
    '🦉',
  ];
  const pick = () => letters[Math.floor(random() * letters.length)];
  return Array.from({ length: Math.floor(random() * 6) }, pick).join('');
}

describe('mistakes', () => {
  const noticesOf = (text: string) => {
    const path = join(folder, 'ds_config.json');
    writeFileSync(path, text);
    return checkConfig(path, { worldSize: 1 });
  };
  const full = readFileSync(join(__dirname, '../golden/ds_config.full.jsonc'), 'utf8');
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'ds-hjson-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  test('a comment that contains further keys gives one warning that lists them', () => {
    const lines = full.split('\n').filter((line) => !line.startsWith('//'));
    const inner = lines.slice(1, lines.lastIndexOf('}')).join(' ');
    const { config, notices } = noticesOf(`{ "seed": 3,\n${inner}\n}`);
    expect(config?.train_batch_size).toBe(16);
    expect(config?.fp16.enabled).toBe(false);
    expect(notices).toEqual([
      expect.objectContaining({
        kind: 'advice',
        path: '',
        text: expect.stringMatching(
          /^a comment holds the rest of a line, including keys\. The keys that were read: seed, train_batch_size\. Start/,
        ),
      }),
    ]);
  });

  test('the error at the end of the file points to the comment that contains the rest', () => {
    const line = full
      .split('\n')
      .filter((text) => !text.startsWith('//'))
      .join(' ');
    const { errors } = noticesOf(line);
    expect(errors.map(({ message }) => message)).toEqual([
      expect.stringMatching(/got the end of the file\. The comment at 1:46 holds the rest of its/),
    ]);
  });

  test('comments about a key give no warning', () => {
    const text = '{ "train_batch_size": 1, // not "seed": 3\n // "seed": 4,\n "seed": 5 }';
    expect(noticesOf(text).notices).toEqual([]);
  });

  test('missing commas of JSON are one notice', () => {
    const text =
      '{\n"train_batch_size": 8\n"fp16": { "enabled": false\n"hysteresis": 2 }\n"seed": 1,}';
    const { config, notices } = noticesOf(text);
    expect(config?.seed).toBe(1);
    expect(notices.map(({ location: place, text: message }) => [place?.line, message])).toEqual([
      [
        2,
        'commas are missing after train_batch_size (2:1), enabled (3:11), fp16 (3:1). The file is accepted; other readers of JSON need them.',
      ],
    ]);
  });

  test('the error of a missing comma after a number', () => {
    const { errors } = noticesOf('{ "seed": 3 "gradient_clipping": 1.0 }');
    expect(errors[0]?.message).toMatch(/Write a comma after 3\./);
  });

  test('Hjson without quotes needs no commas', () => {
    expect(noticesOf('{\ntrain_batch_size: 8\nseed: 3\n}').notices).toEqual([]);
  });
});
