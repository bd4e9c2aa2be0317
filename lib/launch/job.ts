// The job that a launcher sends to each node. The node needs it to start its ranks. It is JSON and
// contains the secret.
import type { BindingRequest } from './core-binding.js';
import type { Node } from './hostfile.js';
import type { Script } from './script.js';

export interface Job {
  /** Nodes with their slots. Ranks are numbered in this order, one per slot. */
  nodes: readonly Node[];
  /** Kind of the slots: GPUs (names for CUDA_VISIBLE_DEVICES) or indices on the CPU. */
  device: 'gpu' | 'cpu';
  masterAddr: string;
  masterPort: number;
  /** Authenticates the ranks at the job's store. */
  secret: string;
  script: Script;
  /** Working directory of the ranks, on every node. */
  directory: string;
  /** Variables in addition to the node's own environment. */
  environment: Readonly<Record<string, string>>;
  binding: BindingRequest;
  /** Folder for one log file per rank; null for no log files. */
  logDirectory: string | null;
  /** Seconds between the stop request to ranks and SIGKILL. */
  grace: number;
  /** Prints no notices. */
  quiet: boolean;
}
