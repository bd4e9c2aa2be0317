// Tokenizers and chat templates, compared with recorded results of the Rust crate and transformers.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { type Tensor, text } from '../../lib/index.js';
import { type Edit, expectError, folderWith, removeFolders } from './folders.js';

const GOLDEN = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');
const read = <T>(...path: string[]): T =>
  JSON.parse(readFileSync(join(GOLDEN, ...path), 'utf8')) as T;

afterAll(removeFolders);

interface Golden {
  prefix: number[];
  ids: number[][];
  decoded: (string | null)[];
  decodedSkipping: (string | null)[];
  chats: Chat[];
}
interface Chat {
  messages: text.ChatMessage[];
  tools?: object[];
  addGenerationPrompt: boolean;
  text?: string;
  ids?: number[];
  assistant?: number[];
  error?: string;
}

const STRINGS = read<string[]>('strings.json');
const KINDS = ['llama3', 'qwen2', 'llama2', 'mistral', 'gpt2'];
const tokenizers = new Map(
  KINDS.map((kind) => [kind, text.Tokenizer.fromPretrained(join(GOLDEN, kind))]),
);
const tokenizer = (kind: string): text.Tokenizer => tokenizers.get(kind) as text.Tokenizer;
const golden = (kind: string): Golden => read<Golden>(kind, 'golden.json');

describe.each(KINDS)('%s', (kind) => {
  test('2,000 strings have the ids of the Rust crate', () => {
    const { prefix, ids } = golden(kind);
    expect(STRINGS.length).toBe(2000);
    const wrong = STRINGS.filter((string, i) => {
      const bare = tokenizer(kind).encode(string, { addSpecialTokens: false }).join();
      const fullText = tokenizer(kind).encode(string).join();
      const expected = ids[i] as number[];
      return bare !== expected.join() || fullText !== [...prefix, ...expected].join();
    });
    expect(wrong).toEqual([]);
  });

  test('their ids decode to the same text, with and without special tokens', () => {
    const { prefix, ids, decoded, decodedSkipping } = golden(kind);
    const wrong = STRINGS.filter((string, i) => {
      const fullValues = [...prefix, ...(ids[i] as number[])];
      const skipping = tokenizer(kind).decode(fullValues, { skipSpecialTokens: true });
      const isSame = tokenizer(kind).decode(fullValues) === (decoded[i] ?? string);
      return !isSame || skipping !== (decodedSkipping[i] ?? string);
    });
    expect(wrong).toEqual([]);
  });

  test('a stream emits the same text token by token, without partial characters', () => {
    const { ids, decodedSkipping } = golden(kind);
    const wrong = STRINGS.filter((string, i) => {
      const stream = tokenizer(kind).decodeStream();
      const pieces = (ids[i] as number[]).map((id) => stream.push(id));
      const decoded = pieces.join('');
      const fullText = decodedSkipping[i] ?? string;
      const isCut = !fullText.includes('\uFFFD') && decoded.includes('\uFFFD');
      const isHalf = pieces.some((piece) => /[\uD800-\uDFFF]/u.test(piece));
      return isCut || isHalf || decoded + stream.end() !== fullText;
    });
    expect(wrong).toEqual([]);
  });

  test('a stream after the start of a text emits the rest, for any split', () => {
    const { ids } = golden(kind);
    const localTokenizer = tokenizer(kind);
    const cut = [2, 3, 5].flatMap((part) =>
      (ids as number[][]).map((all) => [all, Math.ceil(all.length / part)] as const),
    );
    const wrong = cut.filter(([all, at]) => {
      const [before, whole] = [all.slice(0, at), all].map((some) =>
        localTokenizer.decode(some, { skipSpecialTokens: true }),
      ) as [string, string];
      if (before.endsWith('\uFFFD')) return false; // A character is cut.
      const stream = localTokenizer.decodeStream({ after: all.slice(0, at) });
      const decoded = all.slice(at).map((id) => stream.push(id));
      return decoded.join('') + stream.end() !== whole.slice(before.length);
    });
    expect(wrong).toEqual([]);
  });

  test('its chat templates give the text, ids and masks of transformers', () => {
    const { chats } = golden(kind);
    expect(chats.length).toBe(kind === 'gpt2' ? 0 : 28);
    for (const chat of chats) {
      const { messages, tools, addGenerationPrompt } = chat;
      const assistantMask = chat.assistant !== undefined;
      const render = () =>
        tokenizer(kind).applyChatTemplate(messages, { tools, addGenerationPrompt, assistantMask });
      if (chat.error !== undefined) {
        if (messages.length === 0) expectError(render, 'DS_ARGUMENT', /list of messages/);
        else expectError(render, 'DS_DATA', new RegExp(chat.error));
        continue;
      }
      const { text: written, ids, assistant } = render();
      expect(written).toBe(chat.text);
      expect([...ids]).toEqual(chat.ids);
      expect(assistant === null ? undefined : [...assistant]).toEqual(chat.assistant);
    }
  });
});

