// Opens the draft model of an engine.
import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/index.js';
import { joinAll } from '../../nn/joined-linears.js';
import { hasTokenizer } from '../../text/gguf-tokenizer.js';
import { Tokenizer } from '../../text/index.js';
import type { ResolvedInferenceConfig } from '../config/index.js';
import { openModelFolder } from '../model-folder.js';
import type { CacheSizes } from '../paged-cache.js';
import { StepRunner } from '../step-runner.js';
import { DraftModel } from './draft-model.js';
import { openEagle } from './eagle-head.js';
import { OpenedEagle } from './open-eagle.js';
import { type DraftLimits, draftCost, type OpenDraft } from './opened-draft.js';
import type { DraftCost } from './speculator.js';

const OP = 'initInference speculative.model';

/** A loaded draft model. It owns the weights. */
class OpenedDraft implements OpenDraft {
  readonly sizes: CacheSizes;

  constructor(
    private readonly draft: CausalLM,
    blockSize: number,
  ) {
    this.sizes = { ...draft.pagedShape(), blockSize };
  }

  hooksFor(): null {
    return null;
  }

  costFor(model: CausalLM): DraftCost {
    return { step: draftCost(this.draft, model), reach: this.draft.sharedAnglesSeq };
  }

  modelFor({ reach, ...limits }: DraftLimits, vocabSize: number): DraftModel {
    const { draft, sizes } = this;
    const runnerSizes = { ...pickSizes(limits), reach: Math.min(reach, draft.sharedAnglesSeq) };
    const runner = new StepRunner(draft, sizes, { ...runnerSizes, recorded: 'drafting' });
    return new DraftModel(runner, { tokens: limits.tokens, vocabSize }, () => this.dispose());
  }

  dispose(): void {
    for (const parameter of this.draft.parameters()) parameter.dispose();
    this.draft.releaseTables();
  }
}

const pickSizes = ({ blocks, tokens, sequences, records }: Omit<DraftLimits, 'reach'>) => ({
  blocks,
  tokens,
  sequences,
  records,
});

/**
 * Loads the draft model, or the EAGLE-3 head, of a configuration onto the device and into the dtype
 * of the model; null without one. Rejects with DS_CONFIG for another tokenizer, and with the errors
 * of fromPretrained().
 */
export async function openDraft(
  { speculative, kv_cache }: ResolvedInferenceConfig,
  model: CausalLM,
  tokenizer: Tokenizer | null,
): Promise<OpenDraft | null> {
  const source = speculative?.model ?? null;
  if (source === null) return null;
  if (speculative?.method === 'eagle3') {
    return new OpenedEagle(await openEagle(source, model), kv_cache.block_size);
  }
  const { device, dtype } = model.computesIn;
  const { model: draft, folders } = await openModelFolder(source, { dtype }, () => {});
  const opened = new OpenedDraft(draft, kv_cache.block_size);
  try {
    const folder = folders.find(hasTokenizer);
    const draftTokenizer = folder === undefined ? null : await Tokenizer.fromPretrained(folder);
    if (draft.recurrentSizes) throw recurrentError(draft);
    requireSameVocabulary(draftTokenizer, tokenizer, [draft.vocabSize, model.vocabSize]);
    if (opened.sizes.recurrent) {
      const expected = 'a model without recurrent layers: a state cannot drop a token';
      throw new DsError({ code: 'DS_CONFIG', op: OP, expected, got: draft.constructor.name });
    }
    draft.to(device, dtype).eval();
    joinAll(draft);
    // The conversion changes the dtype of the cache, so the sizes are read again.
    return new OpenedDraft(draft, kv_cache.block_size);
  } catch (error) {
    opened.dispose();
    throw error;
  }
}

/** Compares all tokens; without tokenizers, the vocabulary sizes. */
function requireSameVocabulary(
  draftTokenizer: Tokenizer | null,
  tokenizer: Tokenizer | null,
  [drafts, wanted]: readonly [number, number],
): void {
  if (!draftTokenizer || !tokenizer) {
    if (drafts === wanted) return;
    throw differentTokenizerError(`a vocabulary of ${wanted} tokens`, String(drafts));
  }
  const count = Math.max(draftTokenizer.vocabSize, tokenizer.vocabSize);
  for (let id = 0; id < count; ++id) {
    const [a, b] = [draftTokenizer, tokenizer].map((tokenizer) =>
      tokenizer.hasToken(id) ? tokenizer.idToToken(id) : null,
    );
    if (a !== b)
      throw differentTokenizerError(`${JSON.stringify(b)} as token ${id}`, JSON.stringify(a));
  }
}

/** A recurrent state cannot drop refused tokens. */
function recurrentError(draft: CausalLM): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: OP,
    expected: 'a model without recurrent layers',
    got: draft.constructor.name,
  });
}

function differentTokenizerError(expected: string, got: string): DsError {
  const hint = 'Choose a smaller model of the same family, or the method "ngram".';
  return new DsError({
    code: 'DS_CONFIG',
    op: OP,
    hint,
    expected: `the tokenizer of the model: ${expected}`,
    got,
  });
}
