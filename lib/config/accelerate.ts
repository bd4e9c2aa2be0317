// Refuses configuration files of accelerate, which have other keys than ds_config.json.
import type { Draft } from './draft.js';
import { isSection, type Section } from './schema.js';

/** Keys of every accelerate file that no ds_config.json has. */
const MARKS = ['compute_environment', 'distributed_type'];

/**
 * Refuses an accelerate file and removes its keys from the draft, because they would be reported as
 * unknown keys.
 */
export function refuseAccelerate(draft: Draft): void {
  const { value } = draft;
  const mark = MARKS.find((key) => value[key] !== undefined);
  if (mark === undefined) return;
  const plugin = pluginOf(value);
  const { deepspeed_config_file: file } = plugin;
  const hint =
    typeof file === 'string'
      ? `Pass the file that it names: ${file}.`
      : `Write a file of ${JSON.stringify(translated(plugin, value))} instead.`;
  draft.refuse([mark], {
    expected: 'the keys of a DeepSpeed configuration',
    got: 'a configuration of accelerate',
    hint: `${hint} \`ds --num_gpus\` sets the number of ranks.`,
  });
  for (const key of Object.keys(value)) delete value[key];
}

/**
 * The file's deepspeed_config. In JSON it is a section. YAML is read as Hjson, so its lines become
 * keys of the file, and the first line becomes the value of the section.
 */
function pluginOf(value: Section): Section {
  const { deepspeed_config: own } = value;
  if (isSection(own)) return own;
  const [, key = '', first = ''] = String(own ?? '').match(/^(\w+):\s*(.*)$/) ?? [];
  return { ...value, ...(key && { [key]: numberOr(first.replace(/^(['"])(.*)\1$/, '$2')) }) };
}

const numberOr = (text: string): string | number =>
  text !== '' && Number.isFinite(Number(text)) ? Number(text) : text;

/** The same as DeepSpeed has it. */
function translated(plugin: Section, { mixed_precision: precision }: Section): Section {
  const offload = (what: string): Section => {
    const device = plugin[`${what}_device`];
    if (device === undefined || device === null || device === 'none') return {};
    const path = plugin[`${what}_nvme_path`];
    return { [what]: { device, ...(path ? { nvme_path: path } : {}) } };
  };
  const copied = ['gradient_accumulation_steps', 'gradient_clipping'].filter(
    (key) => plugin[key] !== undefined,
  );
  const sixteen = precision === 'bf16' || precision === 'fp16' ? precision : null;
  return {
    train_micro_batch_size_per_gpu: 'auto',
    ...Object.fromEntries(copied.map((key) => [key, plugin[key]])),
    zero_optimization: {
      stage: plugin.zero_stage ?? 2,
      ...offload('offload_optimizer'),
      ...offload('offload_param'),
      ...(plugin.zero3_save_16bit_model === true && {
        stage3_gather_16bit_weights_on_model_save: true,
      }),
    },
    ...(sixteen && { [sixteen]: { enabled: true } }),
  };
}
