// The templates of `ds init`. Their files are in templates/ of the package.

/** A folder of the package, and the project folder that receives its files. */
type Source = readonly [from: string, to: string];

const COMMON: Source = ['templates/common', '.'];
/** The project contains a tokenizer, because `ds chat` and `ds serve` look for one there. */
const TOKENIZER: Source = ['examples/tokenizer', 'tokenizer'];
/** A chat model to start from: its data, chat template and training program. */
const CHAT: Source = ['templates/chat', '.'];

/**
 * The description and the sources of each template; later files replace earlier files of the same
 * name.
 */
export const TEMPLATES = {
  chat: {
    start: 'trains a small Llama on chats, then answers your questions',
    sources: [COMMON, TOKENIZER, CHAT],
  },
  pretrain: {
    start: 'trains a small GPT-2 on text, then writes a text',
    sources: [COMMON, TOKENIZER, ['templates/pretrain', '.']],
  },
  'own-model': {
    start: 'trains an nn.Module of your own, then sorts three notes',
    sources: [COMMON, ['templates/own-model', '.']],
  },
  lora: {
    start: 'trains a small Llama and an adapter, then answers your questions',
    sources: [COMMON, TOKENIZER, CHAT, ['templates/lora', '.']],
  },
  serve: {
    start: 'trains a small Llama, then serves it over HTTP',
    sources: [COMMON, TOKENIZER, CHAT, ['templates/serve', '.']],
  },
} as const satisfies Record<string, { start: string; sources: readonly Source[] }>;

export type Template = keyof typeof TEMPLATES;

/** Lists the templates and their descriptions, for the end of the help. */
export function formatTemplates(): string {
  const width = Math.max(...Object.keys(TEMPLATES).map((name) => name.length));
  const lines = Object.entries(TEMPLATES).map(
    ([name, { start }]) => `  ${name.padEnd(width)}  ${start}`,
  );
  return ['', 'Templates:', ...lines].join('\n');
}
