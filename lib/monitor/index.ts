// Monitors: write a run's metrics to files, TensorBoard and the console.
export { ConsoleMonitor, type ConsoleOptions, type ProgressReport } from './console.js';
export { CsvMonitor, type LogFolder } from './csv.js';
export { MonitorMaster } from './master.js';
export type { Monitor, MonitorEvent } from './monitor.js';
export {
  ProgressBar,
  type ProgressBarOptions,
  progressLine,
  type StepReport,
} from './progress-bar.js';
export { TensorBoardMonitor } from './tensorboard.js';
export { flopsPerToken, peakFlops, type TransformerSize } from './utilization.js';
