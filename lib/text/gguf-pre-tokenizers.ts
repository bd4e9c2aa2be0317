// Lists the pre-tokenizers of GGUF files. Source: the models' tokenizers, and llama.cpp's names.

/**
 * A pre-tokenizer: the rules that split texts before merges. PRE_TOKENIZERS lists them by
 * tokenizer.ggml.pre.
 */
export interface PreTokenizer {
  /** The other names of the same rules. */
  readonly otherNames?: readonly string[];
  readonly normalizer?: string;
  /** Regular expressions of the Split steps before ByteLevel; null: the expression of GPT-2. */
  readonly splits: readonly string[] | null;
  /** Whether each digit is a piece. */
  readonly hasDigits?: boolean;
  /** Whether whole pieces of the vocabulary need no merges. */
  readonly ignoresMerges?: boolean;
}

const WORDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
const REST = '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/**
 * Returns the expression of words that start with capitals, or consist of capitals. `end` may
 * follow each word.
 */
const createCasedWords = (end: string): string => {
  const [upper, lower] = ['[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]', '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]'];
  const start = '[^\\r\\n\\p{L}\\p{N}]?';
  return `${start}${upper}*${lower}+${end}|${start}${upper}+${lower}*${end}|`;
};

/** Like REST, but slashes may follow the punctuation. */
const PATHS = REST.replace('\\r\\n]*', '\\r\\n/]*');

/** Letters with two cases, by the list of DeepSeek V2's tokenizer. */
const CASED =
  'A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293' +
  '\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c' +
  '\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5' +
  '\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77' +
  '\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59' +
  '\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc' +
  '\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107' +
  '\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139' +
  '\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee' +
  '\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e' +
  '\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\u{10400}-\u{1044f}' +
  '\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}' +
  '\u{118a0}-\u{118df}\u{1e900}-\u{1e943}';

/** Han, and the scripts from Samaritan to Yi and Hangul. */
const OTHER_SCRIPTS = '[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+';

/** The pre-tokenizers by their names in files. */
export const PRE_TOKENIZERS: Readonly<Record<string, PreTokenizer>> = {
  'llama-bpe': {
    otherNames: ['llama3', 'llama-v3', 'smaug-bpe', 'falcon3', 'pixtral'],
    splits: [`${WORDS}\\p{N}{1,3}${REST}`],
    ignoresMerges: true,
  },
  qwen2: {
    otherNames: ['deepseek-r1-qwen', 'megrez', 'hunyuan'],
    normalizer: 'NFC',
    splits: [`${WORDS}\\p{N}${REST}`],
  },
  qwen35: {
    normalizer: 'NFC',
    splits: [
      `${WORDS.replace('\\p{L}+', '[\\p{L}\\p{M}]+')}\\p{N}${REST.replace('\\s\\p{L}', '\\s\\p{L}\\p{M}')}`,
    ],
  },
  'gpt-4o': {
    otherNames: ['llama4', 'minimax-m2'],
    splits: [`${createCasedWords("(?i:'s|'t|'re|'ve|'m|'ll|'d)?")}\\p{N}{1,3}${PATHS}`],
  },
  tekken: { splits: [`${createCasedWords('')}\\p{N}${PATHS}`], ignoresMerges: true },
  'deepseek-v3': {
    otherNames: ['hunyuan-dense'],
    splits: [
      '\\p{N}{1,3}',
      '[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+',
      '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|' +
        '[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|' +
        '\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
    ],
  },
  'deepseek-llm': {
    splits: [
      '[\r\n]',
      `\\s?[${CASED}]+`,
      '\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+',
      '\\s+$',
      OTHER_SCRIPTS,
    ],
    hasDigits: true,
  },
  'deepseek-coder': {
    splits: ['[\r\n]', '\\s?\\p{L}+', '\\s?\\p{P}+', OTHER_SCRIPTS],
    hasDigits: true,
  },
  dbrx: {
    otherNames: ['olmo', 'smollm3', 'glm4', 'chatglm-bpe'],
    splits: [`${WORDS}\\p{N}{1,3}${REST}`],
  },
  smollm: { otherNames: ['starcoder', 'refact', 'command-r'], splits: null, hasDigits: true },
  'gpt-2': { otherNames: ['default', 'phi-2', 'jina-en', 'mpt', 'olmo-1b'], splits: null },
};
