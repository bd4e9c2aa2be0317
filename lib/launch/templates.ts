// The templates of `ds init`. The files are in templates/ of the package.

/** A folder of the package, and the folder of the project that gets its files. */
type Source = readonly [from: string, to: string];

const COMMON: Source = ['templates/common', '.'];
/** The project has a tokenizer of its own, because `ds chat` and `ds serve` look for one. */
const TOKENIZER: Source = ['examples/tokenizer', 'tokenizer'];
/** Chats to train on, and the chat template of a small model. */
const CHATS: Source = ['templates/chats', '.'];

/** What `npm start` of each template does, and where its files come from; later files win. */
export const TEMPLATES = {
  chat: {
    start: 'trains a small Llama on chats, then answers your questions',
    sources: [COMMON, TOKENIZER, CHATS, ['templates/chat', '.']],
  },
} as const satisfies Record<string, { start: string; sources: readonly Source[] }>;

export type Template = keyof typeof TEMPLATES;