test.each(KINDS)("the joined bytes of %s's tokens equal those of the text", (kind) => {
  const { decoded, ids, prefix } = golden(kind);
  const start = tokenizer(kind).decode(prefix).length;
  const wrong = STRINGS.filter((string, i) => {
    const bytes = (ids[i] as number[]).map((id) => tokenizer(kind).tokenBytes(id));
    const text = Buffer.concat(bytes).toString();
    const expected = decoded[i]?.slice(start) ?? string;
    // Some write a space before every text.
    return text !== expected && text !== ` ${expected}`;
  });
  expect(wrong).toEqual([]);
  expect(() => tokenizer(kind).tokenBytes(1e9)).toThrow(/token ids of/);
});

test('decoding a token at a time keeps a byte order mark and a true U+FFFD', () => {
  for (const kind of KINDS) {
    const stream = tokenizer(kind).decodeStream();
    const ids = tokenizer(kind).encode('x\uFEFFy\uFFFDz\uFFFD', { addSpecialTokens: false });
    const written = [...ids].map((id) => stream.push(id)).join('') + stream.end();
    expect(written).toBe('x\uFEFFy\uFFFDz\uFFFD');
  }
});

test('incomplete characters are emitted at the end, without delaying later text', () => {
  const stream = tokenizer('llama2').decodeStream();
  const half = tokenizer('llama2').tokenToId('<0xE6>') as number;
  const after = tokenizer('llama2').encode('abc', { addSpecialTokens: false });
  expect(stream.push(half)).toBe('');
  expect(stream.push(after)).toContain('abc');
  for (let i = 0; i < 300; ++i) stream.push(half);
  expect(stream.push(after)).toContain('abc');
  expect(stream.push(half) + stream.end()).toBe('\uFFFD');
});

/** The rows of a tensor [B, T]. */
function rowsOf(tensor: Tensor): number[][] {
  const [rows, length] = tensor.shape as [number, number];
  const flat = Array.from(tensor.toArray(), Number);
  return Array.from({ length: rows }, (_, r) => flat.slice(r * length, (r + 1) * length));
}

test('a batch is padded on either side, cut, and rounded up', () => {
  const of = tokenizer('llama3');
  const batch = of.encodeBatch(['a', 'a b c'], {
    paddingSide: 'left',
    padToMultipleOf: 8,
  });
  const [bos, pad] = [of.bosId, of.padId];
  expect(batch.ids.shape).toEqual([2, 8]);
  const rows = rowsOf(batch.ids);
  expect(rows[0]?.slice(0, 6)).toEqual(Array(6).fill(pad));
  expect(rows[0]?.slice(6)).toEqual([...of.encode('a')]);
  expect(rows[1]?.indexOf(bos as number)).toBe(8 - of.encode('a b c').length);
  expect(rowsOf(batch.mask)[0]).toEqual([0, 0, 0, 0, 0, 0, 1, 1]);
  expect(rowsOf(batch.documents)[0]).toEqual([-1, -1, -1, -1, -1, -1, 0, 0]);
  expect(rowsOf(batch.positions)[0]).toEqual([0, 0, 0, 0, 0, 0, 0, 1]);
  const cut = of.encodeBatch(['one two three', 'a'], { maxLength: 3, padTo: 4 });
  expect(rowsOf(cut.ids)[0]).toEqual([...of.encode('one two three').slice(0, 3), pad]);
  for (const tensor of [...Object.values(batch), ...Object.values(cut)]) tensor.dispose();
  const left = of.encode('one two three', { maxLength: 3, truncationSide: 'left' });
  expect([...left]).toEqual([bos, ...of.encode('one two three').slice(-2)]);
});

