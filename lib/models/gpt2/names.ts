// How GPT-2's parameters are called and laid out by Hugging Face's GPT2LMHeadModel.
import type { GPT2 } from './gpt2.js';

/** How Hugging Face stores one of GPT-2's parameters. */
export interface HuggingFaceName {
  /** The name in GPT2LMHeadModel's state dict. */
  name: string;
  /** Conv1D stores [in, out], the transpose of our [out, in]. */
  transposed: boolean;
}

/** Our parameter names, which are theirs, with the layout that theirs have. */
export function gpt2HuggingFaceNames(model: GPT2): Map<string, HuggingFaceName> {
  const names = new Map<string, HuggingFaceName>();
  for (const [name] of model.namedParameters()) {
    names.set(name, { name, transposed: /\.(attn|mlp)\.c_\w+\.weight$/.test(name) });
  }
  return names;
}
