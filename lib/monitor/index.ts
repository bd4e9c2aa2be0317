// The door of the monitor room.
export { ConsoleMonitor, type ConsoleOptions, type ProgressReport } from './console.js';
export { CsvMonitor, type LogFolder } from './csv.js';
export { MonitorMaster } from './master.js';
export type { Monitor, MonitorEvent } from './monitor.js';
export { Progress, type ProgressOptions, progressLine, type StepReport } from './progress.js';
export { TensorBoardMonitor } from './tensorboard.js';
