// Opens the draft model of an engine.
import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/index.js';
import { joinAll } from '../../nn/joined-linears.js';
import { hasTokenizer } from '../../text/gguf-tokenizer.js';
import { Tokenizer } from '../../text/index.js';
import type { ResolvedInferenceConfig } from '../config/index.js';
import { openModelFolder } from '../model-folder.js';
import type { CacheSizes } from '../paged-cache.js';
import { type RunnerSizes, StepRunner } from '../step-runner.js';
import { DraftModel } from './draft-model.js';
import type { DraftCost } from './speculator.js';

const OP = 'initInference speculative.model';

/** The largest sizes of the model's runner. */
type Room = Pick<RunnerSizes, 'blocks' | 'tokens' | 'sequences' | 'reach' | 'records'>;

/** A loaded draft model. It owns the weights. */
export class OpenedDraft {
  readonly sizes: CacheSizes;

  constructor(
    private readonly draft: CausalLM,
    blockSize: number,
  ) {
    this.sizes = { ...draft.pagedShape(), blockSize };
  }

  /** Estimates the time of a token by the numbers of parameters. */
  costFor(model: CausalLM): DraftCost {
    return { step: sizeOf(this.draft) / sizeOf(model), reach: this.draft.alikeSeq };
  }

  /** Allocates the cache. The result owns the weights. Throws DS_OUT_OF_MEMORY. */
  modelFor({ reach, ...room }: Room, vocabSize: number): DraftModel {
    const { draft, sizes } = this;
    const own = { ...pick(room), reach: Math.min(reach, draft.alikeSeq) };
    const runner = new StepRunner(draft, sizes, own);
    return new DraftModel(runner, { tokens: room.tokens, vocabSize }, () => this.dispose());
  }

  /** Frees the weights. */
  dispose(): void {
    for (const parameter of this.draft.parameters()) parameter.dispose();
    this.draft.releaseTables();
  }
}

const pick = ({ blocks, tokens, sequences, records }: Omit<Room, 'reach'>) => ({
  ...{ blocks, tokens, sequences, records },
});

const sizeOf = (model: CausalLM): number =>
  model.parameters().reduce((sum, { numel }) => sum + numel, 0);

/**
 * Loads the draft model of a configuration onto the device and into the dtype of the model; null
 * without one. Rejects with DS_CONFIG for another tokenizer, and with the errors of
 * fromPretrained().
 */
export async function openDraft(
  { speculative, kv_cache }: ResolvedInferenceConfig,
  model: CausalLM,
  tokenizer: Tokenizer | null,
): Promise<OpenedDraft | null> {
  const place = speculative?.model ?? null;
  if (place === null) return null;
  const { device, dtype } = model.computesIn;
  const { model: draft, folders } = await openModelFolder(place, { dtype }, () => {});
  const opened = new OpenedDraft(draft, kv_cache.block_size);
  try {
    const folder = folders.find(hasTokenizer);
    const own = folder === undefined ? null : await Tokenizer.fromPretrained(folder);
    if (draft.recurrentSizes) throw recurrent(draft);
    requireSame(own, tokenizer, [draft.vocabSize, model.vocabSize]);
    if (opened.sizes.recurrent) {
      const expected = 'a model without recurrent layers: a state cannot drop a token';
      throw new DsError({ code: 'DS_CONFIG', op: OP, expected, got: draft.constructor.name });
    }
    draft.to(device, dtype).eval();
    joinAll(draft);
    return new OpenedDraft(draft, kv_cache.block_size);
  } catch (error) {
    opened.dispose();
    throw error;
  }
}

/** Compares all tokens; without tokenizers, the sizes of the vocabularies. */
function requireSame(
  own: Tokenizer | null,
  tokenizer: Tokenizer | null,
  [drafts, wanted]: readonly [number, number],
): void {
  if (!own || !tokenizer) {
    if (drafts === wanted) return;
    throw differs(`a vocabulary of ${wanted} tokens`, String(drafts));
  }
  const count = Math.max(own.vocabSize, tokenizer.vocabSize);
  for (let id = 0; id < count; ++id) {
    const [a, b] = [own, tokenizer].map((one) => (one.hasToken(id) ? one.idToToken(id) : null));
    if (a !== b) throw differs(`${JSON.stringify(b)} as token ${id}`, JSON.stringify(a));
  }
}

/** A state cannot drop the tokens that the model refuses. */
function recurrent(draft: CausalLM): DsError {
  return new DsError({
    ...{ code: 'DS_CONFIG', op: OP, expected: 'a model without recurrent layers' },
    got: draft.constructor.name,
  });
}

function differs(expected: string, got: string): DsError {
  const hint = 'Choose a smaller model of the same family, or the method "ngram".';
  return new DsError({
    ...{ code: 'DS_CONFIG', op: OP, hint },
    expected: `the tokenizer of the model: ${expected}`,
    got,
  });
}
