// The door of the text room.
export type { ChatMessage } from './chat-template.js';
export { DecodeStream } from './decode-stream.js';
export type { PaddedBatch, PaddingOptions } from './padding.js';
export {
  type BatchOptions,
  type ChatOptions,
  type DecodeOptions,
  type EncodedChat,
  type EncodeOptions,
  Tokenizer,
} from './tokenizer.js';
