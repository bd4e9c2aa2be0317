// Converts the section "activation_checkpointing" to options of checkpointing.configure().
import type { ActivationCheckpointingConfig } from '../../../types/config.js';
import { type CheckpointingOptions, configure as configureByOptions } from './policy.js';

/** Options of checkpointing.configure(), named as in the section activation_checkpointing. */
export type ActivationCheckpointingSection = ActivationCheckpointingConfig;

/** Keys with a snake_case form other than the name of the option. Null: ignored. */
const KEYS: Readonly<Record<string, keyof CheckpointingOptions | null>> = {
  contiguous_memory_optimization: 'contiguousCheckpointing',
  synchronize_checkpoint_boundary: 'synchronize',
  enabled: null,
};

/**
 * Sets how checkpoint() saves and measures later segments, like deepspeed.checkpointing.configure.
 * Takes options, or the section of a ds_config.json with its keys. Throws DS_ARGUMENT for unknown
 * or invalid options, DS_CONFIG for unsupported options.
 */
export function configure(given: CheckpointingOptions | ActivationCheckpointingSection = {}): void {
  const isSection = Object.keys(KEYS).some((key) => Object.hasOwn(given ?? {}, key));
  configureByOptions(isSection ? toOptions(given) : given);
}

/** Calls configure(section) if the section sets an option that has an effect. */
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
