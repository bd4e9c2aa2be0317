// Builds the phase timers of a configuration.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Module } from '../../nn/module.js';
import { FlopsProfiler } from '../../profiler/index.js';
import type { Ranks } from '../ranks.js';
import { FirstForward, MeasuredSteps } from '../watch/experiment.js';
import { MemoryBreakdown, type MemoryOwners } from '../watch/memory-breakdown.js';
import { EventTimer, type PhaseTimer } from '../watch/phase-timer.js';
import { ProfiledStep } from '../watch/profiled-step.js';
import { untimed } from '../watch/step-watch.js';
import { modelInfoPath } from './model-info.js';

type Watched = MemoryOwners & { module: Module; ranks: Pick<Ranks, 'world' | 'mesh'> };

/**
 * Combines wall_clock_breakdown and the experiments of autotuning; if this rank `prints`, also
 * flops_profiler and memory_breakdown. Without them, nothing is recorded.
 */
export function buildTimer(config: ResolvedConfig, watched: Watched, prints: boolean): PhaseTimer {
  const { flops_profiler: flops } = config;
  let timer = experimentIn(
    config,
    watched,
    config.wall_clock_breakdown ? new EventTimer(watched.device) : untimed,
  );
  if (!prints) return timer;
  if (flops.enabled) {
    timer = new ProfiledStep(timer, new FlopsProfiler(watched), {
      profileStep: flops.profile_step,
      moduleDepth: flops.module_depth,
      topModules: flops.top_modules,
      detailed: flops.detailed,
      outputFile: flops.output_file,
      recomputeFwdFactor: flops.recompute_fwd_factor,
    });
  }
  return config.memory_breakdown ? new MemoryBreakdown(timer, watched) : timer;
}

/** Adds the measurement of an autotuning run, on every rank. */
function experimentIn(
  config: ResolvedConfig,
  { module, device, ranks }: Watched,
  inner: PhaseTimer,
): PhaseTimer {
  const { enabled, metric_path: metrics } = config.autotuning;
  const isPipeline = ranks.mesh.size('pp') > 1;
  const run = { module, device, config, world: ranks.world, isPipeline };
  const info = modelInfoPath(config);
  if (info !== null) return new FirstForward(inner, run, info);
  return enabled && metrics !== null ? new MeasuredSteps(inner, run) : inner;
}
