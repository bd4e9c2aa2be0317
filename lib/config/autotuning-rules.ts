// Rules across the keys of autotuning: required keys of an experiment, and runs without the
// launcher.
import type { ResolvedValues } from '../../types/config.js';
import type { Advice, Rule } from './rule.js';

const endsAfterItsStart: Rule = ({ autotuning }) => {
  const { enabled, start_profile_step: start, end_profile_step: end } = autotuning;
  if (!enabled || end >= start) return null;
  return {
    path: ['autotuning', 'end_profile_step'],
    expected: `at least start_profile_step, which is ${start}`,
    got: String(end),
    hint: 'Raise end_profile_step: autotuning times the steps between the two.',
  };
};

const namesItsFolders: Rule = ({ autotuning }) => {
  const key = (['results_dir', 'exps_dir'] as const).find((item) => autotuning[item] === '');
  if (!autotuning.enabled || !key) return null;
  const usual = key === 'results_dir' ? 'autotuning_results' : 'autotuning_exps';
  const hint = `Set it to a folder, or remove it for the default, "${usual}".`;
  return { path: ['autotuning', key], expected: 'a folder', got: '""', hint };
};

const describesItsModel: Rule = ({ autotuning }) => {
  const { enabled, model_info: info, model_info_path: file } = autotuning;
  if (!enabled || !info?.profile || file !== null) return null;
  return {
    path: ['autotuning', 'model_info_path'],
    expected: 'a file, as model_info.profile is true',
    got: 'none',
    hint: 'The launcher writes both: leave them out, and start ds --autotuning tune.',
  };
};

export const autotuningRules: readonly Rule[] = [
  endsAfterItsStart,
  namesItsFolders,
  describesItsModel,
];

/**
 * Returns whether `ds --autotuning` has started the run, which then only measures.
 */
export function isExperiment({ autotuning }: Pick<ResolvedValues, 'autotuning'>): boolean {
  const { enabled, metric_path: metrics, model_info: info } = autotuning;
  return enabled && (metrics !== null || info?.profile === true);
}

/**
 * Returns advice for enabled autotuning in a run without the launcher. DeepSpeed ends such a run
 * with an error, one step after end_profile_step.
 */
export function searchesNothing(config: ResolvedValues): Advice | null {
  if (!config.autotuning.enabled || isExperiment(config)) return null;
  const text =
    'acts only with `ds --autotuning tune|run`. This run trains with the values of the file.';
  return { path: ['autotuning', 'enabled'], text };
}
