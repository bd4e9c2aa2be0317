// The pre-tokenizers of GGUF files. Source: the tokenizers of the models, and llama.cpp's names.

/**
 * A pre-tokenizer: the rules that split texts before merges. CUTTINGS lists them by
 * tokenizer.ggml.pre.
 */
export interface Cutting {
  /** The other names of the same rules. */
  readonly also?: readonly string[];
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

/** Words with capitals first, or capitals alone; `end` may follow each. */
const cased = (end: string): string => {
  const [upper, lower] = ['[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]', '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]'];
  const start = '[^\\r\\n\\p{L}\\p{N}]?';
  return `${start}${upper}*${lower}+${end}|${start}${upper}+${lower}*${end}|`;
};

/** As REST, with slashes behind signs. */
const PATHS = REST.replace('\\r\\n]*', '\\r\\n/]*');

/** The pre-tokenizers by their names in files. */
export const CUTTINGS: Readonly<Record<string, Cutting>> = {
  'llama-bpe': {
    also: ['llama3', 'llama-v3', 'smaug-bpe', 'falcon3', 'pixtral'],
    splits: [`${WORDS}\\p{N}{1,3}${REST}`],
    ignoresMerges: true,
  },
  qwen2: {
    also: ['deepseek-r1-qwen', 'megrez', 'hunyuan'],
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
    also: ['llama4', 'minimax-m2'],
    splits: [`${cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?")}\\p{N}{1,3}${PATHS}`],
  },
  tekken: { splits: [`${cased('')}\\p{N}${PATHS}`], ignoresMerges: true },
  'deepseek-v3': {
    also: ['hunyuan-dense'],
    splits: [
      '\\p{N}{1,3}',
      '[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+',
      '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|' +
        '[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|' +
        '\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
    ],
  },
  dbrx: {
    also: ['olmo', 'smollm3', 'glm4', 'chatglm-bpe'],
    splits: [`${WORDS}\\p{N}{1,3}${REST}`],
  },
  smollm: { also: ['starcoder', 'refact', 'command-r'], splits: null, hasDigits: true },
  'gpt-2': { also: ['default', 'phi-2', 'jina-en', 'mpt', 'olmo-1b'], splits: null },
};
