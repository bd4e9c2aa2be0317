// The section "activation_checkpointing" of a ds_config.json, as options of
// checkpointing.configure().
import {
  type CheckpointingOptions,
  configure as configureByOptions,
} from '../../tensor/recompute/index.js';

/** The section "activation_checkpointing" of a ds_config.json. */
export interface ActivationCheckpointingSection {
  /** No effect: each rank keeps the inputs of its own segments. */
  partition_activations?: boolean;
  /** No effect: memory comes from pools that do not fragment by it. */
  contiguous_memory_optimization?: boolean;
  /** How many checkpoints one forward makes; null where it is not given. */
  number_checkpoints?: number | null;
  /** Keeps what segments start from in host memory. */
  cpu_checkpointing?: boolean;
  /** Waits for the device at the borders of checkpoints. */
  synchronize_checkpoint_boundary?: boolean;
  /** Measures segments. */
  profile?: boolean;
  /** Found in tutorials; DeepSpeed does not read it either. */
  enabled?: boolean;
}

/** Keys whose snake_case is not the option's; null is read by nobody. */
const KEYS: Readonly<Record<string, keyof CheckpointingOptions | null>> = {
  contiguous_memory_optimization: 'contiguousCheckpointing',
  synchronize_checkpoint_boundary: 'synchronize',
  enabled: null,
};

/**
 * Chooses how checkpoint() keeps and watches segments from now on, as
 * deepspeed.checkpointing.configure does; segments recorded before keep what they were recorded
 * with. Takes options, or the section of a ds_config.json under its own names. Throws DS_ARGUMENT
 * for unknown or wrong ones, DS_CONFIG for what is not supported yet.
 */
export function configure(given: CheckpointingOptions | ActivationCheckpointingSection = {}): void {
  const isSection = Object.keys(KEYS).some((key) => Object.hasOwn(given ?? {}, key));
  configureByOptions(isSection ? toOptions(given) : given);
}

/**
 * configure(section), but only when the section asks for something: a model trained without one
 * keeps what its user has configured. What the reader of configurations has answered with a notice
 * is left out.
 */
export function configureFromSection(section: ActivationCheckpointingSection): void {
  const {
    enabled: _unread,
    partition_activations: _split,
    contiguous_memory_optimization: _copied,
    ...rest
  } = section;
  if (Object.values(rest).some((value) => value !== false && value != null)) configure(rest);
}

function toOptions(given: object): CheckpointingOptions {
  const named = Object.entries(given).flatMap(([key, value]) => {
    const name = Object.hasOwn(KEYS, key) ? KEYS[key] : key;
    return name ? [[name, value]] : [];
  });
  return Object.fromEntries(named);
}
