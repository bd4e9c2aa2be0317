// Arguments of `ds train` about rows, as the options of text datasets.

import { argumentError } from '../../runtime/input-errors.js';
import type { TextOptions } from '../../text/index.js';
import type { TrainArguments } from './arguments.js';

/** How the rows of a file become samples. */
type TextPart = Pick<
  TextOptions,
  'length' | 'packing' | 'overlong' | 'loss' | 'textKey' | 'threads' | 'cache'
>;

/** TRL's; a model that takes fewer tokens bounds it. */
const MAX_LENGTH = 1024;

/** TRL's packing strategies, and their treatment of rows that are too long. */
const OVERLONG: Readonly<Record<string, TextOptions['overlong']>> = {
  bfd: 'cut',
  bfd_split: 'split',
};

/**
 * How `args` make samples of at most `maxSeq` tokens of the rows to learn from, or to be judged by.
 * Throws DS_ARGUMENT for lengths that the model has not, and a packing that would mix documents.
 */
export function textPart(
  args: TrainArguments,
  maxSeq: number,
  use: 'training' | 'evaluation',
): TextPart {
  const { max_length: length = Math.min(MAX_LENGTH, maxSeq), packing = false } = args;
  if (length > maxSeq || length < 2) {
    throw argumentError('--max_length', `2 to ${maxSeq}, which the model takes`, String(length));
  }
  const { packing_strategy: strategy = 'bfd' } = args;
  if (!Object.hasOwn(OVERLONG, strategy)) {
    const hint = 'Attention stays inside a document.';
    const expected = Object.keys(OVERLONG).join(', ');
    throw argumentError('--packing_strategy', expected, JSON.stringify(strategy), hint);
  }
  return {
    length,
    packing: use === 'training' ? packing : (args.eval_packing ?? packing),
    overlong: OVERLONG[strategy],
    loss: lossOf(args),
    textKey: args.dataset_text_field,
    threads: args.dataset_num_proc,
    cache: args.dataset_cache_dir,
  };
}

function lossOf(args: TrainArguments): TextOptions['loss'] {
  const { completion_only_loss: completion, assistant_only_loss: assistant = false } = args;
  if (assistant && completion) {
    throw argumentError(
      '--assistant_only_loss',
      'either --assistant_only_loss or --completion_only_loss',
      'both',
    );
  }
  if (assistant) return 'assistant';
  if (completion === undefined) return undefined;
  return completion ? 'completion' : 'all';
}
