// Options of a Tokenizer's methods, and their names.
import type { RevisionOptions } from '../hub/local-folder.js';
import type { Device } from '../runtime/device.js';
import type { PaddingOptions } from './padding.js';
import type { Side } from './tokenizer-folder.js';

/** Options of Tokenizer.fromPretrained(). */
export interface TokenizerOptions extends RevisionOptions {
  /**
   * Text of a chat template in Jinja, in place of the folder's. A Trainer saves it with the model.
   * Default: the template of the folder.
   */
  chatTemplate?: string;
}

/** Options of encoding. */
export interface EncodeOptions {
  /** Adds the tokenizer's special tokens around the text, such as <s>. Default: true. */
  addSpecialTokens?: boolean;
  /** Maximum number of tokens, special tokens included. Longer texts are cut. Default: no limit. */
  maxLength?: number;
  /** Side on which tokens are cut. Default: the tokenizer's `truncationSide`. */
  truncationSide?: Side;
}

/** Options of encoding a batch to tensors. */
export interface BatchOptions extends EncodeOptions, PaddingOptions {
  /** Device of the tensors. Default: "cpu". */
  device?: Device | string;
}

/** Options of chatText(), passed to the chat template. */
export interface ChatOptions {
  /** Adds the start of an answer, which the model continues. Default: false. */
  addGenerationPrompt?: boolean;
  /** JSON schemas of functions that the model may call. */
  tools?: readonly object[];
  /** Texts to answer from, for templates that read them. */
  documents?: readonly object[];
  /**
   * Template of the tokenizer by name, or the text of a template. Default: "tool_use" with tools if
   * it exists, else "default".
   */
  template?: string;
  /** Other variables that the template reads, such as enable_thinking. */
  variables?: Record<string, unknown>;
  /**
   * Omits the text after the last message's content, so that the model continues it. Default:
   * false.
   */
  continueFinalMessage?: boolean;
}

/** Options of applyChatTemplate(). */
export interface EncodeChatOptions extends ChatOptions {
  /** Returns a mask of the tokens inside the template's {% generation %}. Default: false. */
  assistantMask?: boolean;
}

/** A tokenized conversation. */
export interface EncodedChat {
  /** The rendered conversation. */
  text: string;
  /** Tokens of the text. */
  ids: Int32Array;
  /** 1 for tokens of the assistant; null without `assistantMask`. */
  assistant: Uint8Array | null;
}
