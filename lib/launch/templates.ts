// The templates of `ds init`. The files are in templates/ of the package.

/** A folder of the package, and the folder of the project that gets its files. */
type Source = readonly [from: string, to: string];

const COMMON: Source = ['templates/common', '.'];
/** The project has a tokenizer of its own, because `ds chat` and `ds serve` look for one. */
const TOKENIZER: Source = ['examples/tokenizer', 'tokenizer'];
/** A chat model to start from: its data, its chat template, and the program that trains it. */
const CHAT: Source = ['templates/chat', '.'];

/** What `npm start` of each template does, and where its files come from; later files win. */
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

/** The templates and what they do, for the end of the help. */
export function templatesHelp(): string {
  const width = Math.max(...Object.keys(TEMPLATES).map((name) => name.length));
  const lines = Object.entries(TEMPLATES).map(
    ([name, { start }]) => `  ${name.padEnd(width)}  ${start}`,
  );
  return ['', 'Templates:', ...lines].join('\n');
}
