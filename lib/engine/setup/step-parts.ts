// The parts of an engine that run a step: norm and clipping, decisions, gradients, hooks, timers.
import type { Decisions, OwnedParts, StepParts } from '../engine-parts.js';
import type { Site } from '../release-stack.js';
import { GradientCollector } from '../step/gradient-collector.js';
import { columnsOf } from '../step/step-columns.js';
import { StepControl } from '../step/step-control.js';
import { StepDecisions, UpdatePlanner } from '../step/step-decisions.js';
import { STOP_SIGNALS, StopRequest } from '../step/stop-request.js';
import { UnitHooks } from '../step/unit-hooks.js';
import { describeState } from '../watch/dump-state.js';
import { EmptyBatches } from '../watch/empty-batches.js';
import type { StepObserver } from '../watch/phase-timer.js';
import { StepWatch } from '../watch/step-watch.js';
import type { Clients } from './clients.js';
import { buildTimer } from './observers.js';

/** Returns the parts that run a step. `observers` receive each step. */
export function stepPartsOf(
  decisions: Decisions,
  holdings: OwnedParts,
  {
    stopSignals: signals = STOP_SIGNALS,
    observers,
  }: Clients & { observers: readonly StepObserver[] },
  { owned }: Site,
): StepParts {
  const { module, config, device, optimizer, schedules, scaler, batch, progress } = decisions;
  const { stage, ranks } = holdings;
  const prints = ranks.world.rank === 0;
  const stop = owned.own(new StopRequest({ worldSize: ranks.world.size, signals }));
  const emptyBatches = owned.own(new EmptyBatches(device, ranks.world.rank));
  const timer = buildTimer(config, { module, device, ...holdings }, prints);
  const watch = new StepWatch(timer, observers);
  const control = owned.own(
    new StepControl(device, stage.partitions, ranks, {
      state: holdings.state,
      maxNorm: config.gradient_clipping,
      skipNonfinite: !config.bf16.enabled || config.bf16.check_grad_overflow,
      stop,
      watch,
      batch,
      emptyBatches,
      columns: columnsOf(decisions.plan?.pipeline ?? null, stage.partitions, ranks),
    }),
  );
  const planner = new UpdatePlanner(optimizer, schedules, progress);
  const stepDecisions = new StepDecisions({
    control,
    scaler,
    progress,
    planner,
    watch,
    stop,
    emptyBatches,
  });
  const counted = { batch, progress, planner, stepDecisions, watch };
  const gradients = new GradientCollector({ module, ...holdings, control, ...counted });
  const hooks = new UnitHooks(module, { ...holdings, gradients });
  if (config.dump_state && prints) {
    process.stdout.write(`${describeState({ ...decisions, ...holdings })}\n`);
  }
  owned.defer(() => watch.close());
  owned.defer(() => stepDecisions.takeLast());
  owned.defer(() => hooks.remove());
  return { planner, control, stepDecisions, gradients, hooks, watch, stop };
}
