// Converts arguments of `ds train` about rows to options of text datasets.

import { argumentError } from '../../runtime/input-errors.js';
import type { TextOptions } from '../../text/index.js';
import type { TrainArguments } from './arguments.js';

/** Options for making samples from rows. */
type TextPart = Pick<
  TextOptions,
  'columns' | 'length' | 'packing' | 'overlong' | 'loss' | 'textKey' | 'threads' | 'cache'
>;

/** Default of --max_length in TRL. The model's maximum is used if it is smaller. */
const MAX_LENGTH = 1024;

/** TRL's packing strategies, and their treatment of rows that are too long. */
const OVERLONG: Readonly<Record<string, TextOptions['overlong']>> = {
  bfd: 'cut',
  bfd_split: 'split',
};

/**
 * Returns the options for making samples from training or evaluation rows. `maxSeq`: the model's
 * maximum number of tokens. Throws DS_ARGUMENT if --max_length exceeds it, or if the packing
 * strategy would mix documents.
 */
export function readTextOptions(
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
    columns: args.columns,
    length,
    packing: use === 'training' ? packing : (args.eval_packing ?? packing),
    overlong: OVERLONG[strategy],
    loss: readLoss(args),
    textKey: args.dataset_text_field,
    threads: args.dataset_num_proc,
    cache: args.dataset_cache_dir,
  };
}

function readLoss(args: TrainArguments): TextOptions['loss'] {
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