test('continueFinalMessage leaves the last message open', () => {
  const messages = [
    { role: 'user', content: 'Say' },
    { role: 'assistant', content: 'It is ' },
  ];
  const open = tokenizer('qwen2').applyChatTemplate(messages, {
    continueFinalMessage: true,
    assistantMask: true,
  });
  expect(open.text.endsWith('<|im_start|>assistant\nIt is ')).toBe(true);
  expect(open.assistant?.at(-1)).toBe(1);
  expect(tokenizer('llama3').chatText(messages, { continueFinalMessage: true })).toMatch(/It is$/);
});

test('reads templates from files, lists, names and strings', () => {
  const listed = [
    { name: 'default', template: '{{ messages[0].content }}' },
    { name: 'tool_use', template: 'with {{ tools | length }}' },
  ];
  const folder = folderWith(join(GOLDEN, 'gpt2'), { config: { chat_template: listed } });
  const of = text.Tokenizer.fromPretrained(folder.path);
  const messages = [{ role: 'user', content: 'Hi' }];
  expect(of.chatTemplates).toEqual(['default', 'tool_use']);
  expect(of.chatText(messages)).toBe('Hi');
  expect(of.chatText(messages, { tools: [{}] })).toBe('with 1');
  expect(of.chatText(messages, { template: 'default', tools: [{}] })).toBe('Hi');
  expect(of.chatText(messages, { template: '{{ x }}!', variables: { x: 'y' } })).toBe('y!');
  folder.write('chat_template.jinja', 'file {{ messages[0].content }}');
  expect(text.Tokenizer.fromPretrained(folder.path).chatText(messages)).toBe('file Hi');
});

test.each([
  ["{{ x.strip('\\n') }}|", '\n  a \n', '  a |'],
  ["{{ x.lstrip('\\n') }}|", '\n  a\n', '  a\n|'],
  ["{{ x.rstrip('\\n').split('\\n')[-1] }}|", 'b\n a \n\n', ' a |'],
  ['{{ x.strip() }}|', '\n a \n', 'a|'],
  ["{{ x.strip('ab ') }}|", ' abxab ', 'x|'],
  ['{{ x.strip(none) }}|', ' a ', 'a|'],
  [
    "{% for p in x.split(',') if p.strip('.') %}{{ p.strip('.').upper() }};{% endfor %}",
    'a.,..,😀b😀..',
    'A;😀B😀;',
  ],
  ["{{ {'k': x.strip('😀')}['k'] }}|", '😀b😀', 'b|'],
  ["{% macro f(v) %}{{ v.lstrip('-') }}{% endmacro %}{{ f(x) }}|", '--a', 'a|'],
  ["{{ (x.strip('-') if true else '') ~ x|trim }}|", '-a-', 'a-a-|'],
  ["{{ x.strip('[]^-\\\\') }}|", '[^a-]\\', 'a|'],
])('a template strips the named characters, as in Python: %j', (template, x, expected) => {
  const messages = [{ role: 'user', content: '' }];
  expect(tokenizer('gpt2').chatText(messages, { template, variables: { x } })).toBe(expected);
});

