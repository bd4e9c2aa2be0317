// The text of an engine for console.log().
import type { EngineCore } from './engine-parts.js';

/** Returns step, optimizer, stage, device and rank; at depth 0 or more, also the model. */
export function describeEngine(engine: EngineCore, depth: number): string {
  const { globalSteps, globalRank, worldSize, optimizer, device, module, config } = engine;
  const stage = `ZeRO stage ${config.zero_optimization.stage}`;
  const rank = worldSize > 1 ? `, rank ${globalRank} of ${worldSize}` : '';
  const head = `Engine(step ${globalSteps}, ${optimizer.name}, ${stage}, ${device.name}${rank})`;
  return depth < 0 ? head : `${head} of ${module}`;
}
