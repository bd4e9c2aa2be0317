// Opens the observers of an engine: monitors, the logger of collectives, and phase timers.

import type { ResolvedConfig } from '../../../types/config.js';
import { type CollectiveKind, CommsLogger } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import type { Module } from '../../nn/module.js';
import { FlopsProfiler } from '../../profiler/index.js';
import { camelCase } from '../../runtime/options.js';
import { groupsOf, type Ranks } from '../ranks.js';
import type { BuildResources } from '../release-stack.js';
import { FirstForward, MeasuredSteps } from '../watch/experiment.js';
import { MemoryBreakdown, type MemoryOwners } from '../watch/memory-breakdown.js';
import { buildObservers } from '../watch/monitoring.js';
import { EventTimer, type PhaseTimer, type StepObserver } from '../watch/phase-timer.js';
import { ProfiledStep } from '../watch/profiled-step.js';
import { untimed } from '../watch/step-watch.js';
import type { Clients } from './clients.js';
import { modelInfoPath } from './memory.js';

/** Opens monitors on rank 0, and the logger of collectives on every rank. */
export function openObservers(
  config: ResolvedConfig,
  { monitors = [] }: Clients,
  ranks: Ranks,
  { owned, undo }: BuildResources,
): StepObserver[] {
  const { world } = ranks;
  const isFirst = world.rank === 0;
  const log = world.size > 1 ? buildCommsLogger(config.comms_logger, isFirst) : null;
  for (const group of groupsOf(ranks)) {
    const { logger } = group;
    undo.defer(() => {
      group.logger = logger;
    });
    group.logger = log ?? logger;
  }
  return isFirst ? buildObservers(config, monitors, owned) : [];
}

type Section = ResolvedConfig['comms_logger'];

/**
 * Returns the collective that a DeepSpeed name means. Suffixes of layouts and the "i" of isend and
 * irecv are ignored.
 */
export function kindOf(name: Section['prof_ops'][number]): CollectiveKind {
  const plain = name.replace(/_(base|coalesced|single|(into_)?tensor)$/, '');
  return camelCase(plain.replace(/^i(?=send|recv)/, '')) as CollectiveKind;
}

/**
 * Returns the logger that `section` configures, or null if it is off. `prints`: whether it may
 * print.
 */
function buildCommsLogger(section: Section, prints: boolean): CommsLogger | null {
  if (!section.enabled) return null;
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  return new CommsLogger({
    profAll: section.prof_all,
    ops: section.prof_ops.map(kindOf),
    verbose: section.verbose && prints ? print : undefined,
  });
}

type Watched = MemoryOwners & { module: Module; ranks: Pick<Ranks, 'world' | 'mesh'> };

/**
 * Returns the phase timer that the configuration needs: for wall_clock_breakdown and autotuning on
 * every rank, and for flops_profiler and memory_breakdown on the rank that `prints`. If all of them
 * are off, nothing is recorded.
 */
export function buildTimer(config: ResolvedConfig, watched: Watched, prints: boolean): PhaseTimer {
  const { flops_profiler: flops } = config;
  let timer = addExperiment(
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
function addExperiment(
  config: ResolvedConfig,
  { module, device, ranks }: Watched,
  inner: PhaseTimer,
): PhaseTimer {
  const { enabled, metric_path: metrics } = config.autotuning;
  const isPipeline = ranks.mesh.size(AXIS.pipeline) > 1;
  const run = { module, device, config, world: ranks.world, isPipeline };
  const info = modelInfoPath(config);
  if (info !== null) return new FirstForward(inner, run, info);
  return enabled && metrics !== null ? new MeasuredSteps(inner, run) : inner;
}