test.each([
  ["{{ true }}|{{ none }}|{{ y }}|{{ 1 }}|{{ 2.0 }}|{{ 'a' }}", 'True|None||1|2.0|a'],
  ["{{ {'a': 1} }}", "{'a': 1}"],
  ['{{ x }}', `{'a': [1, True, None, 2.5], "it's": 'b"c', 'n': 'x\\n\\xa0é😀\\u200b'}`],
  ['{{ x|string }}', `{'a': [1, True, None, 2.5], "it's": 'b"c', 'n': 'x\\n\\xa0é😀\\u200b'}`],
  ["{{ (1, 'a') }}{{ [] }}{{ {} }}", "(1, 'a')[]{}"],
  ["{{ 'a' ~ true ~ none ~ [1] ~ y }}", 'aTrueNone[1]'],
  ["{{ [true, 'b', none]|join(', ') }}", 'True, b, None'],
  ["{{ 'abc'|join('-') }}", 'a-b-c'],
  ['{{ [1, false]|join }}', '1False'],
  ["{{ [{'n': 1.0}, {'n': none}, {}]|join('-', attribute='n') }}", '1.0-None-'],
  ["{{ [{'n': 'a'}, {'n': 'b'}]|join(', ', 'n') }}", 'a, b'],
  ['{% set s %}{{ none }}{% endset %}{{ s }}{% set q = true %}{{ q|string|length }}', 'None4'],
  ['{% macro f(v) %}{{ v }}{% endmacro %}{{ f(false) }}{{ f([none]) }}', 'False[None]'],
  [
    '{% if false %}{% else %}{{ true }}{% endif %}{% for i in [] %}{% else %}{{ none }}{% endfor %}',
    'TrueNone',
  ],
  ["{{ 'a' if false }}|{{ x.zz }}|{{ x.get('zz') }}", '||None'],
  [`{{ "it's" }}{{ ["it's", 'a"b', 'a"\\'b'] }}`, `it's["it's", 'a"b', 'a"\\'b']`],
  ['{{ namespace(a=1, b=true) }}', "<Namespace {'a': 1, 'b': True}>"],
  ["{{ (true|string) + 'x' }}", 'Truex'],
  [
    '{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}',
    `a=[1, True, None, 2.5];it's=b"c;n=x\n\u00a0é😀\u200b;`,
  ],
  ['{% filter upper %}{{ true }}{% endfilter %}', 'TRUE'],
])('a template prints what Python prints: %j', (template, expected) => {
  const a = [1, true, null, 2.5];
  const x = { a, "it's": 'b"c', n: 'x\n\u00a0é😀\u200b' };
  const messages = [{ role: 'user', content: '' }];
  expect(tokenizer('gpt2').chatText(messages, { template, variables: { x } })).toBe(expected);
});

test.each([
  ["{{ 1 == 1.0 }}{{ 1 == true }}{{ '1' == 1 }}{{ 1 == [1] }}", 'TrueTrueFalseFalse'],
  ["{{ false == '' }}{{ [] == '' }}{{ none == y }}{{ y == y }}", 'FalseFalseFalseTrue'],
  ["{{ [1, 'a'] == [1.0, 'a'] }}{{ [1] == (1, 2) }}{{ [[]] != [[]] }}", 'TrueFalseFalse'],
  ["{{ x == {'b': none, 'a': [1]} }}{{ x == {'a': [1]} }}{{ x != {} }}", 'TrueFalseTrue'],
  ["{{ none in ['a'] }}{{ true in [1] }}{{ '1' in [1] }}", 'FalseTrueFalse'],
  ["{{ [1] in [[1.0]] }}{{ 'a' not in x }}{{ 'b' in 'abc' }}{{ 'a' in y }}", 'TrueFalseTrueFalse'],
  ["{% for v in [1, '1', none] if v != '1' %}{{ v }};{% endfor %}", '1;None;'],
])('a template compares as Python does: %j', (template, expected) => {
  const messages = [{ role: 'user', content: '' }];
  const variables = { x: { a: [1], b: null } };
  expect(tokenizer('gpt2').chatText(messages, { template, variables })).toBe(expected);
});

test('a template that searches in a number is refused', () => {
  const messages = [{ role: 'user', content: '' }];
  const options = { template: "{{ 'a' in 1 }}" };
  const look = () => tokenizer('gpt2').chatText(messages, options);
  expectError(look, 'DS_DATA', /TypeError: argument of type 'int' is not iterable \(line 1\)/);
});

