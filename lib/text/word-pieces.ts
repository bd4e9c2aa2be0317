// Builds a tokenizer.json for old BERT folders, which have only vocab.txt.

type Json = Record<string, unknown>;

/** The file with one token on each line. The line number is the id of the token. */
export const VOCABULARY_FILE = 'vocab.txt';

/** The special tokens of such folders, by role. */
export const WORD_PIECE_ROLES = {
  unk_token: '[UNK]',
  sep_token: '[SEP]',
  pad_token: '[PAD]',
  cls_token: '[CLS]',
  mask_token: '[MASK]',
} as const;

/** Returns the tokenizer.json that transformers' BertTokenizer would build from vocab.txt. */
export function buildWordPieceJson(text: string, config: Json): Json {
  const lines = text.split('\n').map((line) => line.replace(/\r$/, ''));
  const tokens = lines.at(-1) === '' ? lines.slice(0, -1) : lines;
  const vocab = Object.fromEntries(tokens.map((token, id) => [token, id]));
  const { do_lower_case: lowers = true, strip_accents: strips = null } = config;
  const { tokenize_chinese_chars: isolates = true } = config;
  const special = Object.values(WORD_PIECE_ROLES).filter((content) =>
    Object.hasOwn(vocab, content),
  );
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  return {
    added_tokens: special.map((content) => ({
      id: vocab[content],
      content,
      ...flags,
      special: true,
    })),
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: isolates,
      ...(strips !== null && { strip_accents: strips }),
      lowercase: lowers,
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'BertProcessing',
      sep: ['[SEP]', vocab['[SEP]']],
      cls: ['[CLS]', vocab['[CLS]']],
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece',
      unk_token: '[UNK]',
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 100,
      vocab,
    },
  };
}
