// What a configuration wants to know of each phase, as timers around the phase timer.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Module } from '../../nn/module.js';
import { FlopsProfiler } from '../../profiler/index.js';
import { MemoryBreakdown, type MemoryOwners } from '../watch/memory-breakdown.js';
import { EventTimer, type PhaseTimer, untimed } from '../watch/phase-timer.js';
import { ProfiledStep } from '../watch/profiled-step.js';

/**
 * wall_clock_breakdown, and where this rank `prints`, flops_profiler and memory_breakdown. With
 * none of them nothing is watched.
 */
export function buildTimer(
  config: ResolvedConfig,
  watched: MemoryOwners & { module: Module },
  prints: boolean,
): PhaseTimer {
  const { flops_profiler: flops } = config;
  let timer: PhaseTimer = config.wall_clock_breakdown ? new EventTimer(watched.device) : untimed;
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