describe('errors name the field', () => {
  const messages = [{ role: 'user', content: 'Hi' }];
  const from = (edit: Edit) => {
    const folder = folderWith(join(GOLDEN, 'llama3'), { edit });
    return () => text.Tokenizer.fromPretrained(folder.path);
  };

  test.each<[string, () => unknown, string, RegExp]>([
    [
      'no folder',
      () => text.Tokenizer.fromPretrained('/no/such'),
      'DS_DATA',
      /tokenizer\.json.*no folder/,
    ],
    ['no path', () => text.Tokenizer.fromPretrained(7 as never), 'DS_ARGUMENT', /a string, got 7/],
    [
      'a folder without one',
      () => text.Tokenizer.fromPretrained(__dirname),
      'DS_DATA',
      /save_pretrained/,
    ],
    ['an id beyond', () => tokenizer('gpt2').decode([1, -100]), 'DS_INDEX', /-100 at 1/],
    ['no text', () => tokenizer('gpt2').encode(null as never), 'DS_ARGUMENT', /a string, got null/],
    [
      'no list',
      () => tokenizer('gpt2').encodeBatch('a' as never),
      'DS_ARGUMENT',
      /list of strings/,
    ],
    [
      'an unknown option',
      () => tokenizer('gpt2').encode('a', { padding: true } as never),
      'DS_ARGUMENT',
      /padding/,
    ],
    ['no template', () => tokenizer('gpt2').chatText(messages), 'DS_ARGUMENT', /"default".*none/],
    [
      'no marks',
      () => tokenizer('llama2').applyChatTemplate(messages, { assistantMask: true }),
      'DS_DATA',
      /marks the text/,
    ],
    [
      'no messages',
      () => tokenizer('llama3').chatText('Hi' as never),
      'DS_ARGUMENT',
      /list of messages/,
    ],
    ['no role', () => tokenizer('llama3').chatText([{} as never]), 'DS_ARGUMENT', /message 0/],
    [
      'a broken template',
      () => tokenizer('llama3').chatText(messages, { template: '{% if %}' }),
      'DS_DATA',
      /Jinja/,
    ],
    [
      'too long a row',
      () => tokenizer('llama3').encodeBatch(['a b c d e'], { padTo: 2 }),
      'DS_ARGUMENT',
      /maxLength/,
    ],
    [
      'a bad side',
      () => tokenizer('llama3').encodeBatch(['a'], { paddingSide: 'up' as never }),
      'DS_ARGUMENT',
      /"up"/,
    ],
    [
      'another split',
      from((t) => Object.assign(t.pre_tokenizer.pretokenizers[0], { behavior: 'Around' })),
      'DS_DATA',
      /tokenizer\.json pre_tokenizer\.pretokenizers\[0\]\.behavior: .*got "Around"/,
    ],
    [
      'no added token',
      from((t) => t.added_tokens.splice(2, 0, null)),
      'DS_DATA',
      /"added_tokens".*null at 2/,
    ],
    [
      'added tokens that are no list',
      from((t) => Object.assign(t, { added_tokens: {} })),
      'DS_DATA',
      /"added_tokens", a list/,
    ],
    [
      'an added token whose content is no text',
      from((t) => Object.assign(t.added_tokens[0], { content: 5 })),
      'DS_DATA',
      /a string "content"/,
    ],
    [
      'a pattern that is no text',
      from((t) => Object.assign(t.pre_tokenizer.pretokenizers[0].pattern, { Regex: 5 })),
      'DS_DATA',
      /pattern\.Regex: expected a string, got 5/,
    ],
    ...[null, { name: 'a' }, { name: 1, template: '' }].map(
      (wrong): [string, () => unknown, string, RegExp] => [
        `a template ${JSON.stringify(wrong)}`,
        () => {
          const config = { chat_template: [wrong] };
          text.Tokenizer.fromPretrained(folderWith(join(GOLDEN, 'gpt2'), { config }).path);
        },
        'DS_DATA',
        /chat_template\[0\]: .*"name" and "template"/,
      ],
    ),
    [
      'a file in place of the folder of templates',
      () => {
        const folder = folderWith(join(GOLDEN, 'gpt2'), {});
        folder.write('additional_chat_templates', '');
        text.Tokenizer.fromPretrained(folder.path);
      },
      'DS_DATA',
      /a folder of templates/,
    ],
    ['no model', from((t) => delete t.model), 'DS_DATA', /"model"/],
    [
      'an unknown model',
      from((t) => Object.assign(t.model, { type: 'Magic' })),
      'DS_DATA',
      /BPE, WordPiece/,
    ],
  ])('%s', (_, body, code, message) => expectError(body, code, message));
});
