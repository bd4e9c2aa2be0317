// Creates small random tokenizers in the format of tokenizer.json, and texts for them.

const LETTERS = [
  'a',
  'b',
  'c',
  'ab',
  'A',
  'B',
  'é',
  'e\u0301',
  'ß',
  'Σ',
  'ς',
  'İ',
  'x',
  'y',
  '1',
  '²',
  '٣',
];
const BLANKS = [' ', '  ', '\n', '\t', '\r\n', '\u00a0', '\u0085', '\ufeff', '\u3000', '\u200b'];
const OTHERS = [
  ...['.', ',', '!', "'", "'s", ' do not', '-', '_', '$', '+', '«', '▁', '<', '>', '#', '##', '|'],
  ...[
    '中',
    '文',
    '\u{20000}',
    '\u{2b920}',
    '\u{2b850}',
    '😀',
    '\u200d',
    '\u0307',
    'ﬁ',
    '\ufffd',
    '\0',
    '\x01',
  ],
  ...[
    '<s>',
    '</s>',
    '[MASK]',
    '[UNK]',
    '<unk>',
    '<0x41>',
    'Ġ',
    'word',
    'Word',
    '</w>',
    'ſ',
    '½',
    'ก็',
  ],
];
const PATTERNS = [
  '\\s+',
  '[a-c]+',
  '\\w+',
  '\\p{L}+',
  '[^\\s]',
  ' ',
  'a|b',
  '(?i:A)',
  '\\s+(?!\\S)|\\s+',
  '\\d',
  '.',
  'b?',
  '(?=b)',
  '^a',
  'a$',
  '\\b',
  '[[:punct:]]',
  '\\p{Han}',
  "'s|'t| ?\\p{L}+| ?[^\\s\\p{L}]+|\\s+",
  '\\n',
  '▁+',
];
const BEHAVIORS = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];

