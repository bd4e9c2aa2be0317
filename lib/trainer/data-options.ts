// Declares the option `data` of a Trainer: order and batching of samples.
import type { Device } from '../runtime/device.js';
import {
  boolean,
  callback,
  declareOption,
  integer,
  type Options,
  oneOf,
} from '../runtime/option.js';

const ORDERS = ['random', 'sequential', 'group_by_length'] as const;

/** The order of samples. */
export type Sampling = (typeof ORDERS)[number];

/** Options for the order and the loading of samples. */
export const LOADING = {
  /**
   * The order of samples. Default: "random".
   * - "random": a new random order in every epoch.
   * - "sequential": the order of the data.
   * - "group_by_length": a random order with samples of similar length in one batch, which needs
   *   less padding; the longest samples first.
   */
  sampling: oneOf(ORDERS)('`"random"`, `"sequential"` or `"group_by_length"`', {
    default: 'random',
    flag: 'train_sampling_strategy',
  }),
  /** Whether a last micro-batch that is not full is dropped. Default: false. */
  dropLast: boolean('drop the last micro-batch of an epoch if it is not full', {
    default: false,
    flag: 'dataloader_drop_last',
  }),
  /** Seed of the order. Default: `seed` of the Trainer. */
  seed: integer('seed of the order of the samples', { min: 0, shown: '`seed`', flag: 'data_seed' }),
  /** Number of threads that read samples. Default: 0; the calling thread reads them. */
  workers: integer('threads that load samples; raise it if the GPU waits for data', {
    min: 0,
    default: 0,
    flag: 'dataloader_num_workers',
  }),
  /**
   * Maximum number of tokens of a sample. The engine plans with it if stage or offload is "auto".
   * Default: 1024, or the model's maximum if it is smaller.
   */
  sequenceLength: integer(
    'tokens that an ["auto" stage](planning.md#let-the-plan-choose) plans with',
    { min: 1, shown: "1024, or the model's", elsewhere: 'TRL: `max_length`' },
  ),
};

/** Declares the options of `data` that depend on the type of samples. */
export const declareLoadingCalls = <Sample, Batch>() => ({
  /** Combines samples into a batch. Default: pads rows of text, stacks other samples. */
  collate: callback<(samples: Sample[], device: Device) => Batch>(
    'function that makes a batch of samples',
    {
      shown: 'pad text, stack others',
      elsewhere: '`data_collator`',
    },
  ),
  /** Number of tokens of each sample, for "group_by_length". Default: the length of `ids`. */
  lengths: declareOption(
    (_, value: ArrayLike<number>) => value,
    'token counts for `"group_by_length"`',
    {
      shown: 'length of `ids`',
      elsewhere: '`length_column_name`',
    },
  ),
});

/** Order and batching of the samples in `train`. It does not apply to a source of batches. */
export interface TrainerDataOptions<Sample, Batch>
  extends Options<typeof LOADING>,
    Options<ReturnType<typeof declareLoadingCalls<Sample, Batch>>> {}
