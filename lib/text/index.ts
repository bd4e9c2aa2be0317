// Public API of lib/text: tokenizers, chat templates, and datasets of text.
export type { ChatMessage } from './chat-template.js';
export { type DecodeOptions, DecodeStream, type DecodeStreamOptions } from './decode-stream.js';
export type { EncodedPair } from './encode-pair.js';
export type { RowCounts } from './encoded-part.js';
export {
  collateLabelled,
  type LabelledBatch,
  LabelledDataset,
  type LabelledOptions,
  type LabelledSample,
  type LabelledTask,
} from './labelled-dataset.js';
export type { LabelKind } from './labelled-rows.js';
export type { TextReport } from './pack-rows.js';
export type { Overlong } from './packing.js';
export type { PaddedBatch, PaddingOptions } from './padding.js';
export {
  collatePairs,
  type PairBatch,
  PairDataset,
  type PairOptions,
  type PairReport,
  type PairSample,
} from './pair-dataset.js';
export {
  PromptDataset,
  type PromptOptions,
  type PromptReport,
  type PromptSample,
} from './prompt-dataset.js';
export type { LossKind } from './row-encoder.js';
export {
  collateSamples,
  cumulativeLengths,
  documentLengths,
  type TextBatch,
  type TextSample,
  targetsOf,
} from './sample.js';
export { TextDataset } from './text-dataset.js';
export type { TextOptions } from './text-options.js';
export { TextStream, type TextStreamOptions } from './text-stream.js';
export { Tokenizer } from './tokenizer.js';
export type { Side } from './tokenizer-folder.js';
export type {
  BatchOptions,
  ChatOptions,
  EncodeChatOptions,
  EncodedChat,
  EncodeOptions,
  TokenizerOptions,
} from './tokenizer-options.js';
export {
  collateUnpaired,
  type UnpairedBatch,
  UnpairedDataset,
  type UnpairedOptions,
  type UnpairedReport,
  type UnpairedSample,
} from './unpaired-dataset.js';