/** Numbers in [0, 1) that depend on the seed alone (mulberry32). */
function seeded(seed) {
  let state = Math.imul(seed, 0x9e3779b1) | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

class Draw {
  constructor(seed) {
    this.random = seeded(seed);
  }

  below(count) {
    return Math.floor(this.random() * count);
  }

  pick(list) {
    return list[this.below(list.length)];
  }

  chance(share) {
    return this.random() < share;
  }

  some(most, draw) {
    return Array.from({ length: this.below(most + 1) }, draw);
  }
}

const piece = (draw) => {
  const kind = draw.random();
  return draw.pick(kind < 0.6 ? LETTERS : kind < 0.8 ? BLANKS : OTHERS);
};
const text = (draw, most) => draw.some(most, () => piece(draw)).join('');

function pattern(draw) {
  if (draw.chance(0.3)) return { String: draw.pick([...LETTERS, ' ', '.', '▁', 'ab', '']) };
  return { Regex: draw.pick(PATTERNS) };
}

function normalizer(draw, depth = 0) {
  const kinds = [
    () => ({
      type: 'BertNormalizer',
      clean_text: draw.chance(0.7),
      handle_chinese_chars: draw.chance(0.7),
      strip_accents: draw.pick([null, true, false]),
      lowercase: draw.chance(0.5),
    }),
    () => ({ type: draw.pick(['NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents', 'Nmt']) }),
    () => ({ type: 'Strip', strip_left: draw.chance(0.5), strip_right: draw.chance(0.5) }),
    () => ({
      type: 'Replace',
      pattern: pattern(draw),
      content: draw.pick(['', '▁', 'b', ' ', 'xy']),
    }),
    () => ({ type: 'Prepend', prepend: draw.pick(['▁', 'a', ' ']) }),
    () => ({ type: 'ByteLevel' }),
    () => ({ type: 'Sequence', normalizers: draw.some(3, () => normalizer(draw, depth + 1)) }),
  ];
  return draw.pick(depth > 1 ? kinds.slice(0, 5) : kinds)();
}

function preTokenizer(draw, depth = 0) {
  const kinds = [
    () => ({ type: draw.pick(['Whitespace', 'WhitespaceSplit', 'BertPreTokenizer']) }),
    () => ({ type: 'Digits', individual_digits: draw.chance(0.5) }),
    () => ({ type: 'Punctuation', behavior: draw.pick(BEHAVIORS) }),
    () => ({
      type: 'Split',
      pattern: pattern(draw),
      behavior: draw.pick(BEHAVIORS),
      invert: draw.chance(0.3),
    }),
    () => ({
      type: 'Metaspace',
      replacement: '▁',
      prepend_scheme: draw.pick(['always', 'first', 'never']),
      split: draw.chance(0.6),
    }),
    () => ({
      type: 'ByteLevel',
      add_prefix_space: draw.chance(0.5),
      trim_offsets: true,
      use_regex: draw.chance(0.5),
    }),
    () => ({ type: 'CharDelimiterSplit', delimiter: draw.pick(['a', ' ', '.', '▁']) }),
    () => ({ type: 'FixedLength', length: 1 + draw.below(4) }),
    () => ({ type: 'Sequence', pretokenizers: draw.some(3, () => preTokenizer(draw, depth + 1)) }),
  ];
  return draw.pick(depth > 1 ? kinds.slice(0, 6) : kinds)();
}

function decoder(draw, depth = 0) {
  const kinds = [
    () => ({ type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }),
    () => ({ type: 'ByteFallback' }),
    () => ({ type: 'Fuse' }),
    () => ({ type: 'WordPiece', prefix: draw.pick(['##', '']), cleanup: draw.chance(0.5) }),
    () => ({
      type: 'Metaspace',
      replacement: '▁',
      prepend_scheme: draw.pick(['always', 'first', 'never']),
      split: true,
    }),
    () => ({ type: 'BPEDecoder', suffix: '</w>' }),
    () => ({ type: 'Replace', pattern: pattern(draw), content: draw.pick(['', ' ', 'z']) }),
    () => ({ type: 'Strip', content: draw.pick([' ', 'a']), start: draw.below(2), stop: 0 }),
    () => ({ type: 'CTC', pad_token: '<s>', word_delimiter_token: '|', cleanup: draw.chance(0.5) }),
    () => ({ type: 'Sequence', decoders: draw.some(3, () => decoder(draw, depth + 1)) }),
  ];
  return draw.pick(depth > 1 ? kinds.slice(0, 8) : kinds)();
}

const byteTokens = () =>
  Array.from(
    { length: 256 },
    (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`,
  );

/** Distinct tokens: single characters, and some longer ones. */
function tokens(draw, prefix) {
  const singles = [...LETTERS, ...BLANKS, ...OTHERS].flatMap((one) => [...one]);
  const own = singles.filter(() => draw.chance(0.6));
  const longer = draw.some(20, () => text(draw, 3)).filter((one) => one !== '');
  const marked = [...own, ...longer].filter(() => draw.chance(0.3)).map((one) => prefix + one);
  const bytes = draw.chance(0.2) ? byteTokens().filter(() => draw.chance(0.98)) : [];
  return [...new Set([...own, ...longer, ...marked, ...bytes])];
}

const numbered = (list) => Object.fromEntries(list.map((token, id) => [token, id]));

function bpe(draw) {
  const prefix = draw.chance(0.15) ? '##' : '';
  const suffix = draw.chance(0.15) ? '</w>' : '';
  const known = tokens(draw, draw.pick([prefix, 'Ġ', '▁']));
  if (suffix !== '') known.push(...known.filter(() => draw.chance(0.3)).map((one) => one + suffix));
  const all = new Set(known);
  const merges = [];
  for (let i = draw.below(60); i > 0; --i) {
    const list = [...all];
    const [left, right] = [draw.pick(list), draw.pick(list)];
    if (left === undefined || /\s/u.test(left + right) || !right.startsWith(prefix)) continue;
    all.add(left + right.slice(prefix.length));
    if (!merges.some(([a, b]) => a === left && b === right)) merges.push([left, right]);
  }
  const unknown = draw.chance(0.6) ? '<unk>' : null;
  if (unknown !== null && draw.chance(0.95)) all.add(unknown);
  return {
    type: 'BPE',
    dropout: null,
    unk_token: unknown,
    continuing_subword_prefix: prefix || null,
    end_of_word_suffix: suffix || null,
    fuse_unk: draw.chance(0.5),
    byte_fallback: draw.chance(0.3),
    ignore_merges: draw.chance(0.2),
    vocab: numbered([...all]),
    merges,
  };
}

function wordPiece(draw) {
  const all = new Set(tokens(draw, '##'));
  if (draw.chance(0.95)) all.add('[UNK]');
  return {
    type: 'WordPiece',
    unk_token: '[UNK]',
    continuing_subword_prefix: '##',
    max_input_chars_per_word: draw.pick([3, 100]),
    vocab: numbered([...all]),
  };
}

function unigram(draw) {
  const all = [...new Set(['<unk>', ...tokens(draw, '▁')])];
  const vocab = all.map((token) => [token, -draw.below(8) - (draw.chance(0.5) ? 0.25 : 0)]);
  return {
    type: 'Unigram',
    unk_id: draw.chance(0.9) ? 0 : null,
    vocab,
    byte_fallback: draw.chance(0.3),
  };
}

function wordLevel(draw) {
  const all = new Set(tokens(draw, '▁'));
  if (draw.chance(0.9)) all.add('<unk>');
  return { type: 'WordLevel', vocab: numbered([...all]), unk_token: '<unk>' };
}

function addedTokens(draw, known) {
  let next = known.size;
  const contents = [
    '<s>',
    '</s>',
    '[MASK]',
    'word',
    'Word',
    ' a',
    'ab',
    'é',
    '中文',
    '<s>a',
    'A B',
    '▁b',
  ];
  const chosen = contents.filter(() => draw.chance(0.3));
  return chosen.map((content) => {
    const special = draw.chance(0.5);
    return {
      id: known.get(content) ?? next++,
      content,
      single_word: draw.chance(0.2),
      lstrip: draw.chance(0.3),
      rstrip: draw.chance(0.3),
      normalized: draw.chance(0.5),
      special,
    };
  });
}

function postProcessor(draw, added) {
  const special = added.filter((one) => one.special);
  if (special.length === 0 || draw.chance(0.5)) return null;
  const [first, last] = [draw.pick(special), draw.pick(special)];
  const pair = { sep: [last.content, last.id], cls: [first.content, first.id] };
  const part = (token) => ({ SpecialToken: { id: token.content, type_id: 0 } });
  const own = [first, last].map((one) => [
    one.content,
    { id: one.content, ids: [one.id], tokens: [one.content] },
  ]);
  return draw.pick([
    () => ({ type: 'BertProcessing', ...pair }),
    () => ({ type: 'RobertaProcessing', ...pair, trim_offsets: true, add_prefix_space: true }),
    () => ({
      type: 'TemplateProcessing',
      single: [
        part(first),
        { Sequence: { id: 'A', type_id: 0 } },
        ...(draw.chance(0.5) ? [part(last)] : []),
      ],
      pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
      special_tokens: Object.fromEntries(own),
    }),
    () => ({ type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true }),
  ])();
}

/** A tokenizer of the seed, and texts with parts of its tokens. */
exports.randomTokenizer = (seed) => {
  const draw = new Draw(seed);
  const model = draw.pick([bpe, bpe, bpe, wordPiece, unigram, unigram, wordLevel])(draw);
  const pairs =
    model.type === 'Unigram'
      ? model.vocab.map(([token], id) => [token, id])
      : Object.entries(model.vocab);
  const known = new Map(pairs);
  const added = addedTokens(draw, known);
  const tokenizer = {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: draw.chance(0.6) ? normalizer(draw) : null,
    pre_tokenizer: draw.chance(0.8) ? preTokenizer(draw) : null,
    post_processor: postProcessor(draw, added),
    decoder: draw.chance(0.8) ? decoder(draw) : null,
    model,
  };
  const parts = [...known.keys(), ...added.map(({ content }) => content)];
  const texts = Array.from({ length: 8 }, () =>
    draw.some(6, () => (draw.chance(0.4) ? draw.pick(parts) : text(draw, 3))).join(''),
  );
  return { tokenizer, texts };
};
