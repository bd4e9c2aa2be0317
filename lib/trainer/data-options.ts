// Declares the option `data` of a Trainer: how samples become micro-batches.
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

/** Order of samples. */
export type Sampling = (typeof ORDERS)[number];

/** Order and distribution of samples. */
export const LOADING = {
  /**
   * "random": a new order in every epoch. "sequential": the order of the data. "group_by_length": a
   * random order with samples of similar length in one batch, the longest first; it reduces
   * padding. Default: "random".
   */
  sampling: oneOf(ORDERS)('`"random"`, `"sequential"` or `"group_by_length"`', {
    default: 'random',
    flag: 'train_sampling_strategy',
  }),
  /** Drops a last micro-batch that is not full. Default: false. */
  dropLast: boolean('drop the last micro-batch of an epoch if it is not full', {
    default: false,
    flag: 'dataloader_drop_last',
  }),
  /** Seed of the order. Default: the Trainer's seed. */
  seed: integer('seed of the order of the samples', { min: 0, shown: '`seed`', flag: 'data_seed' }),
  /** Number of threads that get samples. Default: 0, the calling thread does. */
  workers: integer('threads that load samples; raise it if the GPU waits for data', {
    min: 0,
    default: 0,
    flag: 'dataloader_num_workers',
  }),
  /**
   * Maximum tokens of a sample, for the plan if stage or offload is "auto". Default: 1024, or the
   * model's limit.
   */
  sequenceLength: integer(
    'tokens that an ["auto" stage](planning.md#let-the-plan-choose) plans with',
    { min: 1, shown: "1024, or the model's", elsewhere: 'TRL: `max_length`' },
  ),
};

/** Declares the options of `data` that depend on the type of samples. */
export const declareLoadingCalls = <Sample, Batch>() => ({
  /** Combines samples into a batch. Default: pads rows of text, stacks others. */
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

/** Order and batching of the samples of `train`. Batches of a source stay unchanged. */
export interface TrainerDataOptions<Sample, Batch>
  extends Options<typeof LOADING>,
    Options<ReturnType<typeof declareLoadingCalls<Sample, Batch>>> {}
